"""A cost model is found again from calls that it made."""

from __future__ import annotations

import random

import pytest

from slotwise.bench.run.client import Answer
from slotwise.bench.run.sender import Ids, Outcome, Sent, Step
from slotwise.bench.sim import cost_model
from slotwise.bench.sim.cost_model import CostModel, Outside, Prefill
from slotwise.bench.suite import calibrate
from slotwise.bench.suite.calibrate import Point
from slotwise.policies.prefix import pack

TRUE = Prefill(c_s=0.004, a_s=2e-5, b_s=6e-9)


def seconds(n0: int, n1: int) -> float:
    return TRUE.c_s + TRUE.a_s * (n1 - n0) + TRUE.b_s * (n1 * n1 - n0 * n0) / 2


def measured(noise: float, count: int = 200) -> list[Point]:
    rng = random.Random(1)
    found = []
    for _ in range(count):
        n1 = rng.randint(50, 20_000)
        n0 = rng.choice([0, int(n1 * rng.random())])
        found.append(Point(n0, n1, seconds(n0, n1) * rng.uniform(1 - noise, 1 + noise)))
    return found


def test_the_model_is_found_again() -> None:
    found = calibrate.prefill(measured(0.0))
    assert found.c_s == pytest.approx(TRUE.c_s, rel=1e-3)
    assert found.a_s == pytest.approx(TRUE.a_s, rel=1e-3)
    assert found.b_s == pytest.approx(TRUE.b_s, rel=1e-3)
    assert calibrate.relative_error(found, measured(0.0)) < 1e-3


def test_noise_moves_it_little() -> None:
    found = calibrate.prefill(measured(0.3))
    for n in (200, 4_000, 20_000):
        cost = found.c_s + found.a_s * n + found.b_s * n * n / 2
        assert cost == pytest.approx(seconds(0, n), rel=0.1)
    assert 0.1 < calibrate.relative_error(found, measured(0.3)) < 0.2


def test_no_part_is_negative() -> None:
    """Faster with depth, by chance: the quadratic part is nothing then."""
    found = calibrate.prefill([Point(0, n, 1e-3 * n**0.9) for n in range(100, 5000, 100)])
    assert found.b_s == 0
    assert min(found.c_s, found.a_s) >= 0


def test_too_few_calls_are_told() -> None:
    with pytest.raises(ValueError, match="at least 3 calls to fit to, got 2"):
        calibrate.prefill(measured(0.0)[:2])


def outcome(*answers: Answer) -> Outcome:
    step = Step("x", "s", Ids(pack([1]), made_up=True), 3)
    return Outcome([Sent(step, 0.0, 0.0, 1.0, answer) for answer in answers])


def test_points_are_the_engines_own_clock_and_what_came_on_top() -> None:
    answers = (
        Answer(100, 40, 11, ttft_s=0.5, prefill_s=0.375, decode_s=0.2),
        Answer(200, 0, 1, ttft_s=1.5, prefill_s=1.25),
        Answer(200, 0, 10, ttft_s=1.5),  # a server that does not tell
    )
    assert calibrate.points(outcome(*answers)) == [
        Point(40, 100, 0.375, 0.125, 10, 0.2),
        Point(0, 200, 1.25, 0.25, 0, 0.0),
    ]


def test_what_is_added_outside_is_found_again() -> None:
    measured = [Point(0, n, 1.0, 0.004 + 2e-6 * n) for n in (100, 900, 5_000, 12_000)]
    found = calibrate.outside(measured)
    assert found.c_s == pytest.approx(0.004)
    assert found.a_s == pytest.approx(2e-6)


def test_a_step_without_context_is_what_depth_does_not_explain() -> None:
    """0.1 ms and 50 ns for each token of context, alone and three together."""
    alone = [
        Point(0, n, 1.0, 0.0, 10, 10 * (1e-4 + 5e-8 * (n + 5))) for n in (100, 900, 5_000, 12_000)
    ]
    depth_s = calibrate.decode_depth_s(alone)
    assert depth_s == pytest.approx(5e-8)
    together = [Point(0, 100, 1.0, 0.0, 20, 20 * (3e-4 + 3 * 5e-8 * 110)) for _ in range(3)]
    assert calibrate.decode_step_s(together, depth_s) == pytest.approx(3e-4)
    assert calibrate.decode_depth_s([Point(0, 9, 1.0)]) == 0
    with pytest.raises(ValueError, match="does not tell"):
        calibrate.decode_step_s([Point(0, 9, 1.0)], depth_s)


def test_crowding_is_where_the_simulated_time_is_the_measured_one() -> None:
    assert calibrate.crowded(lambda factor: 10 * factor, 13.0) == pytest.approx(1.3, abs=0.01)
    assert calibrate.crowded(lambda factor: 10 * factor, 9.0) == pytest.approx(1.0, abs=0.01)
    assert calibrate.crowded(lambda factor: 10 * factor, 99.0) == pytest.approx(4.0, abs=0.01)


def test_what_is_written_is_read_again() -> None:
    model = CostModel(
        about="made up",
        prefill=TRUE,
        decode_step_s={1: 0.0005, 4: 0.001},
        decode_depth_s=5e-8,
        copy_tokens_per_s=2e6,
        outside=Outside(c_s=0.003, a_s=1e-6),
        crowded=1.25,
    )
    assert cost_model.parse(calibrate.as_yaml(model, "a comment"), "made up") == model

"""The cost model follows what an engine reports, and nothing it reports breaks it."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.policies import cost_fit
from slotwise.policies.cost import prefill_s, run_s, step_s
from slotwise.policies.cost_fit import Fit
from slotwise.policies.params import Cost

TINY = Cost(prefill_c_s=0.003, prefill_a_s=1.8e-5, prefill_b_s=6e-9)
PLAIN = Cost(prefill_c_s=0, prefill_a_s=5e-4, prefill_b_s=0)
SLOW = Cost(prefill_c_s=5, prefill_a_s=0.02, prefill_b_s=1e-6)


def told(true: Cost, count: int, first: Cost | None = None, noise: float = 0.1) -> Fit:
    """Agents' prompts on an engine that costs ``true``, each time off by about ``noise``."""
    drawn = random.Random(1)
    fit = cost_fit.start(first or Cost())
    for _ in range(count):
        n0 = drawn.choice([0, 8_000, 30_000, 60_000, 100_000]) + drawn.randrange(2000)
        n1 = n0 + 1 + int(drawn.lognormvariate(6.5, 1.2))
        fit = cost_fit.prompt_read(
            fit, n0, n1, prefill_s(true, n0, n1) * drawn.lognormvariate(0, noise)
        )
    return fit


@pytest.mark.parametrize("true", [Cost(), TINY, PLAIN, SLOW], ids=["gb10", "tiny", "plain", "slow"])
@pytest.mark.parametrize(("n0", "n1"), [(0, 2000), (0, 20_000), (60_000, 61_000), (0, 100_000)])
def test_prompts_teach_what_others_will_take(true: Cost, n0: int, n1: int) -> None:
    """From first values of another machine, up to four hundred times off."""
    learned = told(true, 300).cost
    assert prefill_s(learned, n0, n1) == pytest.approx(prefill_s(true, n0, n1), rel=0.15)


def test_true_first_values_are_not_worn_by_noise() -> None:
    for count in (1, 3, 10, 30):
        learned = told(Cost(), count).cost
        assert prefill_s(learned, 0, 20_000) == pytest.approx(prefill_s(Cost(), 0, 20_000), rel=0.1)


def test_what_reports_cannot_tell_apart_stays_in_proportion() -> None:
    """Only short prompts were read, each ten times as fast as the first values have it: a long
    one is taken to be as much faster."""
    fit = cost_fit.start(Cost())
    for _ in range(100):
        fit = cost_fit.prompt_read(fit, 0, 100, prefill_s(Cost(), 0, 100) / 10)
    assert prefill_s(fit.cost, 0, 20_000) == pytest.approx(
        prefill_s(Cost(), 0, 20_000) / 10, rel=0.1
    )


def test_an_engine_that_slows_down_is_followed() -> None:
    fit = told(PLAIN, 300)
    for _ in range(300):
        fit = cost_fit.prompt_read(fit, 0, 4000, 6.0)
    assert prefill_s(fit.cost, 0, 4000) == pytest.approx(6.0, rel=0.1)


def test_one_report_far_off_moves_little() -> None:
    before = told(PLAIN, 100)
    after = cost_fit.prompt_read(before, 0, 4000, 2000.0)
    assert prefill_s(after.cost, 0, 4000) < 1.5 * prefill_s(before.cost, 0, 4000)


def test_steps_are_learned_by_how_many_generate() -> None:
    fit = cost_fit.start(Cost())
    drawn = random.Random(2)
    for _ in range(200):
        sequences = drawn.choice([1.0, 1.5, 2.0, 4.0])
        step = 0.070 + 0.008 * (sequences - 1)
        fit = cost_fit.tokens_generated(
            fit, 100, 100 * step * drawn.lognormvariate(0, 0.05), sequences
        )
    assert step_s(fit.cost, 1) == pytest.approx(0.070, rel=0.05)
    assert step_s(fit.cost, 4) == pytest.approx(0.094, rel=0.05)
    assert run_s(fit.cost, 0, 0, 100, 4) == pytest.approx(9.4, rel=0.05)


def test_where_two_always_run_the_time_of_one_alone_stays_in_proportion() -> None:
    fit = cost_fit.start(Cost(decode_s=0.04, decode_more_s=0.04))
    drawn = random.Random(3)
    for _ in range(25):
        sequences = drawn.uniform(1.8, 2)
        fit = cost_fit.tokens_generated(fit, 100, 0.6 * drawn.lognormvariate(0, 0.3), sequences)
    assert step_s(fit.cost, 2) == pytest.approx(0.006, rel=0.15)
    assert 0.0015 < step_s(fit.cost, 1) < 0.0045


def test_switched_off_the_first_values_stay() -> None:
    first = Cost(fit=False)
    assert told(SLOW, 50, first).cost == first
    assert cost_fit.tokens_generated(cost_fit.start(first), 100, 9.0, 2.0).cost == first


seconds = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(-5, 2_000_000)
report = st.tuples(counts, counts, seconds, st.floats(-1, 64))
values = st.floats(0, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values, values, st.lists(report, max_size=40))
def test_nothing_an_engine_says_leaves_the_bounds(
    c_s: float, a_s: float, reports: list[tuple[int, int, float, float]]
) -> None:
    fit = cost_fit.start(Cost(prefill_c_s=c_s, prefill_a_s=a_s, prefill_b_s=0, decode_s=0))
    for n0, n1, took_s, sequences in reports:
        fit = cost_fit.prompt_read(fit, n0, n1, took_s)
        fit = cost_fit.tokens_generated(fit, n1, took_s, sequences)
    for knob in fields(Cost):
        if "low" in knob.metadata:
            value = getattr(fit.cost, knob.name)
            assert knob.metadata["low"] <= value <= knob.metadata["high"], knob.name

"""The cost model follows what an engine reports, and nothing it reports breaks it."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.policies.cost import CostFit, prefill_s, run_s, step_s
from slotwise.policies.params import Cost

TINY = Cost(prefill_c_s=0.003, prefill_a_s=1.8e-5, prefill_b_s=6e-9)
PLAIN = Cost(prefill_c_s=0, prefill_a_s=5e-4, prefill_b_s=0)
SLOW = Cost(prefill_c_s=5, prefill_a_s=0.02, prefill_b_s=1e-6)


def told(true: Cost, count: int, first: Cost | None = None, noise: float = 0.1) -> CostFit:
    """Agents' prompts on an engine that costs ``true``, each time off by about ``noise``."""
    drawn = random.Random(1)
    fit = CostFit(first or Cost())
    for _ in range(count):
        n0 = drawn.choice([0, 8_000, 30_000, 60_000, 100_000]) + drawn.randrange(2000)
        n1 = n0 + 1 + int(drawn.lognormvariate(6.5, 1.2))
        fit = fit.prompt_read(n0, n1, prefill_s(true, n0, n1) * drawn.lognormvariate(0, noise))
    return fit


@pytest.mark.parametrize("times", [1 / 400, 1 / 10, 1, 20])
@pytest.mark.parametrize(("n0", "n1"), [(0, 2000), (0, 20_000), (60_000, 61_000), (0, 100_000)])
def test_prompts_teach_what_others_will_take(times: float, n0: int, n1: int) -> None:
    """From first values of another machine, up to four hundred times off."""
    true = Cost().scaled(times, 1.0, times)
    learned = told(true, 300).cost
    assert prefill_s(learned, n0, n1) == pytest.approx(prefill_s(true, n0, n1), rel=0.15)


@pytest.mark.parametrize(("n0", "n1"), [(0, 20_000), (60_000, 61_000), (0, 100_000)])
def test_an_engine_of_another_shape_is_known_to_a_factor(n0: int, n1: int) -> None:
    """One factor is learned: how much depth adds stays as in the first values."""
    for true in (TINY, PLAIN, SLOW):
        learned = told(true, 300).cost
        assert 1 / 6 < prefill_s(learned, n0, n1) / prefill_s(true, n0, n1) < 6


def test_true_first_values_are_not_worn_by_noise() -> None:
    for count in (1, 3, 10, 30):
        learned = told(Cost(), count).cost
        assert prefill_s(learned, 0, 20_000) == pytest.approx(prefill_s(Cost(), 0, 20_000), rel=0.1)


def test_what_reports_cannot_tell_apart_stays_in_proportion() -> None:
    """Only short prompts were read, each ten times as fast as the first values have it: a long
    one is taken to be as much faster."""
    fit = CostFit(Cost())
    for _ in range(100):
        fit = fit.prompt_read(0, 100, prefill_s(Cost(), 0, 100) / 10)
    assert prefill_s(fit.cost, 0, 20_000) == pytest.approx(
        prefill_s(Cost(), 0, 20_000) / 10, rel=0.1
    )


def test_an_engine_that_slows_down_is_followed() -> None:
    fit = told(PLAIN, 300)
    for _ in range(300):
        fit = fit.prompt_read(0, 4000, 6.0)
    assert prefill_s(fit.cost, 0, 4000) == pytest.approx(6.0, rel=0.1)


def test_a_steps_time_is_learned_for_any_number_of_sequences() -> None:
    fit, true = CostFit(Cost()), Cost().scaled(1.0, 1 / 9)
    drawn = random.Random(2)
    for _ in range(200):
        sequences = drawn.choice([1.0, 1.5, 2.0, 4.0])
        took_s = 100 * step_s(true, sequences) * drawn.lognormvariate(0, 0.05)
        fit = fit.tokens_generated(100, took_s, sequences)
    for sequences in (1, 4):
        assert step_s(fit.cost, sequences) == pytest.approx(step_s(true, sequences), rel=0.1)
    assert run_s(fit.cost, 0, 0, 100, 4) == pytest.approx(100 * step_s(true, 4), rel=0.1)


def test_one_report_far_off_moves_little() -> None:
    before = told(PLAIN, 100)
    after = before.prompt_read(0, 4000, 2000.0)
    assert prefill_s(after.cost, 0, 4000) < 1.5 * prefill_s(before.cost, 0, 4000)


seconds = st.floats(allow_nan=True, allow_infinity=True)
counts = st.integers(-5, 2_000_000)
report = st.tuples(counts, counts, seconds, st.floats(-1, 64))
values = st.floats(0, 1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(values, values, st.lists(report, max_size=40))
def test_nothing_an_engine_reports_leaves_the_bounds(
    c_s: float, a_s: float, reports: list[tuple[int, int, float, float]]
) -> None:
    fit = CostFit(Cost(prefill_c_s=c_s, prefill_a_s=a_s, prefill_b_s=0, decode_s=0))
    for n0, n1, took_s, sequences in reports:
        fit = fit.prompt_read(n0, n1, took_s)
        fit = fit.tokens_generated(n1, took_s, sequences)
    for knob in fields(Cost):
        assert 0 <= getattr(fit.cost, knob.name) <= 1e5, knob.name

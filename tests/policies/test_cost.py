"""Seconds of work."""

from __future__ import annotations

import pytest

from slotwise.policies.cost import prefill_s, run_s
from slotwise.policies.params import Cost

# Tokens done and seconds since the start: a published prefill of a 125B/6B-active MoE on GB10.
GB10_CURVE = [
    (4_236, 6.68),
    (8_332, 13.52),
    (12_428, 23.10),
    (16_524, 33.49),
    (20_620, 45.73),
    (23_581, 55.71),
]


@pytest.mark.parametrize(("tokens", "seconds"), GB10_CURVE)
def test_the_default_cost_reproduces_the_published_curve(tokens: int, seconds: float) -> None:
    assert prefill_s(Cost(), 0, tokens) == pytest.approx(seconds, rel=0.02)


def test_nothing_to_compute_costs_nothing() -> None:
    assert prefill_s(Cost(), 500, 500) == 0.0
    assert prefill_s(Cost(), 500, 100) == 0.0


def test_a_run_ends_by_its_limit_or_by_what_is_expected() -> None:
    cost = Cost(prefill_c_s=0, prefill_a_s=0.001, prefill_b_s=0, decode_s=0.1, expected_output=50)
    assert run_s(cost, 0, 1000, None) == pytest.approx(1 + 5)
    assert run_s(cost, 0, 1000, 10) == pytest.approx(1 + 1)
    assert run_s(cost, 0, 1000, 9999) == pytest.approx(1 + 5)
    assert run_s(cost, 900, 1000, -1) == pytest.approx(0.1 + 5)

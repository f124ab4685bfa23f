"""A decision stays cheap however long the prompts are."""

from __future__ import annotations

import pytest

from slotwise.bench.cost.decide_bench import NAIVE, Situation, Size, measure, naive_lcp
from slotwise.proxy.core.events import Dispatch, Tick


def test_the_timed_situation_has_all_slots_at_work_and_a_full_queue() -> None:
    situation = Situation(Size(waiting=12, slots=3, tokens=3000))
    assert situation.waiting() == 12
    assert not any(isinstance(a, Dispatch) for a in situation.handle(Tick()))
    assert situation.waiting() == 12


@pytest.mark.slow
def test_a_pass_over_the_whole_queue_costs_less_than_one_naive_comparison() -> None:
    # 64 waiting times 8 slots are 512 pairs; the same on any machine, since it is a ratio.
    cost = {row["case"]: row["naive comparisons"] for row in measure(Size(rounds=21))}
    assert cost.pop(NAIVE) == 1
    assert len(cost) == 3
    assert max(cost.values()) < 1, cost


def test_the_naive_comparison_is_right() -> None:
    assert naive_lcp([1, 2, 3], [1, 2, 4, 5]) == 2
    assert naive_lcp([1, 2], [1, 2]) == 2

"""The chance that somebody comes back for what a slot holds."""

from __future__ import annotations

import pytest

from slotwise.policies.affinity import EXPIRE_S, Returns, chance_of_return

NONE_SEEN = Returns()


def test_a_chance_falls_with_the_pause() -> None:
    chances = [chance_of_return(3, idle_s, False, NONE_SEEN) for idle_s in (0, 30, 60, 600)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == pytest.approx(0.8)
    assert chances[2] == pytest.approx(2 / 3), "the odds are halved after a minute"


def test_who_was_asked_to_run_tools_comes_back_more_surely_after_one_turn_too() -> None:
    assert chance_of_return(1, 0, True, NONE_SEEN) > chance_of_return(5, 0, False, NONE_SEEN)
    assert chance_of_return(1, 60, True, NONE_SEEN) < chance_of_return(5, 60, False, NONE_SEEN)


def test_nobody_comes_back_after_the_expiry() -> None:
    assert chance_of_return(9, EXPIRE_S, True, NONE_SEEN) == 0


def test_where_nobody_ever_came_back_a_single_turn_is_worth_little() -> None:
    returns = Returns()
    assert returns.first_odds == 1
    for _ in range(40):
        returns = returns.saw(is_new=True)
    assert returns.first_odds < 0.2
    assert chance_of_return(1, 0, False, returns) < 0.2
    assert chance_of_return(2, 0, False, returns) == pytest.approx(0.8)
    for _ in range(20):
        returns = returns.saw(is_new=False)
    assert returns.first_odds > 0.5


def test_typical_pauses_follow_what_is_seen_of_each_kind() -> None:
    returns = Returns()
    for _ in range(60):
        returns = returns.after(0.2, calling=True)
    assert returns.gap_s(calling=True) == pytest.approx(0.2, rel=0.3)
    assert returns.gap_s(calling=False) == NONE_SEEN.gap_s(calling=False)


def test_a_few_pauses_that_are_next_to_nothing_do_not_set_the_scale() -> None:
    returns = Returns()
    for pause_s in [0.0, 4.0, 0.0, 5.0, 4.0, 6.0, 4.0] * 8:
        returns = returns.after(pause_s, calling=False)
    assert 1.5 < returns.gap_s(calling=False) < 6


def test_a_pause_of_hours_counts_as_a_minute() -> None:
    returns = Returns()
    for _ in range(50):
        returns = returns.after(7200.0, calling=False)
    assert returns.gap_s(calling=False) == 60


def test_a_pause_of_nothing_leaves_a_gap_that_can_be_divided_by() -> None:
    returns = Returns()
    for _ in range(500):
        returns = returns.after(0.0, calling=True)
    assert 0 < returns.gap_s(calling=True) < 0.01
    assert chance_of_return(2, 5.0, True, returns) < 0.01

"""Typical pauses, learned by kind of answer."""

from __future__ import annotations

import pytest

from slotwise.policies.affinity import chance_of_return, chance_of_return_soon
from slotwise.policies.params import Affinity
from slotwise.policies.pauses import Pauses

KNOBS = Affinity()
PAUSES = Pauses.first(KNOBS)


def seen(pauses_s: list[float], calling: bool = False) -> Pauses:
    pauses = Pauses.first(KNOBS)
    for pause_s in pauses_s:
        pauses = pauses.saw(pause_s, calling)
    return pauses


def test_before_any_was_seen_the_given_values_stand() -> None:
    pauses = Pauses.first(KNOBS)
    assert pauses.typical_s(calling=True) == KNOBS.tools_gap_s
    assert pauses.typical_s(calling=False) == KNOBS.return_gap_s


def test_each_kind_of_answer_has_its_own() -> None:
    pauses = seen([3.0] * 10, calling=True)
    assert pauses.typical_s(calling=True) == 3.0
    assert pauses.typical_s(calling=False) == KNOBS.return_gap_s


def test_a_few_pauses_that_are_next_to_nothing_do_not_set_the_scale() -> None:
    assert seen([0.0, 4.0, 0.0, 5.0, 4.0, 6.0, 4.0] * 4).typical_s(False) == pytest.approx(4.0)


def test_old_pauses_are_forgotten() -> None:
    assert seen([100.0] * 50 + [2.0] * 40).typical_s(False) == 2.0


def test_a_chance_falls_with_the_pause_and_within_the_horizon_it_is_no_greater() -> None:
    chances = [chance_of_return(3, idle_s, False, PAUSES, KNOBS) for idle_s in (0, 30, 60, 600)]
    assert chances == sorted(chances, reverse=True)
    for idle_s in (0, 30, 60, 600):
        soon = chance_of_return_soon(3, idle_s, False, PAUSES, KNOBS)
        assert 0 <= soon <= chance_of_return(3, idle_s, False, PAUSES, KNOBS)


def test_who_was_asked_to_run_tools_comes_back_more_surely_after_one_turn_too() -> None:
    assert chance_of_return(1, 0, True, PAUSES, KNOBS) > chance_of_return(
        5, 0, False, PAUSES, KNOBS
    )


def test_nobody_comes_back_after_the_expiry() -> None:
    assert chance_of_return(9, KNOBS.expire_s, True, PAUSES, KNOBS) == 0
    assert chance_of_return_soon(9, KNOBS.expire_s, True, PAUSES, KNOBS) == 0


def test_where_nobody_ever_came_back_a_single_turn_is_worth_little() -> None:
    pauses = Pauses.first(KNOBS)
    assert pauses.first_odds == 1
    for _ in range(40):
        pauses = pauses.came(again=False)
    assert pauses.first_odds < 0.2
    assert chance_of_return(1, 0, False, pauses, KNOBS) < 0.2
    assert chance_of_return(2, 0, False, pauses, KNOBS) == pytest.approx(0.8)
    for _ in range(20):
        pauses = pauses.came(again=True)
    assert pauses.first_odds > 0.5

"""Where a guest sits: what it has to read there, and what others lose, counted in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.affinity import Returns, chance_of_return, expected_loss_s
from slotwise.policies.decide import decide
from slotwise.policies.params import Cost, Params
from slotwise.policies.prefix import pack
from slotwise.policies.ram_cache import State
from slotwise.policies.slot_costs import View
from slotwise.policies.types import Hold, Match, Place, Request, Rule, SlotId, SlotView, WaitingView

# A millisecond a token, so that seconds are easy to foresee.
PARAMS = Params(cost=Cost(prefill_c_s=0, prefill_a_s=1e-3, prefill_b_s=0))
STRANGER = Match(0, False, False, "stranger")


def slot(number: int, n: int = 0, **content: Any) -> SlotView:
    """An idle slot that holds ``n`` tokens."""
    given = {"turns": 5 if n else 0, "guest": False, "cached": 0, **content}
    idle_s = given.pop("idle_s", 700.0)
    state = State(view=pack(range(1, n + 1)), held=n, **given)
    return SlotView(
        id=SlotId("e", number),
        window=100_000,
        idle=True,
        view_len=n,
        held=n,
        tail=0,
        guest=state.guest,
        turns=state.turns,
        idle_s=idle_s,
        state=state,
    )


def seat(
    *slots: SlotView, shares: dict[int, int] | None = None, n: int = 300, waited_s: float = 0.0
) -> int | None:
    """The slot that a guest of ``n`` tokens is given; None: it waits."""
    matches = [replace_lcp(s.view_len, (shares or {}).get(i, 0)) for i, s in enumerate(slots)]
    request = Request("g", "p", pack(range(10**6, 10**6 + n)), n, 1, 20, True, "k", kind="side")
    waiting = WaitingView(request, 0.0, matches, owns=False)
    verdict = decide(waiting, View(list(slots), None, PARAMS), waited_s)
    if isinstance(verdict, Hold):
        return None
    assert isinstance(verdict, Place)
    assert verdict.rule is Rule.GUEST
    return verdict.slot


def replace_lcp(view_len: int, lcp: int) -> Match:
    return Match(lcp, lcp == view_len > 0, False, "stranger")


PREAMBLE = {"guest": True, "turns": 1, "idle_s": 5.0}


def test_a_guest_takes_the_slot_that_shares_most_with_it() -> None:
    slots = [slot(0, 1480, **PREAMBLE), slot(1, 1480, **PREAMBLE), slot(2)]
    assert seat(*slots, shares={0: 22, 1: 1470}, n=1480) == 1


def test_an_empty_slot_comes_before_a_guests_text() -> None:
    """The next one like it has to read it all again; a few words in common are not worth that."""
    assert seat(slot(0, 1480, **PREAMBLE), slot(1), shares={0: 22}, n=1480) == 1


def test_a_title_follows_the_title_before_where_they_share_their_instruction() -> None:
    assert seat(slot(0, 300, **PREAMBLE), slot(1), shares={0: 60}) == 0


def test_a_text_that_was_asked_for_again_outlasts_one_that_never_was() -> None:
    again, never = slot(0, 1480, cached=1470, **PREAMBLE), slot(1, 1480, **PREAMBLE)
    assert seat(again, never, n=1480) == 1


def test_a_small_conversation_gives_way_before_one_of_a_hundred_times_its_tokens() -> None:
    """Whether it counts as live matters less than the seconds that are lost."""
    large = slot(0, 13_241, turns=1, idle_s=135.0)
    small = [slot(1, 134, turns=2, idle_s=1.0), slot(2, 174, turns=2, idle_s=1.0)]
    assert seat(large, *small, n=111) == 1


def test_a_guest_waits_in_proportion_to_the_loss_where_nothing_is_cheap() -> None:
    live = slot(0, 20_000, idle_s=1.0)
    lost_s = expected_loss_s(live.state, 0, 1.0, Returns(), PARAMS.cost)
    assert seat(live, waited_s=lost_s / 2 - 0.1) is None
    assert seat(live, waited_s=lost_s / 2) == 0


def test_a_conversation_long_unused_is_a_seat_where_there_is_no_other() -> None:
    assert seat(slot(0, 60_000), slot(1, 60_000, idle_s=5.0)) == 0


def test_what_a_guest_left_is_worth_what_the_next_begins_with() -> None:
    first = State(view=pack(range(1000)), held=1000, guest=True, turns=1)
    asked_again = replace(first, cached=900)
    at_once = chance_of_return(2, 0.0, False, Returns())
    for state, low, high in ((first, 0.1, 0.1), (asked_again, 0.9 * 0.5, 0.9 * at_once + 0.1)):
        lost_s = expected_loss_s(state, 0, 0.0, Returns(), PARAMS.cost)
        assert low - 1e-9 <= lost_s <= high + 1e-9
    rest_s = expected_loss_s(asked_again, 900, 0.0, Returns(), PARAMS.cost)
    assert rest_s == pytest.approx(0.1 * 0.1), "what is shared stays"

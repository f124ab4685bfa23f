"""Conversations that lost their slot and are in the engine's RAM cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineReady,
    Failure,
    RequestArrived,
    RequestFailed,
    RequestProgressed,
)
from slotwise.proxy.core.scheduler import Scheduler
from tests.proxy.script import arrived, dispatches, finished, params, scheduler, serve, text


def in_session(id: str, session: str, *parts: tuple[str, int], turns: int = 2) -> RequestArrived:
    request = arrived(id, text(*parts), parts[0][1], turns).request
    return RequestArrived(replace(request, session=session))


def parked(**policy: Any) -> Scheduler:
    """One slot, a RAM cache, and two conversations that took turns on it: a's is parked."""
    s = scheduler(slots=1, guest=False, keep=False, **{"cache_tokens": 20_000, **policy})
    for name, now in (("a", 0), ("b", 10)):
        serve(s, in_session(f"{name}1", name, (name, 3000)), now)
    return s


def next_of_a() -> RequestArrived:
    return in_session("a2", "a", ("a", 3000), ("a2", 100), turns=2)


def expected_of(actions: list[Action]) -> int:
    return next(a.expected_cached for a in actions if isinstance(a, Dispatch))


def test_a_conversation_that_lost_its_slot_is_expected_back_from_the_ram_cache() -> None:
    assert expected_of(parked().handle(next_of_a(), 20)) == 3000


def test_the_ram_cache_is_not_counted_on_where_that_is_off_or_there_is_none() -> None:
    assert expected_of(parked(ram_cache=False).handle(next_of_a(), 20)) == 0
    assert expected_of(parked(cache_tokens=0).handle(next_of_a(), 20)) == 0


def test_what_the_ram_cache_brings_back_is_no_cold_prefill() -> None:
    s = scheduler(slots=2, guest=False, keep=False, cache_tokens=50_000)
    for name, now in (("a", 0), ("b", 1), ("c", 2)):
        serve(s, in_session(f"{name}1", name, (name, 9000)), now)
    s.handle(in_session("d1", "d", ("d", 9000)), 3)  # is being read
    held = s.handle(in_session("e1", "e", ("e", 9000)), 4)
    assert dispatches(held) == []
    back = s.handle(in_session("a2", "a", ("a", 9000), ("a2", 100), turns=2), 5)
    assert [id for id, _, _ in dispatches(back)] == ["a2"]


def test_an_engine_that_reuses_less_than_was_expected_is_believed() -> None:
    s = parked()
    s.handle(next_of_a(), 20)
    s.handle(finished("a2", cached=0), 25)
    serve(s, in_session("c1", "c", ("c", 3000)), 30)
    third = in_session("b2", "b", ("b", 3000), ("b2", 100), turns=2)
    assert expected_of(s.handle(third, 40)) == 0, "what was parked before is not believed in"


def test_a_request_that_never_reached_the_engine_changed_nothing_there() -> None:
    s = parked()
    s.handle(next_of_a(), 20)
    s.handle(RequestFailed("a2", Failure.ENGINE_LOST, started=False), 21)
    again = RequestArrived(replace(next_of_a().request, id="a3"))
    assert expected_of(s.handle(again, 22)) == 3000


def test_until_the_engine_reports_a_slot_claims_no_more_than_is_sure() -> None:
    s = parked()
    s.handle(next_of_a(), 20)
    assert s.slots()[0].resident == 0
    s.handle(RequestProgressed("a2", 3000, 3000), 21)
    assert s.slots()[0].resident == 3000


def test_what_a_ram_cache_has_is_no_guest_however_short() -> None:
    """It comes back to its copy by cost, not to the seat that costs others least."""
    s = scheduler(slots=1, keep=False, cache_tokens=20_000)
    big, short = ("big", 12_000), ("short", 600)
    serve(s, in_session("a1", "a", short, turns=1), 0)
    serve(s, in_session("b1", "b", big, turns=1), 10)
    [back] = [
        action
        for action in s.handle(in_session("a2", "a", short, ("a2", 50), turns=1), 20)
        if isinstance(action, Dispatch)
    ]
    assert (back.rule, back.expected_cached) == ("affinity", 600)


def filled(empties: bool) -> Scheduler:
    """One slot, and a RAM cache that has x and no room for y, who has the slot."""
    s = Scheduler({"p": params(guest=False, keep=False, cache_tokens=20_000)})
    s.handle(EngineReady("e", "p", (100_000,), None, True, empties=empties), 0.0)
    for name, now in (("x", 0), ("y", 10)):
        serve(s, in_session(f"{name}1", name, (name, 12_000)), now)
    return s


def sent(actions: list[Action]) -> Dispatch:
    return next(action for action in actions if isinstance(action, Dispatch))


def test_a_slot_is_emptied_for_what_the_cache_would_lose_by_its_content() -> None:
    back = in_session("x2", "x", ("x", 12_000), ("x2", 100), turns=2)
    s = filled(empties=True)
    told = sent(s.handle(back, 20))
    assert (told.empties, told.expected_cached, told.displaces) == (True, 12_000, "y1")
    assert told.why.endswith(", emptied first"), "whoever placed it says so"
    s.handle(finished("x2", cached=12_000), 25)
    lost = in_session("y2", "y", ("y", 12_000), ("y2", 100), turns=2)
    assert sent(s.handle(lost, 30)).expected_cached == 0, "what was emptied is nowhere"


def test_without_a_gain_a_slot_is_not_emptied() -> None:
    told = sent(filled(empties=True).handle(in_session("z1", "z", ("z", 500)), 20))
    assert not told.empties, "the cache lets x go, whom nobody asks for and who is as dear as y"


def test_an_engine_whose_slots_cannot_be_emptied_saves_what_they_hold() -> None:
    back = in_session("x2", "x", ("x", 12_000), ("x2", 100), turns=2)
    told = sent(filled(empties=False).handle(back, 20))
    assert (told.empties, told.expected_cached) == (False, 0)

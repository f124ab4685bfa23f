"""A conversation whose prompt begins otherwise than before."""

from __future__ import annotations

from slotwise.proxy.core.slot_holds import SlotHolds
from tests.proxy.script import dispatches, finished, in_session, scheduler, serve


def test_with_and_without_tools_in_turn_both_are_kept() -> None:
    s = scheduler(slots=3, keep=False)
    plain = ("plain", 100), ("c", 3000)
    tools = ("tools", 800), ("c", 3000)
    first = serve(s, in_session("a1", "a", *plain), 0)
    [(_, second, _)] = dispatches(s.handle(in_session("a2", "a", *tools), 10))
    assert second != first, "an empty slot costs nobody anything"
    s.handle(finished("a2", 3800), 12)
    for k, (parts, home) in enumerate([(plain, first), (tools, second)] * 2):
        more = in_session(f"b{k}", "a", *parts, ("more", 50 * (k + 1)))
        [(_, slot, rule)] = dispatches(s.handle(more, 20 + 10 * k))
        assert (slot, rule) == (home, "home")
        s.handle(finished(f"b{k}", len(more.request.tokens)), 25 + 10 * k)


def test_where_all_slots_are_taken_its_own_is_the_cheapest() -> None:
    s = scheduler(slots=2, keep=False)
    serve(s, in_session("o1", "o", ("other", 100), ("o", 3000), turns=2), 0)
    own = serve(s, in_session("a1", "a", ("clock1", 100), ("c", 3000), turns=2), 1)
    again = in_session("a2", "a", ("clock2", 100), ("c", 3000), turns=2)
    [(_, slot, rule)] = dispatches(s.handle(again, 10))
    assert (slot, rule) == (own, "session")


def test_waits_for_owners_are_worth_what_they_brought() -> None:
    slot_holds = SlotHolds("p")
    assert slot_holds.waits_pay == 1
    for _ in range(4):
        slot_holds.waited(slot_holds.returns)  # nobody came back meanwhile
    assert slot_holds.waits_pay < 0.2
    for _ in range(40):
        before = slot_holds.returns
        slot_holds.returns += 1
        slot_holds.waited(before)
    assert slot_holds.waits_pay > 0.8

"""Law 3, and what is believed of a slot after each kind of end."""

from __future__ import annotations

from slotwise.proxy.core.events import (
    AskSlots,
    Failure,
    Mismatch,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
)
from tests.proxy.script import (
    arrived,
    dispatches,
    failed,
    finished,
    scheduler,
    serve,
    slots,
    text,
    turn,
)


def test_a_slot_is_not_used_before_it_is_shown_idle() -> None:
    s = scheduler(slots=1)
    s.handle(arrived("a", text(("a", 500))), 0)
    s.handle(arrived("b", text(("b", 500))), 1)
    assert dispatches(s.handle(failed("a"), 2)) == []
    assert dispatches(s.handle(slots(1.9, (0, False, 500)), 2.1)) == [], "asked before the end"
    [(id, slot, _)] = dispatches(s.handle(slots(2.2, (0, False, 500)), 2.3))
    assert (id, slot) == ("b", 0)


def test_a_request_that_never_reached_the_engine_leaves_all_as_it_was() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    before = s.slots()[0].resident
    s.handle(arrived("b", text(("b", 3000)), 3000), 1)
    s.handle(RequestFailed("b", Failure.CLIENT_GONE, started=False), 2)
    assert (s.slots()[0].state, s.slots()[0].resident) == ("idle", before)


def test_a_refused_request_leaves_the_content_as_it_was() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    before = s.slots()[0].resident
    s.handle(arrived("b", text(("b", 3000)), 3000), 1)
    assert AskSlots("e") in s.handle(failed("b", Failure.REFUSED), 2)
    s.handle(slots(2.1, (0, False, before)), 2.2)
    assert (s.slots()[0].state, s.slots()[0].resident) == ("idle", before)


def test_an_aborted_prefill_claims_only_what_was_reported() -> None:
    s = scheduler(slots=1)
    s.handle(arrived("a", text(("a", 5000))), 0)
    s.handle(RequestProgressed("a", 2048, 0), 1)
    s.handle(failed("a"), 2)
    assert s.slots()[0].resident == 2048


def test_what_an_aborted_prefill_left_out_is_not_claimed_by_the_next_one() -> None:
    s = scheduler(slots=1)
    s.handle(arrived("a", text(("a", 5000))), 0)
    s.handle(RequestProgressed("a", 2048, 0), 1)
    s.handle(failed("a"), 2)
    s.handle(slots(3, (0, False, 2048)), 3.1)
    s.handle(arrived("again", text(("a", 5000))), 4)
    s.handle(failed("again"), 4.1)
    assert s.slots()[0].resident == 2048


def test_a_finished_request_holds_prompt_and_answer_but_the_last_token() -> None:
    s = scheduler(slots=1)
    s.handle(arrived("a", text(("a", 500))), 0)
    s.handle(finished("a", 500, out=40), 1)
    assert s.slots()[0].resident == 539


def test_a_failed_decode_empties_the_mirror() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    s.handle(turn("a2", "a", 2), 1)
    s.handle(failed("a2", Failure.ENGINE_ERROR), 2)
    assert s.slots()[0].resident == 0


def test_fewer_tokens_than_believed_drop_the_belief_and_are_said() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    said = [a for a in s.handle(slots(1, (0, False, 7)), 1.1) if isinstance(a, Mismatch)]
    assert [m.what for m in said] == ["holds 7 tokens, fewer than was believed"]
    assert s.slots()[0].resident == 0


def test_another_slot_than_the_pinned_one_is_said_and_nothing_idle_is_believed() -> None:
    """Field report R39."""
    s = scheduler(slots=2)
    [(_, slot, _)] = dispatches(s.handle(turn("a1", "a", 1), 0))
    actions = s.handle(RequestFinished("a1", 1200, 0, 1, 1 - slot), 1)
    [said] = [a for a in actions if isinstance(a, Mismatch)]
    assert said.what == f"pinned to slot {slot}, the engine used slot {1 - slot}"
    assert AskSlots("e") in actions
    assert {x.state for x in s.slots()} == {"unproven"}


def test_a_foreign_request_on_an_idle_slot_is_noticed() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    actions = s.handle(slots(1, (0, True, 10)), 1.1)
    assert [a.what for a in actions if isinstance(a, Mismatch)] == [
        "busy with a request that is not ours"
    ]
    assert dispatches(s.handle(turn("a2", "a", 2), 2)) == []
    assert dispatches(s.handle(slots(3, (0, False, 10)), 3.1)) != []

"""Rule 3: a conversation goes back to the slot that holds it, and waits for it in reason."""

from __future__ import annotations

import pytest

from slotwise.policies.params import Cost
from slotwise.policies.types import Reason
from slotwise.proxy.core.events import AskSlots, Dispatch
from tests.proxy.script import (
    arrived,
    chat,
    dispatches,
    failed,
    finished,
    in_session,
    next_wake,
    of,
    scheduler,
    serve,
    slots,
    text,
    tick,
    turn,
)


def test_a_conversation_returns_to_its_slot_whatever_its_age() -> None:
    s = scheduler(slots=4)
    home = serve(s, turn("a1", "a", 1), 0)
    serve(s, turn("a2", "a", 2), 10)
    for k in range(4):  # four unrelated short chats in between
        serve(s, arrived(f"x{k}", text((f"x{k}", 300))), 20 + k)
    assert dispatches(s.handle(turn("a3", "a", 3), 5000)) == [("a3", home, "home")]


def test_a_head_that_every_chat_of_a_client_shares_is_no_home() -> None:
    s = scheduler(slots=2)
    first = serve(s, turn("a1", "a", 1), 0)
    serve(s, turn("a2", "a", 2), 1)
    placed = dispatches(s.handle(turn("b1", "b", 1), 2))
    assert placed == [("b1", 1 - first, "new")]


def test_a_busy_home_is_waited_for_and_then_used() -> None:
    s = scheduler(slots=2)
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(turn("a2", "a", 2), 10)  # runs
    assert dispatches(s.handle(turn("a3", "a", 3), 10.1)) == []
    waiting = s.waiting_for("a3", 10.5)
    assert waiting is not None
    assert waiting.reason is Reason.HOME_BUSY
    assert dispatches(s.handle(finished("a2"), 11)) == [("a3", home, "home")]


def test_a_busy_home_is_left_when_elsewhere_is_sooner() -> None:
    s = scheduler(slots=2)
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(arrived("a2", text(*chat("a", 2)), 1200, 2, max_tokens=10_000), 10)
    # a2 is expected to run 0.4 s; at home a3 costs 0.3 s, elsewhere 1.8 s
    actions = s.handle(turn("a3", "a", 3), 10)
    assert dispatches(actions) == []
    assert next_wake(actions) == pytest.approx(11.5)
    actions = tick(s, 11.51)
    assert dispatches(actions) == [], "1.1 s overdue, so 1.1 s more are expected"
    assert next_wake(actions) == pytest.approx(13.01)
    assert dispatches(tick(s, 13.02)) == [("a3", 1 - home, "new")], "2.6 s overdue"


def test_a_home_at_work_for_long_is_left_after_the_patience() -> None:
    long_run = Cost(0, 1e-3, 0, 0.1, expected_output=100_000)
    s = scheduler(slots=2, cost=long_run)
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(arrived("a2", text(*chat("a", 2)), 1200, 2, max_tokens=50_000), 10)
    s.handle(turn("a3", "a", 3), 10)
    assert dispatches(tick(s, 11.4)) == []
    assert dispatches(tick(s, 11.51)) == [("a3", 1 - home, "new")]


FAST = Cost(0, 3e-5, 0, 5e-4)


@pytest.mark.parametrize("stream", [True, False])
def test_a_retry_finds_what_was_given_up_at_its_home_as_soon_as_that_is_shown_idle(
    stream: bool,
) -> None:
    """To the engine every answer is a stream, which ends at its next token."""
    s = scheduler(slots=3, cost=FAST)
    first = of(arrived("r", text(("a", 4954)), 4900, max_tokens=30_000), stream=stream)
    [(_, home, _)] = dispatches(s.handle(first, 0))
    assert AskSlots("e") in s.handle(failed("r"), 3)
    s.handle(arrived("other", text(("b", 300))), 3.1)
    assert dispatches(s.handle(of(first, id="again"), 4)) == []
    placed = dispatches(s.handle(slots(4.1, (home, False, 5000)), 4.1))
    assert placed == [("again", home, "home")]


def test_the_home_rule_can_be_switched_off() -> None:
    s = scheduler(slots=2, home=False)
    home = serve(s, turn("a1", "a", 1), 0)
    assert dispatches(s.handle(turn("a2", "a", 2), 10)) == [("a2", home, "affinity")]


def test_an_edited_last_turn_goes_to_the_slot_it_branches_from() -> None:
    s = scheduler(slots=2)
    home = serve(s, turn("a5", "a", 5), 0)
    parts = [*chat("a", 3), ("edit", 700)]
    edited = arrived("e", text(*parts), first_user_end=1200, turns=4)
    assert dispatches(s.handle(edited, 1)) == [("e", home, "branch")]


def test_a_second_copy_of_a_running_request_waits_behind_the_first() -> None:
    """Field report R08: two live copies never occupy two slots."""
    s = scheduler(slots=2)
    [(_, home, _)] = dispatches(s.handle(turn("r", "a", 1), 0))
    assert dispatches(s.handle(turn("again", "a", 1), 0.1)) == []
    for late in (4, 40, 200):
        assert dispatches(tick(s, late)) == []
    assert dispatches(s.handle(finished("r"), 250)) == [("again", home, "home")]


def test_the_same_prompt_of_another_key_may_go_elsewhere() -> None:
    long_run = Cost(0, 1e-3, 0, 1.0, expected_output=1000)
    s = scheduler(slots=2, cost=long_run)
    [(_, first, _)] = dispatches(s.handle(turn("r", "a", 1), 0))
    s.handle(turn("other", "a", 1, key="someone else"), 0.1)
    assert dispatches(tick(s, 1.4)) == [("other", 1 - first, "new")]


def test_a_retry_returns_to_the_slot_of_the_aborted_attempt_once_it_is_shown_idle() -> None:
    """Field report R08, and law 3."""
    s = scheduler(slots=2)
    [(_, home, _)] = dispatches(s.handle(turn("r", "a", 1), 0))
    assert AskSlots("e") in s.handle(failed("r"), 5)
    assert dispatches(s.handle(turn("retry", "a", 1), 5.1)) == []
    assert dispatches(s.handle(slots(5.2, (home, True, 700)), 5.3)) == [], "still at work"
    assert dispatches(s.handle(slots(7.2, (home, False, 700)), 7.3)) == [("retry", home, "home")]


def test_a_session_keeps_its_slot_when_its_prompt_changed() -> None:
    """Rule 3c. Field report R06: a clock in the system text changes with every turn."""
    s = scheduler(slots=2)
    home = serve(s, in_session("a1", "s1", ("10:31", 50), ("a", 3000)), 0)
    serve(s, in_session("b1", "s2", ("other", 50), ("b", 200)), 1)
    changed = in_session("a2", "s1", ("10:32", 50), ("a", 3000), ("a2", 100))
    [dispatch, *_] = s.handle(changed, 2)
    assert isinstance(dispatch, Dispatch)
    assert (dispatch.slot.id_slot, dispatch.rule) == (home, "session")
    assert dispatch.displaces is None


def test_tokens_tell_more_than_the_session() -> None:
    s = scheduler(slots=2)
    old = serve(s, in_session("a1", "s1", ("head", 50), ("a", 3000)), 0)
    branch = serve(s, in_session("b1", "s2", ("head", 50), ("b", 3000)), 1)
    assert old != branch
    moved = in_session("b2", "s1", ("head", 50), ("b", 3000), ("b2", 100))
    assert dispatches(s.handle(moved, 2)) == [("b2", branch, "home")]


def test_a_raw_prompt_continues_only_what_it_nearly_repeats() -> None:
    s = scheduler(slots=2)
    first = serve(s, arrived("r1", text(("r", 4000)), first_user_end=0), 0)
    more = arrived("r2", text(("r", 4000), ("more", 500)), first_user_end=0)
    assert dispatches(s.handle(more, 1)) == [("r2", first, "home")]
    s.handle(finished("r2"), 2)
    half = arrived("r3", text(("r", 2000), ("other", 2500)), first_user_end=0)
    [(_, _, rule)] = dispatches(s.handle(half, 3))
    assert rule in ("new", "affinity"), "half of a raw prompt is no continuation"

"""Who waits, for how long, in which order; who is told at once that it is no use."""

from __future__ import annotations

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import Refuse
from tests.proxy.script import (
    LONG_ANSWERS,
    arrived,
    cancelled,
    dispatches,
    finished,
    of,
    scheduler,
    serve,
    text,
    tick,
    turn,
)


def test_no_more_run_than_the_profile_allows() -> None:
    s = scheduler(slots=4, max_running=2)
    for k in range(3):
        s.handle(arrived(f"r{k}", text((f"r{k}", 100))), k)
    waiting = s.waiting(3)
    assert [(w.id, w.reason) for w in waiting] == [("r2", Reason.MAX_RUNNING)]
    assert dispatches(s.handle(finished("r0"), 4)) != []


def test_who_still_owns_a_slot_goes_before_a_newcomer() -> None:
    s = scheduler(slots=2, max_running=1, cost=LONG_ANSWERS)
    home = serve(s, of(turn("a2", "a", 2), session="a"), 0)
    s.handle(of(turn("x", "x", 1), session="x"), 1)
    s.handle(of(turn("new", "n", 1), session="n"), 2)
    s.handle(of(turn("a3", "a", 3), session="a"), 3)
    assert dispatches(s.handle(finished("x"), 4)) == [("a3", home, "home")]


def test_where_all_that_lives_stays_warm_whoever_came_first_goes_first() -> None:
    s = scheduler(slots=6, max_running=1, cost=LONG_ANSWERS)
    serve(s, of(turn("a2", "a", 2), session="a"), 0)
    s.handle(of(turn("x", "x", 1), session="x"), 1)
    s.handle(of(turn("new", "n", 1), session="n"), 2)
    s.handle(of(turn("a3", "a", 3), session="a"), 3)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 4))] == ["new"]


def test_nobody_waits_longer_than_in_a_plain_line_and_for_its_own_read() -> None:
    s = scheduler(slots=2, max_running=1)
    serve(s, of(turn("a2", "a", 2), session="a"), 0)
    s.handle(of(turn("x", "x", 1), session="x"), 1)  # 1,200 tokens, 1.2 s and the answer
    s.handle(of(turn("new", "n", 1), session="n"), 1.5)
    s.handle(of(turn("a3", "a", 3), session="a"), 1.6)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 2.2))] == ["a3"]
    s.handle(of(turn("a4", "a", 4), session="a"), 2.5)
    # Some 0.8 s were before it: one and a half times as long, and 1.2 s for its own prompt.
    assert [id for id, _, _ in dispatches(s.handle(finished("a3"), 4.1))] == ["new"]


def test_nobody_is_overtaken_for_ever() -> None:
    s = scheduler(slots=2, max_running=1)
    serve(s, turn("a2", "a", 2), 0)
    s.handle(turn("x", "x", 1), 1)
    s.handle(turn("new", "n", 1), 2)
    s.handle(turn("a3", "a", 3), 300)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 302.1))] == ["new"]


def test_order_can_be_switched_off() -> None:
    s = scheduler(slots=2, max_running=1, order=False)
    serve(s, turn("a2", "a", 2), 0)
    s.handle(turn("x", "x", 1), 1)
    s.handle(turn("new", "n", 1), 2)
    s.handle(turn("a3", "a", 3), 3)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 4))] == ["new"]


def test_a_full_queue_refuses_with_503_and_a_full_key_with_429() -> None:
    """Field report R53: within the limit requests wait, beyond it they are told so at once."""
    s = scheduler(slots=1, max_running=1, max_waiting=8)
    answers = {}
    for k, key in enumerate("aaaabbbcccdde"):
        for action in s.handle(arrived(f"r{k}", text((f"r{k}", 50)), key=key), 0):
            if isinstance(action, Refuse):
                answers[action.id] = (action.status, action.code, action.retry_after_s)
    full_key = (429, "rate_limit_exceeded", 5)
    full = (503, "queue_full", 5)
    assert answers == {"r3": full_key, "r6": full_key, "r9": full_key, "r12": full}


def test_every_wait_ends_at_its_bound() -> None:
    s = scheduler(slots=1, max_running=1, max_wait_s=5, request_timeout_s=100)
    s.handle(arrived("run", text(("run", 50))), 0)
    s.handle(arrived("plain", text(("plain", 50)), stream=False), 0)
    s.handle(arrived("stream", text(("stream", 50)), stream=True), 0)
    [refusal, *_] = tick(s, 10)
    assert isinstance(refusal, Refuse)
    assert (refusal.id, refusal.status, refusal.code) == ("plain", 503, "queue_timeout")
    assert refusal.retry_after_s
    [refusal, *_] = tick(s, 100)
    assert isinstance(refusal, Refuse)
    assert refusal.id == "stream"


def test_a_cancelled_request_is_forgotten() -> None:
    s = scheduler(slots=1)
    s.handle(arrived("run", text(("run", 50))), 0)
    s.handle(arrived("gone", text(("gone", 50))), 0)
    assert s.handle(cancelled("gone"), 1) == []
    assert dispatches(s.handle(finished("run"), 2)) == []
    assert s.waiting(2) == []

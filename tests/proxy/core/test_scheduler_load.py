"""More that live than there are slots: kept slots, cold prompts, side jobs, fairness."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import RequestArrived, RequestFinished, RequestProgressed
from slotwise.proxy.core.scheduler import Scheduler
from tests.proxy.script import (
    LONG_ANSWERS,
    arrived,
    dispatches,
    finished,
    in_session,
    next_wake,
    of,
    scheduler,
    serve,
    text,
    tick,
    title,
    turn,
)


def busy_with_two(**policy: Any) -> Scheduler:
    """Two slots: one holds a conversation that is between two turns, the other is at work."""
    s = scheduler(slots=2, guest=False, cold=False, cost=LONG_ANSWERS, **policy)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    s.handle(in_session("w1", "w", ("work", 50), ("w", 3000)), 0)
    return s


def test_an_idle_slot_is_kept_for_its_owner_while_more_live_than_fit() -> None:
    s = busy_with_two()
    actions = s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    assert dispatches(actions) == []
    waiting = s.waiting_for("b1", 1)
    assert waiting is not None
    assert waiting.reason is Reason.HELD
    assert next_wake(actions) == pytest.approx(60)
    back = in_session("a2", "a", ("head", 50), ("a", 3000), ("a2", 100))
    [(id, _, rule)] = dispatches(s.handle(back, 5))
    assert (id, rule) == ("a2", "home"), "the owner is not held back"


def test_a_kept_slot_is_anybodys_after_its_time() -> None:
    s = busy_with_two(keep_s=40)
    s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    assert dispatches(tick(s, 39.9)) == []
    assert [id for id, _, _ in dispatches(tick(s, 40.1))] == ["b1"]


def test_a_kept_slot_is_waited_for_no_longer_than_its_loss_is_worth() -> None:
    s = scheduler(slots=2, guest=False, cold=False, cost=LONG_ANSWERS)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 300)), 0)
    s.handle(in_session("w1", "w", ("work", 50), ("w", 3000)), 0)
    s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    # some 0.35 s of work, of which four in five are expected to be lost: thirty times that
    assert dispatches(tick(s, 6)) == []
    assert [id for id, _, _ in dispatches(tick(s, 10))] == ["b1"]


def test_a_kept_slot_whose_content_moves_to_the_ram_cache_is_hardly_waited_for() -> None:
    s = busy_with_two(cache_tokens=6200)
    s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    [(id, _, _)] = dispatches(tick(s, 2.5))
    assert id == "b1"
    # What the cache has no room for is lost all the same.
    full = busy_with_two(cache_tokens=3000)
    full.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    assert dispatches(tick(full, 2.5)) == []


def test_before_an_engine_at_rest_nobody_waits_longer_than_the_loss_takes() -> None:
    s = scheduler(slots=1, guest=False)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    s.handle(in_session("b1", "b", ("head", 50), ("b", 3000)), 1)
    # 3 s of work, and four to one that its owner comes back
    assert dispatches(tick(s, 3.0)) == []
    assert [id for id, _, _ in dispatches(tick(s, 3.5))] == ["b1"]


def answered_with_tools(id: str) -> RequestFinished:
    return replace(finished(id), tool_calls=True)


def test_a_slot_is_kept_for_tool_results_after_a_first_turn_too() -> None:
    s = scheduler(slots=2, guest=False, cold=False)
    s.handle(in_session("a1", "a", ("head", 50), ("a", 3000), turns=1), 0)
    s.handle(answered_with_tools("a1"), 0)
    s.handle(in_session("w1", "w", ("work", 50), ("w", 3000)), 0)
    assert dispatches(s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)) == []


def test_nothing_is_kept_while_all_that_live_fit() -> None:
    s = scheduler(slots=4, guest=False)
    first = serve(s, in_session("a1", "a", ("head", 3000), ("a", 50), turns=1), 0)
    newcomer = in_session("b1", "b", ("head", 3000), ("b", 50), turns=1)
    assert dispatches(s.handle(newcomer, 1)) == [("b1", first, "affinity")]


def test_keeping_can_be_switched_off() -> None:
    s = scheduler(slots=1, guest=False, keep=False)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    newcomer = in_session("b1", "b", ("head", 50), ("b", 3000))
    assert dispatches(s.handle(newcomer, 1)) == [("b1", 0, "affinity")]


def test_one_long_prompt_is_read_at_a_time() -> None:
    s = scheduler(slots=3)
    s.handle(arrived("a", text(("a", 9000))), 0)
    assert dispatches(s.handle(arrived("b", text(("b", 9000))), 1)) == []
    waiting = s.waiting_for("b", 1)
    assert waiting is not None
    assert waiting.reason is Reason.COLD_PREFILL
    assert dispatches(s.handle(arrived("short", text(("s", 500))), 2)) != [], "a short one may"
    assert dispatches(s.handle(RequestProgressed("a", 4096, 0), 3)) == []
    assert [id for id, _, _ in dispatches(s.handle(RequestProgressed("a", 9000, 0), 9))] == ["b"]


def test_the_limit_of_cold_prefills_can_be_switched_off() -> None:
    s = scheduler(slots=3, cold=False)
    s.handle(arrived("a", text(("a", 9000))), 0)
    assert dispatches(s.handle(arrived("b", text(("b", 9000))), 1)) != []


def test_a_side_job_lets_the_first_token_go_first() -> None:
    """Field report R20: two requests within 5 ms, two slots."""
    s = scheduler(slots=2)
    assert dispatches(s.handle(turn("main", "m", 1), 0)) != []
    assert dispatches(s.handle(of(title("t"), kind="side"), 0.005)) == []
    waiting = s.waiting_for("t", 1)
    assert waiting is not None
    assert waiting.reason is Reason.BACKGROUND
    assert dispatches(s.handle(RequestProgressed("main", 1200, 0), 2)) == [("t", 0, "guest")]


def test_a_side_job_does_not_wait_for_what_waits_for_a_slot_of_its_own() -> None:
    """The newcomer waits for a slot that is kept for its owner; the third slot stands idle."""
    s = scheduler(slots=3, cold=False)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    kept = in_session("a2", "a", ("head", 50), ("a", 3000), ("a2", 50))
    s.handle(kept, 1)
    s.handle(RequestProgressed("a2", 3100, 0), 2)
    again = RequestArrived(replace(kept.request, id="a3"))
    assert dispatches(s.handle(again, 3)) == [], "waits for its home"
    [(_, _, rule)] = dispatches(s.handle(of(title("t"), kind="side"), 4))
    assert rule == "guest"


def test_a_side_job_waits_no_longer_than_its_bound() -> None:
    s = scheduler(slots=2, cost=LONG_ANSWERS)
    s.handle(turn("main", "m", 1), 0)
    s.handle(of(title("t"), kind="side"), 1)
    assert dispatches(tick(s, 120.9)) == []
    assert dispatches(tick(s, 121.1)) == [("t", 0, "guest")]


def test_the_key_that_was_served_least_goes_first() -> None:
    s = scheduler(slots=2, max_running=1, cold=False)
    serve(s, arrived("much", text(("much", 30_000)), key="greedy"), 0)
    s.handle(arrived("run", text(("run", 100)), key="third"), 1)
    s.handle(arrived("g", text(("g", 5000)), key="greedy"), 2)
    s.handle(arrived("m", text(("m", 5000)), key="modest"), 3)
    assert [id for id, _, _ in dispatches(s.handle(finished("run"), 4))] == ["m"]


def test_a_side_job_waits_for_half_as_long_as_in_a_plain_line() -> None:
    s = scheduler(slots=2)
    s.handle(turn("main", "m", 1), 0)  # 1,200 tokens, 1.3 s in all
    s.handle(of(title("t"), kind="side"), 0.1)
    assert dispatches(tick(s, 0.6)) == []
    assert dispatches(tick(s, 0.8)) == [("t", 0, "guest")]


def test_one_shot_calls_of_many_sessions_still_share_their_preamble() -> None:
    """Each is the first call of a session of its own; none is kept from the next."""
    s = scheduler(slots=4)
    taken = []
    for k in range(12):
        call = in_session(f"c{k}", f"s{k}", ("preamble", 5000), (f"c{k}", 800), turns=1)
        taken.append(serve(s, call, k * 3.0))
    assert taken == [3] * 12

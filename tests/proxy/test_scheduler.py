"""The rules, each as a short script of events and the whole answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from policies.types import Reason
from proxy.events import (
    AskSlots,
    Dispatch,
    EngineLost,
    EngineReady,
    Failure,
    Mismatch,
    Refuse,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
)
from proxy.scheduler import Scheduler
from tests.proxy.script import (
    arrived,
    cancelled,
    dispatches,
    failed,
    finished,
    next_wake,
    scheduler,
    serve,
    slots,
    text,
    tick,
)

HEAD = ("head", 1000)  # a client's system text and tools


def chat(name: str, turn: int, head: tuple[str, int] = HEAD) -> tuple[tuple[str, int], ...]:
    """The parts of a conversation's prompt: head, first user turn, then 300 tokens a turn."""
    later = [(f"{name}{k}", 300) for k in range(2, turn + 1)]
    return (head, (f"{name}1", 200), *later)


def turn(id: str, name: str, n: int, key: str = "k") -> RequestArrived:
    """Arrival of turn ``n`` of a conversation; its first user turn ends at token 1200."""
    return arrived(id, text(*chat(name, n)), first_user_end=1200, turns=n, key=key)


# ---------------------------------------------------------------- rule 3: home


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
    s = scheduler(slots=2, home={"patience_min_s": 3, "patience_max_s": 30})
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(arrived("a2", text(*chat("a", 2)), 1200, 2, max_tokens=10_000), 10)
    # a2 is expected to run 0.1 s; at home a3 costs 0.3 s, elsewhere 1.8 s
    actions = s.handle(turn("a3", "a", 3), 10)
    assert dispatches(actions) == []
    assert next_wake(actions) == pytest.approx(13)
    assert dispatches(tick(s, 13.01)) == [], "what is left of the run is estimated at nothing"
    assert dispatches(tick(s, 310.01)) == [("a3", 1 - home, "new")], "after home_max_wait_s"


def test_a_home_at_work_for_long_is_left_after_the_patience() -> None:
    long_run = {"prefill_c_s": 0, "prefill_a_s": 0.001, "prefill_b_s": 0, "decode_s": 0.1}
    s = scheduler(slots=2, cost={**long_run, "expected_output": 100_000})
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(arrived("a2", text(*chat("a", 2)), 1200, 2, max_tokens=50_000), 10)
    s.handle(turn("a3", "a", 3), 10)
    assert dispatches(tick(s, 12.9)) == []
    assert dispatches(tick(s, 13.01)) == [("a3", 1 - home, "new")]


def test_patience_can_be_switched_off() -> None:
    s = scheduler(slots=2, home={"patience": False})
    home = serve(s, turn("a1", "a", 1), 0)
    s.handle(turn("a2", "a", 2), 10)
    assert dispatches(s.handle(turn("a3", "a", 3), 10)) == [("a3", 1 - home, "new")]


def test_the_home_rule_can_be_switched_off() -> None:
    s = scheduler(slots=2, home={"enabled": False})
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
    long_run = {"prefill_c_s": 0, "prefill_a_s": 0.001, "prefill_b_s": 0, "decode_s": 1}
    s = scheduler(slots=2, cost={**long_run, "expected_output": 1000})
    [(_, first, _)] = dispatches(s.handle(turn("r", "a", 1), 0))
    s.handle(turn("other", "a", 1, key="someone else"), 0.1)
    assert dispatches(tick(s, 31)) == [("other", 1 - first, "new")]


def test_a_retry_returns_to_the_slot_of_the_aborted_attempt_once_it_is_shown_idle() -> None:
    """Field report R08, and law 3."""
    s = scheduler(slots=2)
    [(_, home, _)] = dispatches(s.handle(turn("r", "a", 1), 0))
    assert AskSlots("e") in s.handle(failed("r"), 5)
    assert dispatches(s.handle(turn("retry", "a", 1), 5.1)) == []
    assert dispatches(s.handle(slots(5.2, (home, True, 700)), 5.3)) == [], "still at work"
    assert dispatches(s.handle(slots(7.2, (home, False, 700)), 7.3)) == [("retry", home, "home")]


def in_session(id: str, session: str, *parts: tuple[str, int], turns: int = 2) -> RequestArrived:
    request = arrived(id, text(*parts), parts[0][1] + parts[1][1], turns).request
    return RequestArrived(replace(request, session=session))


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


def test_the_session_rule_can_be_switched_off() -> None:
    s = scheduler(slots=2, home={"by_session": False})
    home = serve(s, in_session("a1", "s1", ("10:31", 50), ("a", 3000)), 0)
    changed = in_session("a2", "s1", ("10:32", 50), ("a", 3000), ("a2", 100))
    assert dispatches(s.handle(changed, 2)) == [("a2", 1 - home, "new")]


def test_a_raw_prompt_continues_only_what_it_nearly_repeats() -> None:
    s = scheduler(slots=2)
    first = serve(s, arrived("r1", text(("r", 4000)), first_user_end=0), 0)
    more = arrived("r2", text(("r", 4000), ("more", 500)), first_user_end=0)
    assert dispatches(s.handle(more, 1)) == [("r2", first, "home")]
    s.handle(finished("r2"), 2)
    half = arrived("r3", text(("r", 2000), ("other", 2500)), first_user_end=0)
    [(_, _, rule)] = dispatches(s.handle(half, 3))
    assert rule in ("new", "affinity"), "half of a raw prompt is no continuation"


# ---------------------------------------------------------------- rule 4: guests


def resident(s: Scheduler, name: str, at: float, turns: int = 3, n: int = 20_000) -> int:
    """A long conversation of several turns; returns its slot."""
    return serve(s, arrived(f"{name}@{at}", text((name, n)), n // 2, turns), at)


def title(id: str, n: int = 300) -> RequestArrived:
    return arrived(id, text((f"title {id}", n)))


def test_a_guest_never_evicts_a_resident_beside_an_empty_slot() -> None:
    s = scheduler(slots=3)
    a, b = resident(s, "a", 0), resident(s, "b", 1)
    [free] = {0, 1, 2} - {a, b}
    assert dispatches(s.handle(title("t"), 2)) == [("t", free, "guest")]


def test_the_next_guest_follows_the_first_onto_its_slot() -> None:
    s = scheduler(slots=3)
    a, b = resident(s, "a", 0), resident(s, "b", 1)
    [free] = {0, 1, 2} - {a, b}
    serve(s, title("t1"), 2)
    assert dispatches(s.handle(title("t2"), 3)) == [("t2", free, "guest")]


def test_guests_take_the_lowest_of_equal_slots() -> None:
    s = scheduler(slots=4)
    resident(s, "a", 0)
    assert dispatches(s.handle(title("t1"), 1)) == [("t1", 0, "guest")]
    assert dispatches(s.handle(title("t2"), 1)) == [("t2", 1, "guest")]


def test_a_guest_waits_before_it_displaces_a_live_conversation() -> None:
    s = scheduler(slots=1)
    resident(s, "a", 0)
    actions = s.handle(title("t"), 1)
    assert dispatches(actions) == []
    # 20 s of work, and somebody comes for it within five minutes by 0.77; at 2 s per second waited
    assert next_wake(actions) == pytest.approx(1 + 20 * 0.7694 / 2, rel=1e-3)
    assert dispatches(tick(s, 8.6)) == []
    assert dispatches(tick(s, 8.8)) == [("t", 0, "guest")]


def test_a_guest_waits_for_the_slot_of_another_that_ends_soon() -> None:
    s = scheduler(slots=2)
    resident(s, "a", 0)
    seat = resident(s, "b", 0)
    first = title("t1")
    s.handle(RequestArrived(replace(first.request, max_tokens=20)), 1)
    assert dispatches(tick(s, 30)) == [("t1", seat, "guest")]
    # 20 s would be lost on the other slot, and more than ten were waited for the first
    assert dispatches(s.handle(title("t2"), 30.1)) == []
    assert dispatches(tick(s, 45)) == []
    assert dispatches(s.handle(finished("t1"), 46)) == [("t2", seat, "guest")]


def test_waiting_for_another_guest_can_be_switched_off() -> None:
    s = scheduler(slots=2, guest={"follow": False, "break_ratio": 1000})
    resident(s, "a", 0)
    resident(s, "b", 0)
    assert len(dispatches(s.handle(title("t1"), 1)) + dispatches(tick(s, 2))) == 1
    assert len(dispatches(s.handle(title("t2"), 3)) + dispatches(tick(s, 4))) == 1


def test_a_guest_takes_the_cheapest_slot_after_its_longest_wait() -> None:
    s = scheduler(slots=2, guest={"break_ratio": 0, "guest_max_wait_s": 60})
    resident(s, "a", 0, n=40_000)
    cheap = resident(s, "b", 0, n=20_000)
    s.handle(title("t"), 1)
    assert dispatches(tick(s, 60.9)) == []
    assert dispatches(tick(s, 61.1)) == [("t", cheap, "guest")]


def test_a_conversation_long_unused_makes_way_for_a_guest() -> None:
    s = scheduler(slots=2)
    old = resident(s, "a", 0)
    resident(s, "b", 300)
    assert dispatches(s.handle(title("t"), 601)) == [("t", old, "guest")]


def test_the_main_conversation_keeps_its_slot_past_a_title_job() -> None:
    """Field report R02: the title job quotes the chat inside one user message."""
    s = scheduler(slots=2)
    home = serve(s, turn("m1", "m", 1), 0)
    serve(s, turn("m2", "m", 2), 10)
    [(_, seat, _)] = dispatches(s.handle(title("t"), 11))
    assert seat != home
    s.handle(finished("t"), 12)
    assert dispatches(s.handle(turn("m3", "m", 3), 13)) == [("m3", home, "home")]


def test_sub_agents_leave_the_parents_slot_alone() -> None:
    """Field report R18: another system text, two slots."""
    s = scheduler(slots=2)
    parent = serve(s, turn("p1", "p", 1), 0)
    for k in range(3):
        sub = arrived(
            f"s{k}",
            text(("sub head", 800), *[(f"s{j}", 300) for j in range(k + 1)]),
            first_user_end=1100,
            turns=k + 1,
        )
        assert serve(s, sub, 1 + k) != parent
    assert dispatches(s.handle(turn("p2", "p", 2), 9)) == [("p2", parent, "home")]


def test_a_side_job_is_a_guest_whatever_its_length() -> None:
    s = scheduler(slots=2)
    resident(s, "a", 0, n=5000)
    request = replace(title("t", 4000).request, kind="side")
    assert dispatches(s.handle(RequestArrived(request), 1)) == [("t", 0, "guest")]


def test_a_side_job_with_the_sessions_id_leaves_its_slot_alone() -> None:
    s = scheduler(slots=2)
    home = serve(s, in_session("a1", "s1", ("head", 50), ("a", 3000)), 0)
    side = replace(title("t", 900).request, kind="side", session="s1")
    assert dispatches(s.handle(RequestArrived(side), 1)) == [("t", 1 - home, "guest")]


def test_what_a_side_job_left_is_a_guests_wherever_it_sat() -> None:
    s = scheduler(slots=2)
    request = replace(title("t1").request, kind="side")
    first = serve(s, RequestArrived(request), 0)
    assert s.slots()[first].guest


def test_the_guest_rule_can_be_switched_off() -> None:
    s = scheduler(slots=1, guest={"enabled": False})
    resident(s, "a", 0)
    assert dispatches(s.handle(title("t"), 1)) == [("t", 0, "affinity")]


# ---------------------------------------------------------------- rule 5: newcomers


def test_a_newcomer_takes_the_highest_of_the_empty_slots() -> None:
    s = scheduler(slots=4)
    assert dispatches(s.handle(turn("a", "a", 1), 0)) == [("a", 3, "new")]


def test_one_shot_calls_with_a_shared_preamble_follow_each_other() -> None:
    s = scheduler(slots=4)
    calls = [arrived(f"c{k}", text(("preamble", 5000), (f"c{k}", 800)), 5800) for k in range(5)]
    taken = [serve(s, call, at) for at, call in enumerate(calls)]
    assert taken == [3] * 5


def test_a_newcomer_beside_a_long_conversation_reads_its_head_on_an_empty_slot() -> None:
    s = scheduler(slots=2)
    long = serve(s, arrived("a", text(("head", 8000), ("a", 32_000)), 9000, turns=9), 0)
    newcomer = arrived("b", text(("head", 8000), ("b", 1000)), 9000)
    assert dispatches(s.handle(newcomer, 1)) == [("b", 1 - long, "new")]


def test_a_newcomer_displaces_what_is_least_likely_to_be_missed() -> None:
    s = scheduler(slots=2, guest={"enabled": False})
    stale = resident(s, "a", 0)
    resident(s, "b", 900)
    newcomer = arrived("c", text(("c", 3000)), 3000)
    assert dispatches(s.handle(newcomer, 1000)) == [("c", stale, "affinity")]


def test_without_destruction_the_longest_prefix_wins() -> None:
    s = scheduler(slots=2, affinity={"destruction": 0, "protect_live": False})
    long = serve(s, arrived("a", text(("head", 8000), ("a", 32_000)), 9000, turns=9), 0)
    newcomer = arrived("b", text(("head", 8000), ("b", 1000)), 9000)
    assert dispatches(s.handle(newcomer, 1)) == [("b", long, "affinity")]


def test_without_affinity_the_least_recently_used_slot_is_taken() -> None:
    s = scheduler(slots=2, affinity={"enabled": False}, guest={"enabled": False})
    resident(s, "b", 0, n=30_000)
    second = resident(s, "a", 5)
    resident(s, "b", 10, n=30_000)
    assert dispatches(s.handle(arrived("c", text(("c", 3000)), 3000), 20)) == [
        ("c", second, "affinity")
    ]


# ---------------------------------------------------------------- windows and pools


def test_a_prompt_longer_than_every_window_is_refused_with_both_numbers() -> None:
    s = scheduler(slots=2, window=4096)
    [refusal] = s.handle(arrived("a", text(("a", 5000))), 0)
    assert isinstance(refusal, Refuse)
    assert (refusal.status, refusal.code) == (400, "exceed_context_size_error")
    assert (refusal.n_prompt_tokens, refusal.n_ctx) == (5000, 4096)


def test_the_prompt_and_its_room_choose_the_window() -> None:
    s = scheduler(window=(4096, 4096, 16_384), cold={"enabled": False})
    small = arrived("a", text(("a", 3500)), max_tokens=2000)
    assert dispatches(s.handle(small, 0)) == [("a", 2, "new")]
    assert dispatches(s.handle(arrived("b", text(("b", 2500)), max_tokens=500), 1)) == [
        ("b", 1, "new")
    ]
    assert dispatches(s.handle(arrived("c", text(("c", 9000))), 2)) == []
    waiting = s.waiting_for("c", 2)
    assert waiting is not None
    assert waiting.reason is Reason.WINDOW


def test_the_largest_window_takes_what_the_engine_would() -> None:
    s = scheduler(window=(1024, 4096))
    assert dispatches(s.handle(arrived("a", text(("a", 4095)), max_tokens=9000), 0)) == [
        ("a", 1, "new")
    ]


def test_max_tokens_is_cut_to_the_room() -> None:
    s = scheduler(slots=1, window=4096)
    [dispatch, *_] = s.handle(arrived("a", text(("a", 3000)), max_tokens=64_000), 0)
    assert dispatch.max_tokens == 4096 - 3000 - 64  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", [None, -1, 500])
def test_max_tokens_that_fits_stays_as_it_was(asked: int | None) -> None:
    s = scheduler(slots=1, window=4096)
    [dispatch, *_] = s.handle(arrived("a", text(("a", 3000)), max_tokens=asked), 0)
    assert dispatch.max_tokens is None  # type: ignore[union-attr]


def test_a_unified_pool_is_never_promised_twice() -> None:
    s = scheduler(slots=2, window=10_000, pool=10_000)
    assert dispatches(s.handle(arrived("a", text(("a", 6000)), max_tokens=1000), 0))
    assert dispatches(s.handle(arrived("b", text(("b", 6000)), max_tokens=1000), 1)) == []
    waiting = s.waiting_for("b", 1)
    assert waiting is not None
    assert waiting.reason is Reason.POOL
    assert dispatches(s.handle(finished("a", 6000), 2)) != []


def test_idle_slots_that_a_unified_pool_may_have_emptied_are_not_believed() -> None:
    s = scheduler(slots=2, window=10_000, pool=10_000, guest={"enabled": False})
    first = serve(s, arrived("a", text(("a", 6000)), 3000, turns=2), 0)
    s.handle(arrived("b", text(("b", 6000)), 3000, turns=2), 1)
    assert s.slots()[first].resident == 0


# ---------------------------------------------------------------- the queue


def test_no_more_run_than_the_profile_allows() -> None:
    s = scheduler(slots=4, queue={"max_running": 2})
    for k in range(3):
        s.handle(arrived(f"r{k}", text((f"r{k}", 100))), k)
    waiting = s.waiting(3)
    assert [(w.id, w.reason) for w in waiting] == [("r2", Reason.MAX_RUNNING)]
    assert dispatches(s.handle(finished("r0"), 4)) != []


def test_who_still_owns_a_slot_goes_before_a_newcomer() -> None:
    s = scheduler(slots=2, queue={"max_running": 1})
    home = serve(s, turn("a2", "a", 2), 0)
    s.handle(turn("x", "x", 1), 1)
    s.handle(turn("new", "n", 1), 2)
    s.handle(turn("a3", "a", 3), 3)
    assert dispatches(s.handle(finished("x"), 4)) == [("a3", home, "home")]


def test_nobody_is_overtaken_for_ever() -> None:
    s = scheduler(slots=2, queue={"max_running": 1})
    serve(s, turn("a2", "a", 2), 0)
    s.handle(turn("x", "x", 1), 1)
    s.handle(turn("new", "n", 1), 2)
    s.handle(turn("a3", "a", 3), 300)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 302.1))] == ["new"]


def test_order_can_be_switched_off() -> None:
    s = scheduler(slots=2, queue={"max_running": 1}, order={"enabled": False})
    serve(s, turn("a2", "a", 2), 0)
    s.handle(turn("x", "x", 1), 1)
    s.handle(turn("new", "n", 1), 2)
    s.handle(turn("a3", "a", 3), 3)
    assert [id for id, _, _ in dispatches(s.handle(finished("x"), 4))] == ["new"]


def test_a_full_queue_refuses_with_503_and_a_full_key_with_429() -> None:
    """Field report R53: within the limit requests wait, beyond it they are told so at once."""
    queue = {"max_running": 1, "max_waiting": 3, "max_waiting_per_key": 2}
    s = scheduler(slots=1, queue=queue)
    answers = {}
    for k, key in enumerate(["a", "a", "a", "a", "b", "b"]):
        for action in s.handle(arrived(f"r{k}", text((f"r{k}", 50)), key=key), 0):
            if isinstance(action, Refuse):
                answers[action.id] = (action.status, action.code, action.retry_after_s)
    assert answers == {"r3": (429, "rate_limit_exceeded", 5), "r5": (503, "queue_full", 5)}


def test_every_wait_ends_at_its_bound() -> None:
    queue = {"max_running": 1, "queue_timeout_s": 10, "request_timeout_s": 100}
    s = scheduler(slots=1, queue=queue)
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


# ---------------------------------------------------------------- law 3 and the mirrors


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


# ---------------------------------------------------------------- engines come and go


def test_requests_wait_for_an_engine_and_go_when_it_is_ready() -> None:
    s = scheduler(slots=1)
    s.handle(EngineLost("e", "crashed"), 1)
    assert dispatches(s.handle(turn("a", "a", 1), 2)) == []
    waiting = s.waiting_for("a", 2)
    assert waiting is not None
    assert waiting.reason is Reason.ENGINE_LOADING
    assert dispatches(s.handle(EngineReady("e", "p", (4096,), None, True), 9)) == [("a", 0, "new")]


def test_a_restarted_engine_holds_nothing_and_old_requests_do_not_touch_it() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    s.handle(turn("a2", "a", 2), 1)
    s.handle(EngineLost("e", "crashed"), 2)
    s.handle(EngineReady("e", "p", (100_000,), None, True), 3)
    s.handle(failed("a2", Failure.ENGINE_LOST), 4)
    assert [(x.state, x.resident) for x in s.slots()] == [("idle", 0)]


def test_an_engine_that_does_not_keep_pins_is_served_without_them() -> None:
    s = scheduler(slots=2, pins=False)
    assert dispatches(s.handle(turn("a", "a", 1), 0)) == [("a", -1, "unpinned")]
    assert dispatches(s.handle(turn("b", "b", 1), 0)) == [("b", -1, "unpinned")]
    assert dispatches(s.handle(turn("c", "c", 1), 0)) == []
    assert dispatches(s.handle(finished("a"), 1)) == [("c", -1, "unpinned")]


def test_the_snapshot_is_plain_data_without_prompts() -> None:
    s = scheduler(slots=2, queue={"max_running": 1})
    s.handle(turn("a", "a", 1), 0)
    s.handle(turn("b", "b", 1), 1)
    found = json.loads(json.dumps(s.snapshot(3)))
    assert found["p"]["waiting"][0]["id"] == "b"
    assert found["p"]["waiting"][0]["waited_s"] == 2
    assert found["p"]["peak_running"] == 1


def test_the_snapshot_says_what_each_slot_is_doing_and_what_it_holds() -> None:
    def parts() -> list[object]:
        slot = s.snapshot(5)["p"]["engines"]["e"]["slots"][0]  # type: ignore[index]
        names = ("text", "since_s", "prompt", "cached", "computed", "answer", "resident")
        return [slot[name] for name in names]

    s = scheduler(slots=1)
    assert parts() == ["empty", 5, 0, 0, 0, 0, 0]
    long = arrived("a", text(("head", 3000)))
    s.handle(long, 1)
    s.handle(RequestProgressed("a", 2048, 500), 2)
    assert parts() == ["reading 2,048 of 3,000", 4, 3000, 500, 1548, 0, 2048]
    s.handle(RequestProgressed("a", 3000, 500), 3)
    assert parts() == ["answering", 4, 3000, 500, 2500, 0, 3000]
    s.handle(finished("a", 3000, 499, out=11), 4)
    assert parts() == ["idle", 1, 3000, 499, 2501, 10, 3010]


# ---------------------------------------------------------------- under load


def of(event: RequestArrived, **changes: object) -> RequestArrived:
    """The same arrival with other fields of its request."""
    return RequestArrived(replace(event.request, **changes))  # type: ignore[arg-type]


KEEPING = {"keep_s": 60}


def busy_with_two(keep: dict[str, Any]) -> Scheduler:
    """Two slots: one holds a conversation that is between two turns, the other is at work."""
    off = {"enabled": False}
    s = scheduler(slots=2, guest=off, cap=off, cold=off, keep=keep)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    s.handle(in_session("w1", "w", ("work", 50), ("w", 3000)), 0)
    return s


def test_an_idle_slot_is_kept_for_its_owner_while_more_live_than_fit() -> None:
    s = busy_with_two(KEEPING)
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
    s = busy_with_two(KEEPING)
    s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)
    assert dispatches(tick(s, 59.9)) == []
    assert [id for id, _, _ in dispatches(tick(s, 60.1))] == ["b1"]


def test_before_an_engine_at_rest_nobody_waits_longer_than_the_loss_takes() -> None:
    s = scheduler(slots=1, guest={"enabled": False}, cap={"enabled": False}, keep=KEEPING)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    s.handle(in_session("b1", "b", ("head", 50), ("b", 3000)), 1)
    # 3 s of work, and four to one that its owner comes back
    assert dispatches(tick(s, 3.1)) == []
    assert [id for id, _, _ in dispatches(tick(s, 3.5))] == ["b1"]


def answered_with_tools(id: str) -> RequestFinished:
    return replace(finished(id), tool_calls=True)


def test_a_slot_is_kept_for_tool_results_after_a_first_turn_too() -> None:
    off = {"enabled": False}
    s = scheduler(slots=2, guest=off, cap=off, cold=off, keep=KEEPING)
    s.handle(in_session("a1", "a", ("head", 50), ("a", 3000), turns=1), 0)
    s.handle(answered_with_tools("a1"), 0)
    s.handle(in_session("w1", "w", ("work", 50), ("w", 3000)), 0)
    assert dispatches(s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)) == []


def test_a_slot_is_not_kept_where_its_owner_takes_longer_as_a_rule() -> None:
    s = busy_with_two({"keep_s": 20})  # the pause is 60 s until some were seen
    assert dispatches(s.handle(in_session("b1", "b", ("new", 50), ("b", 3000)), 1)) != []


def test_nothing_is_kept_while_all_that_live_fit() -> None:
    s = scheduler(slots=4, guest={"enabled": False})
    first = serve(s, in_session("a1", "a", ("head", 3000), ("a", 50), turns=1), 0)
    newcomer = in_session("b1", "b", ("head", 3000), ("b", 50), turns=1)
    assert dispatches(s.handle(newcomer, 1)) == [("b1", first, "affinity")]


def test_keeping_can_be_switched_off() -> None:
    s = scheduler(
        slots=1, guest={"enabled": False}, cap={"enabled": False}, keep={"enabled": False}
    )
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    newcomer = in_session("b1", "b", ("head", 50), ("b", 3000))
    assert dispatches(s.handle(newcomer, 1)) == [("b1", 0, "affinity")]


def test_new_conversations_wait_while_those_that_live_fill_the_slots() -> None:
    s = scheduler(slots=2, keep={"enabled": False})
    for name in ("a", "b"):
        serve(s, in_session(f"{name}1", name, (name, 50), (name, 3000)), 0)
        s.handle(in_session(f"{name}2", name, (name, 50), (name, 3000), ("2", 9)), 1)
    newcomer = in_session("c1", "c", ("c", 50), ("c", 3000), turns=1)
    assert dispatches(s.handle(newcomer, 2)) == []
    s.handle(finished("a2"), 3)
    waiting = s.waiting_for("c1", 3)
    assert waiting is not None
    assert waiting.reason is Reason.SESSION_CAP
    assert [id for id, _, _ in dispatches(tick(s, 32.1))] == ["c1"], "after its longest wait"


def test_the_cap_can_be_switched_off() -> None:
    s = scheduler(slots=2, keep={"enabled": False}, cap={"enabled": False})
    for name in ("a", "b"):
        serve(s, in_session(f"{name}1", name, (name, 50), (name, 3000)), 0)
    newcomer = in_session("c1", "c", ("c", 50), ("c", 3000), turns=1)
    assert [id for id, _, _ in dispatches(s.handle(newcomer, 2))] == ["c1"]


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


def test_a_long_prompt_that_reports_nothing_is_read_by_the_cost_model() -> None:
    s = scheduler(slots=3)
    s.handle(arrived("a", text(("a", 9000)), stream=False), 0)
    actions = s.handle(arrived("b", text(("b", 9000))), 1)
    assert next_wake(actions) == pytest.approx(9)
    assert [id for id, _, _ in dispatches(tick(s, 9.1))] == ["b"]


def test_the_limit_of_cold_prefills_can_be_switched_off() -> None:
    s = scheduler(slots=3, cold={"enabled": False})
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
    off = {"enabled": False}
    s = scheduler(slots=3, cap=off, cold=off, keep=KEEPING)
    serve(s, in_session("a1", "a", ("head", 50), ("a", 3000)), 0)
    kept = in_session("a2", "a", ("head", 50), ("a", 3000), ("a2", 50))
    s.handle(kept, 1)
    s.handle(RequestProgressed("a2", 3100, 0), 2)
    again = RequestArrived(replace(kept.request, id="a3"))
    assert dispatches(s.handle(again, 3)) == [], "waits for its home"
    [(_, _, rule)] = dispatches(s.handle(of(title("t"), kind="side"), 4))
    assert rule == "guest"


def test_a_side_job_waits_no_longer_than_its_bound() -> None:
    s = scheduler(slots=2)
    s.handle(turn("main", "m", 1), 0)
    s.handle(of(title("t"), kind="side"), 1)
    assert dispatches(tick(s, 120.9)) == []
    assert dispatches(tick(s, 121.1)) == [("t", 0, "guest")]


def test_side_jobs_are_like_others_where_the_rule_is_off() -> None:
    s = scheduler(slots=2, order={"background": False})
    s.handle(turn("main", "m", 1), 0)
    assert dispatches(s.handle(of(title("t"), kind="side"), 1)) != []


def test_the_key_that_was_served_least_goes_first() -> None:
    s = scheduler(slots=2, queue={"max_running": 1}, cold={"enabled": False})
    serve(s, arrived("much", text(("much", 30_000)), key="greedy"), 0)
    s.handle(arrived("run", text(("run", 100)), key="third"), 1)
    s.handle(arrived("g", text(("g", 5000)), key="greedy"), 2)
    s.handle(arrived("m", text(("m", 5000)), key="modest"), 3)
    assert [id for id, _, _ in dispatches(s.handle(finished("run"), 4))] == ["m"]


def test_older_conversations_go_before_younger_ones() -> None:
    s = scheduler(slots=3, queue={"max_running": 1}, keep={"enabled": False})
    serve(s, in_session("old1", "old", ("old", 50), ("o", 3000)), 0)
    serve(s, in_session("young1", "young", ("young", 50), ("y", 3000)), 5)
    s.handle(arrived("run", text(("run", 100))), 6)
    s.handle(in_session("young2", "young", ("young", 50), ("y", 3000), ("2", 9)), 7)
    s.handle(in_session("old2", "old", ("old", 50), ("o", 3000), ("2", 9)), 8)
    assert [id for id, _, _ in dispatches(s.handle(finished("run"), 9))] == ["old2"]


def test_one_shot_calls_of_many_sessions_still_share_their_preamble() -> None:
    """Each is the first call of a session of its own; none is kept from the next."""
    s = scheduler(slots=4)
    taken = []
    for k in range(12):
        call = in_session(f"c{k}", f"s{k}", ("preamble", 5000), (f"c{k}", 800), turns=1)
        taken.append(serve(s, call, k * 3.0))
    assert taken == [3] * 12

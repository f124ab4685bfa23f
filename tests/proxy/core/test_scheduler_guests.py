"""Rule 4: short work that shares little sits where it costs nobody a conversation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotwise.policies.types import SIDE_JOB
from slotwise.proxy.core.events import RequestArrived
from tests.proxy.script import (
    arrived,
    dispatches,
    finished,
    in_session,
    next_wake,
    of,
    resident,
    scheduler,
    serve,
    text,
    tick,
    title,
    turn,
)


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
    # 20 s of work, and somebody comes for it by 0.8; at 2 s per second waited
    assert next_wake(actions) == pytest.approx(1 + 20 * 0.8 / 2, rel=1e-3)
    assert dispatches(tick(s, 8.9)) == []
    assert dispatches(tick(s, 9.1)) == [("t", 0, "guest")]


def test_a_guest_waits_for_the_slot_of_another_that_ends_soon() -> None:
    s = scheduler(slots=2)
    resident(s, "a", 0)
    seat = resident(s, "b", 0)
    first = title("t1")
    s.handle(RequestArrived(replace(first.request, max_tokens=20)), 1)
    assert dispatches(tick(s, 30)) == [("t1", seat, "guest")]
    # 13 s would be lost on the other slot, and half of that would be waited for it
    assert dispatches(s.handle(title("t2"), 30.1)) == []
    assert dispatches(tick(s, 40)) == []
    assert dispatches(s.handle(finished("t1"), 43)) == [("t2", seat, "guest")]


def test_another_guest_that_runs_long_is_not_expected_to_end_soon() -> None:
    s = scheduler(slots=2)
    resident(s, "a", 0)
    seat = resident(s, "b", 0)
    s.handle(of(title("t1"), max_tokens=20), 1)
    assert dispatches(tick(s, 30)) == [("t1", seat, "guest")]
    s.handle(title("t2"), 30.1)
    # 0.5 s were expected; what is overdue for longer than the loss may last as long again
    assert dispatches(tick(s, 50)) == [("t2", 1 - seat, "guest")]


def test_a_guest_takes_the_cheapest_slot_after_its_longest_wait() -> None:
    s = scheduler(slots=2, max_wait_s=50)
    resident(s, "a", 0, n=40_000)
    cheap = resident(s, "b", 0, n=30_000)
    s.handle(title("t"), 1)
    assert dispatches(tick(s, 10.9)) == []
    assert dispatches(tick(s, 11.1)) == [("t", cheap, "guest")]


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
    s = scheduler(slots=1, guest=False)
    resident(s, "a", 0)
    assert dispatches(s.handle(title("t"), 1)) == [("t", 0, "affinity")]


@pytest.mark.parametrize("stream", [True, False])
def test_a_persons_short_question_does_not_wait_for_a_long_prompt_beside_empty_slots(
    stream: bool,
) -> None:
    s = scheduler(slots=4)
    [(_, agent, _)] = dispatches(s.handle(arrived("agent", text(("agent", 18_000))), 0))
    question = of(title("voice", 200), stream=stream, max_tokens=150)
    [(_, slot, _)] = dispatches(s.handle(question, 1))
    assert slot < agent, "the engine fills a batch in the order of slots"


def test_a_known_side_job_waits_for_somebodys_first_token() -> None:
    s = scheduler(slots=4)
    s.handle(arrived("agent", text(("agent", 18_000))), 0)
    assert dispatches(s.handle(of(title("t"), kind=SIDE_JOB), 1)) == []

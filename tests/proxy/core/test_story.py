"""What is told beside a placement: seconds lost, holds, waits for a home, promotions, sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.order import Promotion
from slotwise.policies.params import Cost
from slotwise.policies.regret import Obstacle
from slotwise.policies.types import SIDE_JOB
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineLost,
    HoldEnded,
    HoldResult,
    HomeWait,
    RequestArrived,
    RequestProgressed,
)
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.core.snapshot import SessionState
from tests.proxy.script import (
    LONG_ANSWERS,
    arrived,
    cancelled,
    finished,
    of,
    scheduler,
    serve,
    text,
    tick,
)


def turn(id: str, session: str, n: int, turns: int = 1, key: str = "k") -> RequestArrived:
    """A turn of a conversation of ``n`` tokens by now."""
    event = arrived(id, text((session, n)), first_user_end=100, turns=turns, key=key)
    return RequestArrived(replace(event.request, session=session))


def dispatched(actions: list[Action], id: str) -> Dispatch:
    (found,) = [a for a in actions if isinstance(a, Dispatch) and a.id == id]
    return found


def lost(actions: list[Action], id: str) -> dict[Obstacle, float]:
    return {loss.obstacle: round(loss.seconds, 6) for loss in dispatched(actions, id).regret}


def holds(actions: list[Action]) -> list[tuple[int, HoldResult, float]]:
    return [
        (a.slot.id_slot, a.result, round(a.kept_s, 6)) for a in actions if isinstance(a, HoldEnded)
    ]


# ---------------------------------------------------------------- regret


def test_a_request_that_is_placed_at_once_lost_nothing() -> None:
    assert dispatched(scheduler().handle(turn("a", "a", 3000), 0), "a").regret == ()


def test_the_wait_counts_by_what_was_waited_for() -> None:
    s = scheduler(max_running=1)
    s.handle(turn("a", "a", 3000), 0)
    s.handle(turn("b", "b", 3000), 2)
    assert lost(s.handle(finished("a"), 9), "b") == {Obstacle.BUSY: 7}


def test_a_wait_behind_one_that_came_later_is_fairness() -> None:
    """b waits for a from 1 to 5; then c, of the older conversation, goes first and runs 4 s."""
    s = scheduler(slots=3, max_running=1)
    serve(s, turn("c0", "c", 3000), 0)
    s.handle(turn("a", "a", 3000), 0.5)
    s.handle(turn("b", "b", 3000), 1)
    s.handle(turn("c", "c", 3200, turns=2), 2)
    assert lost(s.handle(finished("a"), 5), "c") == {Obstacle.BUSY: 3}
    assert lost(s.handle(finished("c"), 9), "b") == {Obstacle.BUSY: 4, Obstacle.FAIRNESS: 4}


def test_giving_a_busy_home_up_counts_the_wait_and_the_dearer_slot() -> None:
    long_answers = Cost(0, 1e-3, 0, 0.1)
    s = scheduler(slots=2, cost=long_answers)
    s.handle(turn("a", "a", 5000), 0)
    s.handle(RequestProgressed("a", 5000, 0), 1)
    s.handle(turn("b", "a", 5200, turns=2), 2)
    found = [tick(s, 2.0 + wait) for wait in range(2, 40)]
    (given_up,) = [a for step in found for a in step if isinstance(a, Dispatch)]
    assert given_up.home_wait is HomeWait.GAVE_UP
    (loss,) = given_up.regret
    assert loss.obstacle is Obstacle.BUSY
    assert loss.seconds == pytest.approx(given_up.waited_s + 5)  # all of it is read again


def test_a_side_job_waits_for_others_first_tokens() -> None:
    s = scheduler(slots=3)
    s.handle(turn("a", "a", 3000), 0)
    side = arrived("t", text(("t", 100)))
    s.handle(RequestArrived(replace(side.request, kind=SIDE_JOB)), 1)
    assert lost(s.handle(finished("a"), 4), "t") == {Obstacle.FAIRNESS: 3}


# ---------------------------------------------------------------- home waits


def test_a_request_that_waited_for_its_home_and_got_it_is_counted_so() -> None:
    s = scheduler()
    s.handle(turn("a", "a", 5000), 0)
    s.handle(turn("b", "a", 5200, turns=2), 1)
    placed = dispatched(s.handle(finished("a", 5000), 3), "b")
    assert placed.home_wait is HomeWait.PLACED


def test_a_request_that_never_waited_for_a_home_is_not_counted() -> None:
    s = scheduler(max_running=1)
    s.handle(turn("a", "a", 3000), 0)
    s.handle(turn("b", "b", 3000), 1)
    assert dispatched(s.handle(finished("a"), 2), "b").home_wait is None


# ---------------------------------------------------------------- holds


def crowded(**policy: Any) -> Scheduler:
    """Two slots, each with a conversation of two turns; they ended at 2 and 3."""
    s = scheduler(slots=2, cold=False, **policy)
    for now, session in ((0, "a"), (1, "b")):
        serve(s, turn(f"{session}0", session, 5000), now)
    for now, session in ((2, "a"), (3, "b")):
        serve(s, turn(f"{session}1", session, 5200, turns=2), now)
    return s


def test_a_slot_whose_owner_comes_back_was_kept_with_profit() -> None:
    s = crowded()
    s.handle(turn("n", "new", 4000), 4)
    actions = s.handle(turn("a2", "a", 5400, turns=3), 6)
    assert dispatched(actions, "a2").slot.id_slot == 1
    assert holds(actions) == [(1, HoldResult.RETURNED, 2.0)]


def test_a_slot_whose_owner_does_not_come_was_kept_in_vain() -> None:
    """a's time is over at 4, and the newcomer has it; nobody waits for b's until 5."""
    s = crowded(keep_s=2)
    s.handle(turn("n", "new", 4000), 3.5)
    assert holds(tick(s, 4.0)) == [(1, HoldResult.EXPIRED, 0.5)]
    assert holds(tick(s, 5.0)) == [(0, HoldResult.EXPIRED, 0.5)]


def test_a_slot_that_is_given_away_in_its_time_was_a_broken_hold() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a0", "a", 5000), 0)
    serve(s, turn("a1", "a", 5200, turns=2), 1)
    assert not holds(s.handle(turn("n", "new", 4000), 2))
    found = [hold for now in range(2, 60) for hold in holds(tick(s, 1 + now / 4))]
    ((slot, result, kept_s),) = found
    assert (slot, result) == (0, HoldResult.BROKEN)
    assert 0 < kept_s < 5  # no longer than the loss would take


def test_a_lost_engine_ends_its_holds_uncounted() -> None:
    s = crowded()
    s.handle(turn("n", "new", 4000), 4)
    assert not holds(s.handle(EngineLost("e", "exited"), 5))
    assert not holds(tick(s, 500))


# ---------------------------------------------------------------- promotions


def test_a_guest_that_waited_goes_first_and_is_counted() -> None:
    s = scheduler(slots=3, max_running=1, cost=LONG_ANSWERS)
    serve(s, of(turn("big", "big", 30_000), session="big"), 0)
    s.handle(of(turn("a", "a", 3000), session="a"), 1)
    s.handle(arrived("g", text(("g", 200))), 2)
    s.handle(of(turn("b", "b", 3000), session="b"), 3)
    s.handle(of(turn("c", "c", 3000), session="c"), 3)
    placed = dispatched(s.handle(finished("a"), 9), "g")
    assert placed.promoted is Promotion.GUEST
    assert dispatched(s.handle(finished("g"), 10), "b").promoted is None


def test_a_request_that_was_overtaken_for_too_long_goes_first() -> None:
    s = scheduler(slots=3, max_running=1, max_wait_s=50)
    serve(s, turn("o0", "old", 3000), 0)
    s.handle(turn("a", "a", 3000), 1)
    s.handle(turn("n", "new", 3000), 2)
    s.handle(turn("o1", "old", 3200, turns=2), 53)
    assert dispatched(s.handle(finished("a"), 54), "n").promoted is Promotion.OVERTAKEN


def test_a_side_job_at_its_bound_goes_before_first_tokens() -> None:
    s = scheduler(slots=3, max_wait_s=50)
    s.handle(turn("a", "a", 3000), 0)
    side = arrived("t", text(("t", 100)))
    s.handle(RequestArrived(replace(side.request, kind=SIDE_JOB)), 1)
    assert dispatched(tick(s, 21.1), "t").promoted is Promotion.BACKGROUND


def test_nobody_is_promoted_over_nobody() -> None:
    s = scheduler(max_running=1, max_wait_s=1)
    s.handle(turn("a", "a", 3000), 0)
    s.handle(turn("b", "b", 3000), 1)
    assert dispatched(s.handle(finished("a"), 90), "b").promoted is None


# ---------------------------------------------------------------- standing


def sessions(s: Scheduler, now: float) -> dict[str, int]:
    (one,) = s.profile_figures(now)
    return {state.value: count for state, count in one.sessions.items() if count}


def test_conversations_are_counted_by_what_they_do() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a0", "a", 3000), 0)
    assert sessions(s, 1) == {"warm": 1}
    s.handle(turn("b0", "b", 3000), 2)
    assert sessions(s, 3) == {"running": 1, "cold": 1}
    s.handle(turn("a1", "a", 3200, turns=2), 4)
    assert sessions(s, 4) == {"running": 1, "waiting": 1}
    s.handle(cancelled("a1"), 5)
    s.handle(finished("b0"), 6)
    assert sessions(s, 7) == {"warm": 1, "cold": 1}
    assert set(s.profile_figures(7)[0].sessions) == set(SessionState)


def test_a_key_that_waits_unserved_makes_it_unfair() -> None:
    s = scheduler(slots=2, max_running=1)
    serve(s, turn("a0", "a", 3000, key="ann"), 0)
    assert s.profile_figures(0)[0].fairness == 1
    s.handle(turn("a1", "c", 3000, key="ann"), 1)
    s.handle(turn("b0", "b", 3000, key="ben"), 2)
    assert s.profile_figures(2)[0].fairness == pytest.approx(0.5)


def test_the_working_set_is_live_conversations_over_slots() -> None:
    s = scheduler(slots=2)
    for n, session in enumerate(("a", "b", "c")):
        s.handle(turn(f"{session}0", session, 3000), n)
    assert s.profile_figures(3)[0].working_set == pytest.approx(1.5)


def test_the_status_says_how_many_may_run_and_why() -> None:
    def told(s: Scheduler) -> tuple[object, object]:
        profile = s.snapshot(1)["p"]
        assert isinstance(profile, dict)
        return profile["max_running"], profile["max_running_why"]

    assert told(scheduler(slots=4, max_running=2)) == (2, "policy.max_running")
    few = told(scheduler(slots=2, max_running=8))
    assert few == (2, "2 slots are there; policy.max_running is 8")

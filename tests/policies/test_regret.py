"""What stood in the way, in seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotwise.policies import regret
from slotwise.policies.order import jain_index
from slotwise.policies.params import Cost, Params
from slotwise.policies.prefix import pack
from slotwise.policies.ram_cache import State
from slotwise.policies.regret import Loss, Obstacle
from slotwise.policies.slot_costs import Case, View
from slotwise.policies.types import Match, Reason, Request, SlotId, SlotView, WaitingView

PARAMS = Params(cost=Cost(prefill_c_s=0, prefill_a_s=1e-3, prefill_b_s=0))
PROMPT = pack(range(1000))
STRANGER = Match(0, False, False, "stranger")
HOME = Match(900, True, False, "continues")
ALL_FIT = [True, True]


def waiting(*matches: Match) -> WaitingView:
    request = Request("r", "p", PROMPT, 100, 2, None, True, "k")
    return WaitingView(request, 0.0, list(matches), owns=True)


def slot(index: int, **changes: object) -> SlotView:
    empty = SlotView(SlotId("e", index), 10_000, True, 0, 0, 0, False, 0, 0.0)
    return replace(empty, **changes)  # type: ignore[arg-type]


def rounded(loss: Loss | None) -> tuple[Obstacle, float]:
    assert loss is not None
    return loss.obstacle, round(loss.seconds, 6)


HELD = {"view_len": 900, "held": 900, "turns": 2}


def test_the_best_slot_that_was_at_work_is_why() -> None:
    slots = [slot(0, idle=False, **HELD), slot(1)]
    loss = regret.of_slot(waiting(HOME, STRANGER), View(slots, None, PARAMS), ALL_FIT, 1)
    assert rounded(loss) == (Obstacle.BUSY, 0.9)


def test_the_best_slot_that_was_kept_for_its_owner_is_why() -> None:
    kin = Match(900, False, False, "kin")
    slots = [slot(0, kept=True, **HELD), slot(1)]
    loss = regret.of_slot(waiting(kin, STRANGER), View(slots, None, PARAMS), ALL_FIT, 1)
    assert loss is not None
    assert loss.obstacle is Obstacle.HELD


def test_what_it_destroys_counts_as_the_rules_count_it() -> None:
    view = waiting(STRANGER, STRANGER)
    state = State(view=pack(range(9000, 14_000)), held=5000, turns=3)
    slots = [slot(0, idle=False), slot(1, view_len=5000, held=5000, turns=3, state=state)]
    loss = regret.of_slot(view, View(slots, None, PARAMS), ALL_FIT, 1)
    dearer_s = Case(view, View(slots, None, PARAMS), 0.0, ALL_FIT).cost_s(1) - 1.0
    assert rounded(loss) == (Obstacle.BUSY, round(dearer_s, 6))
    assert dearer_s > 1


def test_nothing_is_lost_on_the_best_slot_or_beside_one_that_was_free() -> None:
    slots = [slot(0, **HELD), slot(1)]
    for chosen in (0, 1):
        assert (
            regret.of_slot(waiting(HOME, STRANGER), View(slots, None, PARAMS), ALL_FIT, chosen)
            is None
        )


def test_a_slot_that_is_too_small_is_no_loss() -> None:
    slots = [slot(0, idle=False, **HELD), slot(1)]
    assert (
        regret.of_slot(waiting(HOME, STRANGER), View(slots, None, PARAMS), [False, True], 1) is None
    )


def test_every_reason_to_wait_has_its_obstacle() -> None:
    assert set(regret.OBSTACLES) == set(Reason)
    named = {reason for reason, obstacle in regret.OBSTACLES.items() if obstacle is None}
    assert named == {Reason.NONE, Reason.ENGINE_LOADING}


def test_a_turn_is_waited_for_only_where_slots_or_the_engine_are_at_work() -> None:
    assert regret.waiting_for(Reason.MAX_RUNNING, True) is Obstacle.FAIRNESS
    assert regret.waiting_for(Reason.MAX_RUNNING, False) is Obstacle.BUSY
    assert regret.waiting_for(Reason.HOME_BUSY, True) is Obstacle.BUSY


@pytest.mark.parametrize(
    ("shares", "index"),
    [([], 1), ([0, 0], 1), ([5], 1), ([3, 3, 3], 1), ([9, 0, 0], 1 / 3), ([1, 3], 0.8)],
)
def test_jains_index(shares: list[float], index: float) -> None:
    assert jain_index(shares) == pytest.approx(index)

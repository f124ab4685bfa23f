"""What stood in the way of the best decision, and how many seconds that cost.

The best would have been the slot with the least seconds (its own prefill and what it destroys, as
rule 5 counts them), at once. What was lost against it is the wait, by what was waited for, and the
seconds by which the slot that was taken is dearer, by why the best one could not be taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from slotwise.policies.slot_costs import SlotCosts, View
from slotwise.policies.types import Reason, WaitingView


class Obstacle(StrEnum):
    """What stood in the way; the ``reason`` label of the series."""

    BUSY = "busy"  # slots, or the engine, were at work
    HELD = "held"  # an idle slot was kept for its owner
    MEMORY = "memory"  # there was no room for it
    FAIRNESS = "fairness"  # it was somebody else's turn


class Loss(NamedTuple):
    """Seconds lost to one obstacle."""

    obstacle: Obstacle
    seconds: float


# Waiting for an engine to load is nobody's decision.
OBSTACLES: Mapping[Reason, Obstacle | None] = {
    Reason.NONE: None,
    Reason.ENGINE_LOADING: None,
    Reason.MAX_RUNNING: Obstacle.BUSY,
    Reason.HOME_BUSY: Obstacle.BUSY,
    Reason.SLOTS_BUSY: Obstacle.BUSY,
    Reason.HELD: Obstacle.HELD,
    Reason.COLD_PREFILL: Obstacle.BUSY,
    Reason.BACKGROUND: Obstacle.FAIRNESS,
    Reason.WINDOW: Obstacle.BUSY,
    Reason.POOL: Obstacle.MEMORY,
    Reason.MEMORY: Obstacle.MEMORY,
}
_TURNS = (Reason.MAX_RUNNING, Reason.SLOTS_BUSY, Reason.COLD_PREFILL)


def waiting_for(reason: Reason, overtaken: bool) -> Obstacle | None:
    """What a request waits for that is held for this reason. ``overtaken``: one that came later
    runs already, so that what it waits for is its turn."""
    return Obstacle.FAIRNESS if overtaken and reason in _TURNS else OBSTACLES[reason]


def of_slot(waiting: WaitingView, view: View, fits: list[bool], chosen: int) -> Loss | None:
    """By how much the chosen slot is dearer than one that could not be had; None: it is not."""
    slots = view.slots
    if view.open:
        return None  # each could be had
    costs = SlotCosts(waiting, view, 0.0, fits)
    costs_s = [(costs.cost_s(index), index) for index in range(len(slots)) if fits[index]]
    best_s, best = min(costs_s)
    chosen_s = next(seconds for seconds, index in costs_s if index == chosen)
    if chosen_s <= best_s or (slots[best].idle and not slots[best].kept):
        return None  # what the rules passed over freely was no better by their own lights
    return Loss(Obstacle.HELD if slots[best].idle else Obstacle.BUSY, chosen_s - best_s)

"""Guests: short prompts that share little with what the slots hold, and where they may sit.

Title, tag and commit-message jobs come between the turns of long conversations, and classifiers
between the steps of agents. Wherever one sits it destroys what was there, so it takes the slot that
costs least: what it has to read there, by what it shares with the last prompt, and what others
lose. What a guest left is worth what the next one may begin with. Only after a wait may a guest
displace a live conversation that costs more than the guest's own work.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotwise.policies.affinity import is_live
from slotwise.policies.params import Params
from slotwise.policies.types import SIDE_JOB, SlotView, WaitingView

_RESIDENT_SHARE = 0.25  # of the largest resident: what is longer is no small work beside it
_PROTECT_S = 600.0  # a conversation idle for longer is not left alone
_BREAK_RATIO = 2.0  # seconds that others may lose for each second that a guest waited


def is_guest(waiting: WaitingView, slots: Sequence[SlotView], params: Params) -> bool:
    """A side job by its kind; else short, small beside the largest resident, and a stranger to
    every live one. Never one whose prompt a RAM cache holds, nor, which is for the caller to ask
    first, one whose conversation has a slot."""
    if not params.guest or waiting.parked_most:
        return False
    request = waiting.request
    n = request.tokens.length
    if request.kind == SIDE_JOB:
        return True
    if n > params.guest_max_tokens or request.turns > 1:
        return False
    largest = max((s.resident for s in slots), default=0)
    if n >= _RESIDENT_SHARE * largest:
        return False
    shares = [
        s for s, m in zip(slots, waiting.matches, strict=True) if m.lcp >= params.chunk_tokens
    ]
    return not any(is_live(s) for s in shares)


def another_ends_in_s(slots: Sequence[SlotView]) -> float:
    """How soon a slot is free that a guest has now, who destroyed what was there already."""
    return min((s.run_left_s for s in slots if s.guest and not s.idle), default=float("inf"))


def wait_before_taking_s(slot: SlotView, own_s: float, loss_s: float, params: Params) -> float:
    """How long a guest waits before it may take this slot, where it starts ``own_s`` later and
    others lose ``loss_s`` by it: not at all where that is less than its own work."""
    if loss_s <= own_s or slot.idle_s >= _PROTECT_S or not is_live(slot):
        return 0.0
    return min(loss_s / _BREAK_RATIO, params.guest_wait_s)

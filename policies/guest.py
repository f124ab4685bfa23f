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


def is_guest(waiting: WaitingView, slots: Sequence[SlotView], params: Params) -> bool:
    """A side job by its kind; else short, small beside the largest resident, and a stranger to
    every live one. Never one whose prompt a RAM cache holds, nor, which is for the caller to ask
    first, one whose conversation has a slot."""
    knobs = params.guest
    if not knobs.enabled or waiting.parked_most:
        return False
    request = waiting.request
    n = request.tokens.length
    if request.kind == SIDE_JOB:
        return True
    if n > knobs.guest_max_tokens or request.turns > 1:
        return False
    largest = max((s.resident for s in slots), default=0)
    if n >= knobs.resident_share * largest:
        return False
    chunk = params.home.chunk_tokens
    shares = [s for s, m in zip(slots, waiting.matches, strict=True) if m.lcp >= chunk]
    return not any(is_live(s, params.affinity) for s in shares)


def another_ends_in_s(slots: Sequence[SlotView], params: Params) -> float:
    """How soon a slot is free that a guest has now, who destroyed what was there already."""
    if not params.guest.follow:
        return float("inf")
    return min((s.run_left_s for s in slots if s.guest and not s.idle), default=float("inf"))


def wait_before_taking_s(slot: SlotView, own_s: float, loss_s: float, params: Params) -> float:
    """How long a guest waits before it may take this slot, where it starts ``own_s`` later and
    others lose ``loss_s`` by it: not at all where that is less than its own work."""
    knobs = params.guest
    if loss_s <= own_s or slot.idle_s >= knobs.protect_s or not is_live(slot, params.affinity):
        return 0.0
    affordable_s = loss_s / knobs.break_ratio if knobs.break_ratio else float("inf")
    return min(max(knobs.break_after_s, affordable_s), knobs.guest_max_wait_s)

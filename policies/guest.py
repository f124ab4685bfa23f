"""Guests: short prompts that share little with what the slots hold, and where they may sit.

Title, tag and commit-message jobs come between the turns of long conversations. Wherever one sits
it destroys what was there, so it takes the place whose loss is least: an empty slot, another
guest's, one whose conversation has ended, one long unused. Only after a wait may it displace a
live conversation, and then one that is cheap to compute again.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.affinity import is_live
from policies.params import Params
from policies.types import SIDE_JOB, SlotView, WaitingView

_LONG_UNUSED = 3  # rank of a conversation that lives, and that nobody asked for lately


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


def seat(
    slots: Sequence[SlotView], candidates: Sequence[int], behind_s: Sequence[float], params: Params
) -> int | None:
    """The candidate whose loss nobody will feel, where it starts soonest, to the second; the
    lowest id among equals. None: there is none.

    ``behind_s``: seconds it would wait in each slot for what is read in lower ones. And low ids,
    because the engine fills a batch in slot order: a short prompt in a low slot starts beside a
    long prefill that comes later instead of after it.
    """
    ranked = [
        (rank == _LONG_UNUSED, int(behind_s[i]), rank, slots[i].id.id_slot, i)
        for i in candidates
        if (rank := _rank(slots[i], params)) is not None
    ]
    return min(ranked)[-1] if ranked else None


def _rank(slot: SlotView, params: Params) -> int | None:
    if slot.view_len == 0:
        return 0
    if slot.guest:
        return 1
    if not is_live(slot, params.affinity):
        return 2
    return _LONG_UNUSED if slot.idle_s >= params.guest.protect_s else None


def another_ends_in_s(slots: Sequence[SlotView], params: Params) -> float:
    """How soon a slot is free that a guest has now, who destroyed what was there already."""
    if not params.guest.follow:
        return float("inf")
    return min((s.run_left_s for s in slots if s.guest and not s.idle), default=float("inf"))


def wait_before_breaking_s(loss_s: float, params: Params) -> float:
    """How long a guest waits before it may destroy this much."""
    knobs = params.guest
    affordable_s = loss_s / knobs.break_ratio if knobs.break_ratio else float("inf")
    return min(max(knobs.break_after_s, affordable_s), knobs.guest_max_wait_s)

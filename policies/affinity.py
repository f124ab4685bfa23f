"""The cost in seconds of giving a request to an idle slot, what is destroyed there included."""

from __future__ import annotations

from policies.cost import prefill_s
from policies.params import Affinity, Params
from policies.types import Match, Request, SlotView


def reuse(request: Request, slot: SlotView, match: Match) -> int:
    """Tokens the engine will take from the slot's cache; it always computes at least one.

    The generated tail counts only for a prompt that goes on past everything the slot served:
    its ids are not known, but a template that renders an answer as it was generated repeats them.
    """
    if not request.cache_prompt:
        return 0
    shared = min(match.lcp, slot.held)
    if match.covers and slot.held == slot.view_len:
        shared += slot.tail
    return max(0, min(shared, len(request.tokens) - 1))


def is_live(slot: SlotView, knobs: Affinity) -> bool:
    """Whether somebody is likely to come back for what the slot holds."""
    if slot.view_len == 0 or slot.guest or slot.idle_s >= knobs.expire_s:
        return False
    return slot.turns >= 2 or slot.idle_s < knobs.live_s


def p_return(slot: SlotView, knobs: Affinity) -> float:
    """Chance that the slot's conversation comes back: many turns speak for it, idle time against
    it, with a heavy tail because think times have one."""
    if slot.view_len == 0 or slot.guest or slot.idle_s >= knobs.expire_s:
        return 0.0
    return slot.turns / (slot.turns + 1) / (1 + slot.idle_s / knobs.return_half_s)


def destroyed_s(slot: SlotView, match: Match, params: Params) -> float:
    """Seconds to compute again what this slot would lose, should its owner come back."""
    return prefill_s(params.cost, match.lcp, slot.resident)


def place_cost_s(request: Request, slot: SlotView, match: Match, params: Params) -> float:
    """Seconds this request costs on this slot: its own prefill and the expected loss."""
    own_s = prefill_s(params.cost, reuse(request, slot, match), len(request.tokens))
    chance = p_return(slot, params.affinity)
    if not chance:
        return own_s
    return own_s + params.affinity.destruction * chance * destroyed_s(slot, match, params)

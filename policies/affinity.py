"""The cost in seconds of giving a request to an idle slot, what is destroyed there included."""

from __future__ import annotations

import math

from policies.cost import prefill_s
from policies.params import Affinity, Keep, Params
from policies.types import Match, Request, SlotView

_LEAST_GAP_S, _MOST_GAP_S = 1e-3, 3600.0
_GAP_WEIGHT = 1 / 16  # of one pause: some thirty of them set the scale


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
    """Chance that the slot's conversation comes back.

    By Bayes: before the pause, ``odds`` to one that it goes on; pauses are log-logistic (heavy
    tailed, as think times are) around ``gap_s``, so a pause of t leaves odds / (1 + (t/gap)^2).
    """
    if slot.view_len == 0 or slot.guest:
        return 0.0
    return chance_of_return(slot.turns, slot.idle_s, slot.gap_s, knobs)


def chance_of_return(turns: int, idle_s: float, gap_s: float, knobs: Affinity) -> float:
    """The same for any conversation, whether a slot holds it or not."""
    if idle_s >= knobs.expire_s:
        return 0.0
    odds = knobs.return_odds if turns >= 2 else min(1.0, knobs.return_odds)
    pauses = max(0.0, idle_s) / (gap_s * knobs.return_gaps)
    return odds / (odds + 1 + math.pow(pauses, knobs.return_power))


def kept_for_s(gap_s: float, knobs: Keep) -> float:
    """How long an idle slot is kept for its owner's next turn."""
    return min(knobs.keep_s, knobs.keep_gaps * gap_s)


def learned_gap_s(gap_s: float, seen_s: float) -> float:
    """The typical pause after one more was seen: a decayed geometric mean, because pauses spread
    over four orders of magnitude and the scale differs between a fleet of agents and a person."""
    seen_s = min(max(seen_s, _LEAST_GAP_S), _MOST_GAP_S)
    return math.exp((1 - _GAP_WEIGHT) * math.log(gap_s) + _GAP_WEIGHT * math.log(seen_s))


def destroyed_s(slot: SlotView, match: Match, params: Params) -> float:
    """Seconds to have again what this slot would lose, should its owner come back: to compute
    it, or to copy it back as far as the RAM cache will have it."""
    again_s = prefill_s(params.cost, match.lcp, slot.resident)
    if not slot.recoverable:
        return again_s
    restore_s = slot.resident / params.keep.restore_tps
    return again_s - slot.recoverable * max(0.0, again_s - restore_s)


def place_cost_s(request: Request, slot: SlotView, match: Match, params: Params) -> float:
    """Seconds this request costs on this slot: its own prefill and the expected loss."""
    own_s = prefill_s(params.cost, reuse(request, slot, match), len(request.tokens))
    chance = p_return(slot, params.affinity)
    if not chance:
        return own_s
    return own_s + params.affinity.destruction * chance * destroyed_s(slot, match, params)

"""What a slot is worth: what a request would reuse there, and who will want it back, and when."""

from __future__ import annotations

import math

from slotwise.policies.cost import piece_s
from slotwise.policies.params import Affinity, Cost, Keep
from slotwise.policies.park import State
from slotwise.policies.pauses import Pauses
from slotwise.policies.types import Match, Request, SlotView

_REPEATED = 2  # turns: what a one-shot prompt begins with was asked for twice
_FIRST_REPEAT = 0.1  # chance that one comes that begins like another, before any did


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
    return max(0, min(shared, request.tokens.length - 1))


def is_live(slot: SlotView, knobs: Affinity) -> bool:
    """Whether somebody is likely to come back for what the slot holds."""
    if slot.view_len == 0 or slot.guest or slot.idle_s >= knobs.expire_s:
        return False
    return slot.turns >= 2 or slot.idle_s < knobs.live_s


def chance_of_return(
    turns: int, idle_s: float, calling: bool, pauses: Pauses, knobs: Affinity
) -> float:
    """Chance that a conversation comes back.

    By Bayes: before the pause, odds to one that it goes on; pauses are log-logistic (heavy
    tailed, as think times are) around the typical one, so a pause of t leaves
    odds / (1 + (t/gap)^2).
    """
    if idle_s >= knobs.expire_s:
        return 0.0
    gap_s = pauses.typical_s(calling)
    odds = _odds(turns, calling, pauses, knobs) * _still_away(idle_s, gap_s, knobs)
    return odds / (odds + 1)


def chance_of_return_soon(
    turns: int, idle_s: float, calling: bool, pauses: Pauses, knobs: Affinity
) -> float:
    """Chance that it comes back within the horizon: later, what it left is gone in any case."""
    if idle_s >= knobs.expire_s:
        return 0.0
    odds, gap_s = _odds(turns, calling, pauses, knobs), pauses.typical_s(calling)
    away = _still_away(idle_s, gap_s, knobs)
    then = _still_away(idle_s + knobs.horizon_s, gap_s, knobs)
    return odds * (away - then) / (odds * away + 1)


def expected_loss_s(
    state: State, kept: int, idle_s: float, pauses: Pauses, cost: Cost, knobs: Affinity
) -> float:
    """Seconds that are lost, as far as may be expected, where of a state only the first ``kept``
    tokens go on.

    A conversation's next turn repeats all of it. A one-shot prompt never comes again, but what it
    begins with may: as much as came from the cache for it was asked for twice; of the rest nobody
    knows yet. What others paid for it already is taken off, see displaced.py.
    """
    return max(0.0, _expected_s(state, kept, idle_s, pauses, cost, knobs) - state.rent_s)


def _expected_s(
    state: State, kept: int, idle_s: float, pauses: Pauses, cost: Cost, knobs: Affinity
) -> float:
    if not state.guest:
        chance = chance_of_return_soon(state.turns, idle_s, state.calling, pauses, knobs)
        return chance * piece_s(cost, kept, state.tokens)
    repeated = min(state.cached, state.held)
    seconds = _FIRST_REPEAT * piece_s(cost, max(kept, repeated), state.held)
    if kept < repeated:
        chance = chance_of_return_soon(_REPEATED, idle_s, False, pauses, knobs)
        seconds += chance * piece_s(cost, kept, repeated)
    return seconds


def _odds(turns: int, calling: bool, pauses: Pauses, knobs: Affinity) -> float:
    if calling:
        return max(knobs.return_odds, knobs.tools_odds)
    return knobs.return_odds if turns >= 2 else min(pauses.first_odds, knobs.return_odds)


def _still_away(idle_s: float, gap_s: float, knobs: Affinity) -> float:
    """The share of all pauses that are longer than this one so far."""
    return 1 / (1 + math.pow(max(0.0, idle_s) / (gap_s * knobs.return_gaps), knobs.return_power))


def kept_for_s(gap_s: float, knobs: Keep) -> float:
    """How long an idle slot is kept for its owner's next turn."""
    return min(knobs.keep_s, knobs.keep_gaps * gap_s) if gap_s <= knobs.keep_s else 0.0

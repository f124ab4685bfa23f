"""Who goes first among those who wait."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

from slotwise.policies.bounds import bound_s, most_s
from slotwise.policies.params import Params
from slotwise.policies.types import WaitingView


def jain_index(shares: Sequence[float]) -> float:
    """Jain's index: 1 when all got the same, 1/n when one of n got everything; 1 without any."""
    squares = sum(share * share for share in shares)
    if not squares:
        return 1.0
    return sum(shares) ** 2 / (len(shares) * squares)


_PROMOTE_S = 5.0  # a guest that waited this long goes first
SERVICE_STEP_S = 24.0  # of the engine's work for a key: less is no difference between keys


class Class(IntEnum):
    """Smallest first."""

    OVERTAKEN = 0  # others went before it for too long
    PROMOTED_GUEST = 1  # a guest that waited
    OWNER = 2  # a slot still holds its conversation
    NEWCOMER = 3
    NEW_GUEST = 4


class Promotion(StrEnum):
    """Why a request went before others that would have been first; a ``reason`` label."""

    GUEST = "guest"  # a guest that had waited
    OVERTAKEN = "overtaken"  # others had gone before it for too long
    BACKGROUND = "background"  # a side job at its bound


PROMOTES = {Class.OVERTAKEN: Promotion.OVERTAKEN, Class.PROMOTED_GUEST: Promotion.GUEST}


class Turn(IntEnum):
    """Smallest first."""

    FIRST = 0  # overtaken for too long, or of a key that was served less than such a one
    USUAL = 1


class Rank(NamedTuple):
    """Sort key. A key that floods makes its own requests wait: where some were overtaken for too
    long, those of keys that were served less go before them. Then class, key and age."""

    turn: Turn
    share: int  # steps its key was served, in the first turn
    place: Class
    service: int  # steps
    arrived: float  # s


def steps(waiting: WaitingView, params: Params) -> int:
    """What its key was served lately, in steps: less is no difference between keys."""
    return int(waiting.service_s / SERVICE_STEP_S) if params.order else 0


def is_overdue(waiting: WaitingView, waited_s: float, fewest: int, params: Params) -> bool:
    """Whether others may go before it no longer. ``fewest``: steps of a key that waits; one that
    was served more cannot ask for its place in a plain line."""
    if not params.order:
        return False
    if steps(waiting, params) > fewest:
        return waited_s >= most_s(params.max_wait_s, waiting.request, params)
    return waited_s >= bound_s(params.max_wait_s, waiting, params)


def rank(
    waiting: WaitingView,
    guest: bool,
    waited_s: float,
    params: Params,
    overdue: int | None = None,
    scarce: bool = True,
) -> Rank:
    """Where a request stands. Nobody is overtaken too long; then guests that waited; then those
    whose conversation a slot still holds; then newcomers; then new guests.

    ``overdue``: the most steps of a key with a request that was overtaken too long; None: none.
    ``scarce``: more lives than stays warm. Where nothing is lost by who goes first, whoever came
    first does.
    """
    arrived = waiting.arrived
    if not params.order:
        return Rank(Turn.USUAL, 0, Class.NEWCOMER, 0, arrived)
    service = steps(waiting, params)
    if waiting.overdue:
        return Rank(Turn.FIRST, service, Class.OVERTAKEN, service, arrived)
    first = overdue is not None and service < overdue
    turn, share = (Turn.FIRST, service) if first else (Turn.USUAL, 0)
    if not scarce:
        return Rank(turn, share, Class.NEWCOMER, service, arrived)
    if guest:
        promoted = waited_s >= min(_PROMOTE_S, waiting.line_s)
        place = Class.PROMOTED_GUEST if promoted else Class.NEW_GUEST
    else:
        place = Class.OWNER if waiting.owns or waiting.parked_most else Class.NEWCOMER
    return Rank(turn, share, place, service, arrived)

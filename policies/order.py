"""Who goes first among those who wait."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

from policies.params import Params
from policies.types import WaitingView


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
    SESSION_CAP = "session_cap"  # a new conversation at its bound


PROMOTES = {Class.OVERTAKEN: Promotion.OVERTAKEN, Class.PROMOTED_GUEST: Promotion.GUEST}


class Rank(NamedTuple):
    """Sort key: class, then the key that was served least, then the oldest conversation."""

    place: Class
    service: int  # steps
    began: float  # s
    arrived: float  # s


def rank(waiting: WaitingView, guest: bool, waited_s: float, params: Params) -> Rank:
    """Where a request stands. Nobody is overtaken too long; then guests that waited; then those
    whose conversation a slot still holds; then newcomers; then new guests."""
    knobs = params.order
    arrived = waiting.arrived
    if not knobs.enabled:
        return Rank(Class.NEWCOMER, 0, arrived, arrived)
    if waited_s >= knobs.max_overtake_s:
        return Rank(Class.OVERTAKEN, 0, arrived, arrived)
    if guest:
        place = Class.PROMOTED_GUEST if waited_s >= knobs.promote_s else Class.NEW_GUEST
    else:
        place = Class.OWNER if waiting.owns or waiting.parked_most else Class.NEWCOMER
    service = int(waiting.service / knobs.service_step) if knobs.by_service else 0
    began = waiting.session_began if knobs.by_session else arrived
    return Rank(place, service, began, arrived)

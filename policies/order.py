"""Who goes first among those who wait."""

from __future__ import annotations

from policies.params import Params
from policies.types import WaitingView

_OVERTAKEN, _PROMOTED_GUEST, _OWNER, _NEWCOMER, _NEW_GUEST = range(5)


def rank(waiting: WaitingView, guest: bool, waited_s: float, params: Params) -> tuple[int, float]:
    """Sort key, smallest first: nobody is overtaken too long; then guests that waited; then
    those whose conversation a slot still holds; then newcomers by arrival; then new guests."""
    knobs = params.order
    if not knobs.enabled:
        return (_NEWCOMER, waiting.arrived)
    if waited_s >= knobs.max_overtake_s:
        return (_OVERTAKEN, waiting.arrived)
    if guest:
        place = _PROMOTED_GUEST if waited_s >= knobs.promote_s else _NEW_GUEST
    else:
        place = _OWNER if waiting.owns else _NEWCOMER
    return (place, waiting.arrived)

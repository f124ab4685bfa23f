"""How the idle slots that were kept for their owners ended: what holding them was good for.

A slot counts as kept from the first decision that made somebody wait and left it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from policies.affinity import kept_for_s
from policies.params import Keep
from policies.types import SlotId, SlotView
from proxy.events import HoldEnded, HoldResult


class _Kept(NamedTuple):
    since: float  # s
    until: float  # s


class Keeping:
    """The slots of one profile that are kept now."""

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._kept: dict[SlotId, _Kept] = {}

    def left_alone(self, slots: Sequence[SlotView], knobs: Keep, now: float) -> None:
        """Somebody waits who could have had one of the slots that are kept."""
        for slot in slots:
            if slot.kept and slot.id not in self._kept:
                until = now + kept_for_s(slot.gap_s, knobs) - slot.idle_s
                self._kept[slot.id] = _Kept(now, until)

    def expired(self, now: float) -> list[HoldEnded]:
        """Those whose owners have had their time."""
        over = [slot for slot, kept in self._kept.items() if kept.until <= now]
        return [self._ended(slot, HoldResult.EXPIRED, now) for slot in over]

    def taken(self, slot: SlotId, by_owner: bool, now: float) -> list[HoldEnded]:
        """A request was placed there."""
        if slot not in self._kept:
            return []
        return [self._ended(slot, HoldResult.RETURNED if by_owner else HoldResult.BROKEN, now)]

    def lost(self, engine: str) -> None:
        """The engine is gone, and nobody's slot is kept there."""
        for slot in [slot for slot in self._kept if slot.engine == engine]:
            del self._kept[slot]

    def _ended(self, slot: SlotId, result: HoldResult, now: float) -> HoldEnded:
        kept = self._kept.pop(slot)
        return HoldEnded(slot, self._profile, result, min(now, kept.until) - kept.since)

"""How the idle slots that were kept for their owners ended: what holding them was good for.

What counts is the time in which somebody waited who could have had the slot. A hold begins with the
first decision that leaves a kept slot alone and makes a request wait, and ends when the slot is
taken or its owner's time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotwise.policies.types import SlotId, SlotView
from slotwise.proxy.core.events import HoldEnded, HoldResult

_FADE = 1 - 1 / 32
_HOPED = 0.5  # waits that count as paid before any was seen


@dataclass(slots=True)
class _Hold:
    until: float  # s
    since: float | None  # s, somebody waits for it; None: not now
    kept_s: float = 0.0  # before

    def pause(self, now: float) -> None:
        if self.since is not None:
            self.kept_s += max(0.0, min(now, self.until) - self.since)
            self.since = None


class Keeping:
    """The slots of one profile that are kept now."""

    def __init__(self, profile: str) -> None:
        self._profile = profile
        self._holds: dict[SlotId, _Hold] = {}
        self.returns = 0  # conversations that came back to their slots, ever
        self._waits = self._paid = 0.0  # for owners; old ones fade

    @property
    def waits_pay(self) -> float:
        """The share of the waits for owners in which some owner came back. Where the owner itself
        waits for the answer to what is kept from its slot, none does."""
        return (self._paid + _HOPED) / (self._waits + _HOPED)

    def waited(self, returns: int) -> None:
        """A request waited that could have had an owner's slot; ``returns``: as it began to."""
        self._waits = _FADE * self._waits + 1
        self._paid = _FADE * self._paid + (self.returns > returns)

    def left_alone(self, slots: Sequence[SlotView], keep_s: float, now: float) -> None:
        """Somebody waits who could have had one of the slots that are kept."""
        for slot in slots:
            if not slot.kept:
                continue
            hold = self._holds.get(slot.id)
            if hold is None:
                until = now + keep_s - slot.idle_s
                self._holds[slot.id] = _Hold(until, now)
            elif hold.since is None:
                hold.since = now

    def nobody_waits(self, now: float) -> None:
        """Nobody is kept from them any more."""
        for hold in self._holds.values():
            hold.pause(now)

    def expired(self, now: float) -> list[HoldEnded]:
        """Those whose owners have had their time."""
        over = [slot for slot, hold in self._holds.items() if hold.until <= now]
        return [self._ended(slot, HoldResult.EXPIRED, now) for slot in over]

    def taken(self, slot: SlotId, by_owner: bool, now: float) -> list[HoldEnded]:
        """A request was placed there."""
        if slot not in self._holds:
            return []
        return [self._ended(slot, HoldResult.RETURNED if by_owner else HoldResult.BROKEN, now)]

    def lost(self, engine: str) -> None:
        """The engine is gone, and nobody's slot is kept there."""
        for slot in [slot for slot in self._holds if slot.engine == engine]:
            del self._holds[slot]

    def _ended(self, slot: SlotId, result: HoldResult, now: float) -> HoldEnded:
        hold = self._holds.pop(slot)
        hold.pause(now)
        return HoldEnded(slot, self._profile, result, hold.kept_s)

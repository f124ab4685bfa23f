"""Whether an engine that says nothing goes on: its slots are looked at.

A slot whose client left has no byte for anybody. But ``/slots`` tells how many tokens a slot holds,
and each that is read or written changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slotwise.proxy.core.events import SlotReport

_LOOKED_AWAY_S = 60.0  # what was seen before says nothing about the time between


def report_of(slot: Any) -> SlotReport:
    """One entry of ``/slots``; raises ``LookupError``, ``TypeError`` or ``ValueError``."""
    if not isinstance(slot, Mapping):
        raise TypeError("a slot is no object")
    held = slot.get("n_prompt_tokens")
    return SlotReport(
        id_slot=int(slot["id"]),
        busy=bool(slot["is_processing"]),
        n_tokens=held if isinstance(held, int) else None,
    )


class Standstill:
    """Since when no busy slot has moved, by what the slots reported."""

    def __init__(self, now: float) -> None:
        self._since = self._looked = now  # s
        self._held: dict[int, int | None] = {}

    def seen(self, slots: Iterable[SlotReport], now: float) -> float:
        """For how long nothing has moved (s); 0 also where nothing is at work or can be told."""
        held = {slot.id_slot: slot.n_tokens for slot in slots if slot.busy}
        looked, self._looked = self._looked, now
        untold = not held or None in held.values() or now - looked > _LOOKED_AWAY_S
        if untold or held != self._held:
            self._held, self._since = held, now
        return now - self._since

"""Whether an engine that says nothing goes on: its slots are looked at.

A request that is not streamed has no byte before its end, and a slot whose client left has none at
all. But ``/slots`` tells how many tokens a slot holds, and each that is read or written changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError, UpstreamError
from proxy.events import SlotReport

_LOOKS = 4  # in the time after which standing still is too long
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


async def stands_still(
    client: EngineClient, id_slot: int, allowed_s: float, least_pause_s: float
) -> None:
    """Return when the slot (-1: any of them) has not moved for ``allowed_s``.

    Looked at rarely: each question keeps requests whose clients left alive for a second. An engine
    that does not show its slots cannot be judged; one that does not answer has not moved.
    """
    clock = asyncio.get_running_loop().time
    moved = clock()
    held: list[SlotReport] = []
    while clock() - moved < allowed_s:
        await asyncio.sleep(max(least_pause_s, allowed_s / _LOOKS))
        try:
            slots = [report_of(slot) for slot in await client.slots()]
        except EngineUnreachableError:
            continue
        except (UpstreamError, LookupError, TypeError, ValueError):
            slots = []
        now_held = [s for s in slots if id_slot in (-1, s.id_slot) and s.n_tokens is not None]
        if now_held != held or not now_held:
            held, moved = now_held, clock()

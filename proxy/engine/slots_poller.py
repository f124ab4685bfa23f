"""Asks one engine for ``/slots`` when a slot's end is not proven, and no oftener than it is safe.

When it asks is ``pace.py``. An engine that fails to answer again and again is hung, as is
one whose busy slots all stand still; somebody else has to restart it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slotwise.proxy.core.events import SlotReport, SlotsReported
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.pace import Asking, Pace
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError

log = logging.getLogger(__name__)

FAILURES_UNTIL_HUNG = 5


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


class SlotsPoller:
    """One question at a time; :meth:`ask` while one is due changes nothing."""

    def __init__(
        self,
        engine: str,
        client: EngineClient,
        clock: Callable[[], float],
        report: Callable[[SlotsReported], None],
        hung: Callable[[str], None],
        pace: Pace,
    ) -> None:
        self._engine = engine
        self._client = client
        self._clock = clock
        self._report = report
        self._hung = hung
        self._pace = pace
        self._asking = Asking(pace)
        self._standstill = Standstill(clock())
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._poll())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        reply = await self._reply()
        # Before the report: what it leaves unproven is asked for again, by a new task.
        self._task = None
        self._report(reply)
        if self._task is None:
            self._asking.proven()

    def _look(self, slots: tuple[SlotReport, ...]) -> None:
        """Asked only while some slot's end is not proven: is one of them busy for ever?"""
        still_s = self._standstill.seen(slots, self._asking.asked_at)
        if still_s >= self._pace.still_s:
            self._standstill = Standstill(self._asking.asked_at)
            busy = ", ".join(str(slot.id_slot) for slot in slots if slot.busy)
            self._hung(f"slots {busy} are busy, and no token moved for {still_s:.0f} s")

    async def _reply(self) -> SlotsReported:
        failures = 0
        while True:
            now = self._clock()
            await asyncio.sleep(self._asking.next_at(now) - now)
            await self._client.settled()
            self._asking.asked(self._clock())
            try:
                slots = tuple(report_of(slot) for slot in await self._client.slots())
            except (
                EngineUnreachableError,
                UpstreamError,
                LookupError,
                TypeError,
                ValueError,
            ) as error:
                failures += 1
                log.warning("engine %s: /slots failed (%d): %s", self._engine, failures, error)
                if failures % FAILURES_UNTIL_HUNG == 0:
                    self._hung(f"/slots failed {failures} times in a row: {error}")
            else:
                self._look(slots)
                return SlotsReported(self._engine, self._asking.asked_at, slots)

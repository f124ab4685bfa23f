"""Asks one engine for ``/slots`` when a slot's end is not proven, and no oftener than it is safe.

Each question resets the timer by which llama-server notices that a client hung up: a poll every
second or more keeps an abandoned request alive. So there are 2 s between two questions. An engine
that fails to answer again and again is hung, and somebody else has to restart it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError, UpstreamError
from proxy.events import SlotReport, SlotsReported

log = logging.getLogger(__name__)

FAILURES_UNTIL_HUNG = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: between two questions, and from the wish to the question."""

    between_s: float = 2.0
    delay_s: float = 0.2


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
        self._asked_at = float("-inf")
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

    async def _reply(self) -> SlotsReported:
        failures = 0
        while True:
            now = self._clock()
            at = max(self._asked_at + self._pace.between_s, now + self._pace.delay_s)
            await asyncio.sleep(at - now)
            self._asked_at = self._clock()
            try:
                slots = tuple(_report(slot) for slot in await self._client.slots())
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
                return SlotsReported(self._engine, self._asked_at, slots)


def _report(slot: Any) -> SlotReport:
    held = slot.get("n_prompt_tokens")
    return SlotReport(
        id_slot=int(slot["id"]),
        busy=bool(slot["is_processing"]),
        n_tokens=held if isinstance(held, int) else None,
    )

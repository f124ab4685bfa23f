"""A listener for tests of what starts and watches engines."""

from __future__ import annotations

import asyncio

from slotwise.launcher.process.supervisor import Cause, Loss


class Heard:
    """A listener that keeps what it is told, and can be awaited on."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.changed = asyncio.Event()
        self.causes: list[Cause] = []
        self.refuse = False

    def on_starting(self, engine: str, text: str) -> None:
        self._add("starting", text)

    async def on_ready(self, engine: str, url: str, api_key: str) -> None:
        self._add("ready", url)
        if self.refuse:
            raise ValueError("pins do not hold")

    def on_lost(self, engine: str, loss: Loss) -> None:
        self._add("lost", loss.text)
        self.causes.append(loss.cause)

    def on_log_line(self, engine: str, line: str) -> None:
        pass

    def _add(self, kind: str, text: str) -> None:
        self.events.append((kind, text))
        self.changed.set()

    def count(self, kind: str) -> int:
        return sum(1 for heard, _ in self.events if heard == kind)

    async def until(self, kind: str, times: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.count(kind) < times:
                self.changed.clear()
                await self.changed.wait()

"""Watches the machine's memory: a sample every half second to the scheduler, parts now and then.

A sample reads counters and takes well under a millisecond, so it is taken in the loop itself: a
loop that cannot do that any more also shows in the age of the last sample. The parts of the used
memory need a walk over all pages of each engine, so they are taken beside the loop, and seldom.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from proxy.events import MemorySampled
from proxy.meminfo import MemInfo, Reading
from proxy.process_memory import family_pss_bytes, own_bytes, pss_bytes

log = logging.getLogger(__name__)

_PARTS_EVERY_S = 5.0
_GPU_PART_BYTES = 2**29  # a fall of what is available beyond a process's own that a GPU explains
SLOTWISE, OTHER = "slotwise", "other"


@dataclass(slots=True)
class EngineMemory:
    """One engine's process. ``device_bytes``: what MemAvailable fell by while it loaded and no
    process shows: the part a GPU holds."""

    pid: int
    at_ready_bytes: int | None  # its own memory, when it was ready
    device_bytes: int = 0
    pss: Mapping[str, int] = field(default_factory=dict)


class MemoryWatch:
    """Samples until it is stopped. ``feed`` gets every sample."""

    def __init__(self, meminfo: MemInfo, sample_s: float = 0.5) -> None:
        self.meminfo = meminfo
        self.sample_s = sample_s
        self.reading = Reading(None, 0, problem="not read yet")
        self.loading_bytes: Callable[[], int] = lambda: 0
        self._engines: dict[str, EngineMemory] = {}
        self._before: dict[str, int] = {}  # available when the engine began to load
        self._own: Mapping[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, feed: Callable[[MemorySampled], None]) -> None:
        """Takes the first sample at once, the others in tasks of this loop."""
        self._sample(feed)
        self._tasks = [
            asyncio.create_task(self._keep_sampling(feed), name="memory samples"),
            asyncio.create_task(self._keep_measuring(), name="memory parts"),
        ]

    async def stop(self) -> None:
        """May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------ engines

    def engine_loading(self, engine: str) -> None:
        """Its process was started: what is available falls from here on."""
        self._engines.pop(engine, None)
        available = self.meminfo.read().available_bytes
        if available is not None:
            self._before[engine] = available

    def engine_ready(self, engine: str, pid: int | None) -> int | None:
        """It has loaded. Returns what it took all in all (bytes), as far as that can be told."""
        before, now = self._before.pop(engine, None), self.meminfo.read().available_bytes
        own = own_bytes(pid) if pid else None
        fell = max(0, before - now) if before is not None and now is not None else None
        if pid:
            # Beside it others may have taken some of it; a little is no GPU's part.
            device = max(0, fell - own) if fell is not None and own is not None else 0
            device = device if own is not None and device > max(own // 4, _GPU_PART_BYTES) else 0
            self._engines[engine] = EngineMemory(pid, own, device)
            return own + device if own is not None else fell
        return fell

    def taken_bytes(self, engine: str, pid: int | None) -> int:
        """What an engine that loads has taken so far. Of what a GPU holds only the fall of what is
        available tells; a small fall is not taken for that, others may have caused it."""
        own = (own_bytes(pid) if pid else None) or 0
        before, now = self._before.get(engine), self.reading.available_bytes
        fell = before - now if before is not None and now is not None else 0
        return fell if fell - own > _GPU_PART_BYTES else own

    def engine_gone(self, engine: str) -> None:
        self._engines.pop(engine, None)

    # ------------------------------------------------------------ samples

    async def _keep_sampling(self, feed: Callable[[MemorySampled], None]) -> None:
        while True:
            await asyncio.sleep(self.sample_s)
            self._sample(feed)

    def _sample(self, feed: Callable[[MemorySampled], None]) -> None:
        reading = self.meminfo.read()
        if reading.problem and reading.problem != self.reading.problem:
            log.warning("memory cannot be told, nothing new is admitted: %s", reading.problem)
        elif self.reading.problem and not reading.problem:
            log.info("memory: %.1f GiB available", (reading.available_bytes or 0) / 2**30)
        self.reading = reading
        feed(
            MemorySampled(
                reading.available_bytes,
                reading.total_bytes,
                loading_bytes=self.loading_bytes(),
                grown=tuple(self._grown()),
                stalled=reading.stalled or 0.0,
                text=reading.problem,
            )
        )

    def _grown(self) -> list[tuple[str, int]]:
        found = []
        for name, engine in self._engines.items():
            own = own_bytes(engine.pid)
            if own is not None and engine.at_ready_bytes is not None:
                found.append((name, own - engine.at_ready_bytes))
        return found

    # ------------------------------------------------------------ parts

    async def _keep_measuring(self) -> None:
        while True:
            await asyncio.to_thread(self._measure)
            await asyncio.sleep(_PARTS_EVERY_S)

    def _measure(self) -> None:
        apart = {engine.pid for engine in self._engines.values()}
        self._own = family_pss_bytes(os.getpid(), apart)
        for engine in list(self._engines.values()):
            engine.pss = pss_bytes(engine.pid) or {}

    def engine_parts(self) -> dict[str, dict[str, int]]:
        """By engine: anon, shmem, device; and file, which is page cache and counts as available."""
        return {
            name: {"anon": 0, "shmem": 0, "file": 0, **engine.pss, "device": engine.device_bytes}
            for name, engine in self._engines.items()
        }

    def parts(self) -> dict[str, int]:
        """Who holds what is used: slotwise, each engine, and all others. They add up to MemTotal -
        MemAvailable; a figure that is newer than the rest is cut rather than make ``other``
        negative. Empty where memory cannot be told."""
        reading = self.reading
        if reading.available_bytes is None:
            return {}
        left = reading.total_bytes - reading.available_bytes
        found = {}
        taken = {name: _taken(parts) for name, parts in self.engine_parts().items()}
        for name, n_bytes in ({SLOTWISE: _taken(self._own)} | taken).items():
            found[name] = min(n_bytes, left)
            left -= found[name]
        return {**found, OTHER: left}


def _taken(parts: Mapping[str, int]) -> int:
    return sum(n_bytes for kind, n_bytes in parts.items() if kind != "file")

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

from slotwise.proxy.core.events import MemorySampled
from slotwise.proxy.memory.meminfo import MemInfo, Reading, family_pss_bytes, own_bytes, pss_bytes

log = logging.getLogger(__name__)

_PARTS_EVERY_S = 5.0
_GPU_PART_BYTES = 2**29  # so much in no process's pages, and a GPU explains it
SLOTWISE, FREE_LISTS, OTHER = "slotwise", "free_lists", "other"
_TAKEN_NAMES = (SLOTWISE, FREE_LISTS, OTHER)


@dataclass(slots=True)
class EngineMemory:
    """One engine's process. ``device_bytes``: what was taken while it loaded and no process
    shows: the part a GPU holds."""

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
        self._before: dict[str, Reading] = {}  # when the engine began to load
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
        self._before[engine] = self.meminfo.read()

    def engine_ready(self, engine: str, pid: int | None) -> int | None:
        """It has loaded. Returns what it took all in all (bytes), as far as that can be told."""
        before, now = self._before.pop(engine, None), self.meminfo.read()
        own = own_bytes(pid) if pid else None
        if pid and own is not None:
            device = _on_gpu(before, now, own)
            device = device if device > own // 4 else 0
            self._engines[engine] = EngineMemory(pid, own, device)
            return own + device
        if before is None or before.available_bytes is None or now.available_bytes is None:
            return None
        return max(0, before.available_bytes - now.available_bytes)

    def taken_bytes(self, engine: str, pid: int | None) -> int:
        """What an engine that loads has taken so far."""
        own = (own_bytes(pid) if pid else None) or 0
        return own + _on_gpu(self._before.get(engine), self.reading, own)

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
        apart = {engine.pid for engine in list(self._engines.values())}  # the loop may add one
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
        """Who holds what is used: slotwise, each engine, the kernel's lists of free pages, and all
        others. They add up to MemTotal - MemAvailable; a figure that is newer than the rest is cut
        rather than make ``other`` negative. Empty where memory cannot be told."""
        reading = self.reading
        if reading.available_bytes is None:
            return {}
        left = reading.total_bytes - reading.available_bytes
        holders = {SLOTWISE: _taken(self._own)}
        for name, parts in self.engine_parts().items():
            holders[f"engine {name}" if name in _TAKEN_NAMES else name] = _taken(parts)
        holders[FREE_LISTS] = reading.free_lists_bytes
        found = {}
        for name, n_bytes in holders.items():
            found[name] = min(n_bytes, left)
            left -= found[name]
        on_lists = found.pop(FREE_LISTS)
        return {**found, OTHER: left, FREE_LISTS: on_lists}  # free ones beside what is available


def _on_gpu(before: Reading | None, now: Reading, own_bytes: int) -> int:
    """What was taken since and is in no process's pages. Others may load beside it, so the pages
    of all count off, where they are told; a small rise is not taken for a GPU's part."""
    if before is None or before.available_bytes is None or now.available_bytes is None:
        return 0
    rose = now.used_bytes - before.used_bytes
    if before.processes_bytes is None or now.processes_bytes is None:
        rose -= own_bytes
    else:
        rose -= now.processes_bytes - before.processes_bytes
    return rose if rose > _GPU_PART_BYTES else 0


def _taken(parts: Mapping[str, int]) -> int:
    return sum(n_bytes for kind, n_bytes in parts.items() if kind != "file")

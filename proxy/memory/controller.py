"""Memory in the shell, all in one place: the watch, what is taken back, what gave way, the figures.

The driver asks here what an engine may still take, and the launcher says here which engines gave
way. Without a watch (an engine of a test, memory switched off) all of it is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from slotwise.policies.admission import Growth
from slotwise.proxy.core.events import (
    Action,
    Event,
    Level,
    MemorySampled,
    ProfileUnloaded,
    Reclaim,
    Reclaimed,
    ReclaimEnded,
    Refuse,
)
from slotwise.proxy.core.memory import MemoryGate
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.memory.watch import MemoryWatch
from slotwise.proxy.telemetry.memory_metrics import MemorySeries

log = logging.getLogger(__name__)

_LIMIT_S = 60.0  # of one Reclaim; an engine takes up to 15 s to end
_ERASE_LIMIT_S = 10.0

Unload = Callable[[Reclaim], Awaitable[str]]


class Reclaimer:
    """``client``: of an engine by its name; raises ``EngineUnreachableError``."""

    def __init__(
        self, client: Callable[[str], EngineClient], feed: Callable[[ReclaimEnded], None]
    ) -> None:
        self.unload: Unload | None = None
        self._client = client
        self._feed = feed
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, action: Reclaim) -> None:
        """Begins it; never waits."""
        log.warning("memory: %s of %s: %s", action.level, action.target, action.why)
        task = asyncio.get_running_loop().create_task(self._run(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ERASE_LIMIT_S)

    async def _run(self, action: Reclaim) -> None:
        failed = "cut off"
        try:
            async with asyncio.timeout(_LIMIT_S):
                failed = await self._do(action)
        except TimeoutError:
            failed = f"not done within {_LIMIT_S:g} s"
        except (EngineUnreachableError, UpstreamError) as error:
            failed = str(error)
        except Exception as error:
            log.exception("memory: %s of %s", action.level, action.target)
            failed = f"{type(error).__name__}: {error}"
        finally:
            self._feed(ReclaimEnded(action.level, action.target, failed))

    async def _do(self, action: Reclaim) -> str:
        if action.level is Level.CHECKPOINTS:
            client = self._client(action.target)
            for id_slot in action.slots:
                path = f"/slots/{id_slot}?action=erase"
                await client.call("POST", path, timeout_s=_ERASE_LIMIT_S)
            return ""
        if self.unload is None:
            return "slotwise did not start this engine"
        return await self.unload(action)


def say(action: Reclaimed) -> None:
    """What a level gave back, in the log."""
    gave = action.given_back_bytes / 2**20
    level = log.info if action.result == "done" else log.warning
    level(
        "memory: %s of %s gave back %.0f MiB: %s%s",
        action.level,
        action.target,
        gave,
        action.result,
        "; left alone for 10 minutes" if action.result != "done" else "",
    )


class MemoryDesk:
    """Of one driver. ``feed``: the driver's own."""

    def __init__(
        self,
        gate: MemoryGate,
        watch: MemoryWatch | None,
        client: Callable[[str], EngineClient],
        feed: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self.watch = watch
        self.reclaimer = Reclaimer(client, feed)
        self.pid_of: Callable[[str], int | None] = lambda engine: None
        self.size_known: Callable[[str, int], None] = lambda engine, n_bytes: None
        self.roles: dict[str, str] = {}  # name of a small model -> its state
        self.wanted: Callable[[str], bool] = lambda profile: False
        self.sampled: Callable[[bool], None] = lambda reclaiming: None
        self._gate = gate
        self._feed = feed
        self._clock = clock
        self._started_at = clock()

    def start(self) -> None:
        """Begins to watch, in the running loop."""
        if self.watch is not None:
            self.watch.start(self._feed)

    async def close(self) -> None:
        """Ends the watch and what is under way. May be called twice."""
        if self.watch is not None:
            await self.watch.stop()
        await self.reclaimer.close()

    def observe(self, event: Event, actions: Iterable[Action]) -> None:
        """What passed the scheduler: a sample goes on to whoever plans with it."""
        reclaims = False
        for action in actions:
            if isinstance(action, Reclaim):
                reclaims = True
                self.reclaimer.run(action)
            elif isinstance(action, Reclaimed):
                say(action)
        if isinstance(event, MemorySampled):
            self.sampled(reclaims or self._gate.reclaiming is not None)

    # ------------------------------------------------------------ engines

    def engine_loading(self, engine: str) -> None:
        if self.watch is not None:
            self.watch.engine_loading(engine)

    def engine_ready(self, engine: str, growth: Growth, peak_bytes: int | None) -> Growth:
        """What it may still take: by its declared peak no more than that less what it took."""
        if self.watch is None:
            return growth
        took = self.watch.engine_ready(engine, self.pid_of(engine))
        if took is None:
            return growth
        self.size_known(engine, took)
        if peak_bytes is None:
            return growth
        return replace(growth, most_bytes=max(0, peak_bytes - took))

    def engine_gone(self, engine: str) -> None:
        if self.watch is not None:
            self.watch.engine_gone(engine)

    def unload(self, profile: str, retry_after_s: int) -> None:
        """Its engine gave way, or did not start, for want of memory."""
        self._feed(ProfileUnloaded(profile, retry_after_s))

    def not_loaded(self, profile: str) -> Refuse | None:
        """What to say to who asks for a profile that gave way; None: an engine may come."""
        if profile not in self._gate.unloaded or self.wanted(profile):
            return None
        return self._gate.not_loaded(profile, "")

    def show_roles(self, states: dict[str, str]) -> None:
        """The state of each small model, by its name."""
        self.roles = states

    # ------------------------------------------------------------ figures

    def for_newcomers(self) -> tuple[int, int, int, int] | None:
        """What a model that is to be loaded finds, in bytes: available, the floor, what others may
        still take, and the margin. None: it cannot be told."""
        room = self._gate.room(self._clock())
        if room is None:
            return None
        growth = self._gate.reserves.growth_to_come() + room.loading
        return room.available, room.floor, growth, room.margin

    def json(self, now: float) -> dict[str, object]:
        """For ``/slotwise/status``, in bytes and seconds; ``parts`` add up to what is used."""
        figures = self._gate.snapshot(now)
        figures["roles"] = dict(self.roles)
        if self.watch is None:
            return {**figures, "parts": {}, "source": None, "problem": "memory is not watched"}
        return {
            **figures,
            "parts": self.watch.parts(),
            "engines": self.watch.engine_parts(),
            "source": self.watch.meminfo.sources(),
            "problem": self.watch.reading.problem or None,
        }

    def sync(self, series: MemorySeries) -> None:
        """Set the gauges to what is so now."""
        now = self._clock()
        split, engines = {}, {}
        if self.watch is not None:
            split, engines = self.watch.parts(), self.watch.engine_parts()
        series.sync(self._gate.snapshot(now), split, engines, self.roles, now - self._started_at)

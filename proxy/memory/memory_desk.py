"""Memory in the shell, all in one place: the watch, what is taken back, what gave way, the figures.

The driver asks here what an engine may still take, and the launcher says here which engines gave
way. Without a watch (an engine of a test, memory switched off) all of it is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from slotwise.policies.admission import Growth
from slotwise.proxy.core.actions import Action, Reclaim, Reclaimed, Refuse
from slotwise.proxy.core.events import Event, MemorySampled, ProfileUnloaded
from slotwise.proxy.core.memory_gate import MemoryGate
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.memory.reclaimer import Reclaimer, say
from slotwise.proxy.memory.watch import MemoryWatch
from slotwise.proxy.telemetry.memory_series import MemorySeries


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

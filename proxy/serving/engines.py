"""The engines in the shell, all in one place: their lives, who is ready, and who waits for one.

The launcher says here what becomes of an engine. It is used once it was looked at, and given up at
once when it is lost: nothing it held is left, and its requests end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from slotwise.proxy.core.events import EngineLoading, EngineReady, Event
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.pace import Pace
from slotwise.proxy.engine.probe import ProbeResult
from slotwise.proxy.engine.slots_poller import SlotsPoller
from slotwise.proxy.errors import EngineUnreachableError, ProxyError, refused
from slotwise.proxy.memory.controller import MemoryController
from slotwise.proxy.serving.served import EngineRun, ServedProfile, build_of, look_at
from slotwise.proxy.telemetry.metrics import Metrics
from slotwise.proxy.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SHUTTING_DOWN = "slotwise is shutting down"
_CLOSE_TIMEOUT_S = 5.0


class EngineRegistry:
    """Of one driver. ``feed``: the driver's own; ``lost``: engine, cause and story of a loss."""

    def __init__(
        self,
        profiles: Mapping[str, ServedProfile],
        feed: Callable[[Event], None],
        lost: Callable[[str, str, str], None],
        *,
        memory: MemoryController,
        metrics: Metrics,
        tokenizer: Tokenizer,
        clock: Callable[[], float],
        pace: Pace,
    ) -> None:
        self.lives: dict[str, EngineRun] = {}  # the last one of each engine
        self.models: dict[str, dict[str, Any]] = {}  # /v1/models of each profile, as last asked
        self.on_hung: Callable[[str, str], None] | None = None
        self._profiles = profiles
        self._feed = feed
        self._lost = lost
        self._memory = memory
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._clock = clock
        self._pace = pace
        self._changed = asyncio.Event()  # set, and replaced, when an engine comes up
        self._lost_reason: dict[str, str] = {}
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ what can be asked

    def client(self, engine: str) -> EngineClient:
        """The client of an engine that a dispatch names."""
        life = self.lives.get(engine)
        if life is None or life.client is None:
            raise EngineUnreachableError(f"engine {engine} is gone", sent=False)
        return life.client

    def serving(self) -> dict[str, EngineClient]:
        """The clients of the engines that serve, by name."""
        return {e.name: e.client for e in self.lives.values() if e.state == "up" and e.client}

    def of_profile(self, profile: str) -> list[EngineRun]:
        """Every engine of it, in whatever state."""
        return [life for life in self.lives.values() if life.profile == profile]

    def ready(self, profile: str) -> EngineRun | None:
        """An engine of it that serves."""
        return next(
            (e for e in self.lives.values() if e.profile == profile and e.state == "up"), None
        )

    def not_ready_text(self, profile: str) -> str:
        """Why none does."""
        lives = self.of_profile(profile)
        reported = "; ".join(f"{e.name} {e.state}: {e.text}" for e in lives) or "not started"
        return f"no engine of {profile} is ready ({reported})"

    async def wait_ready(self, profile: str, timeout_s: float) -> EngineClient:
        """A ready engine of this profile; raises a 503 after ``timeout_s``."""
        life = self.ready(profile)
        if life is not None and life.client is not None and not self._closed:
            return life.client  # nearly always
        try:
            async with asyncio.timeout(timeout_s):
                while not self._closed:
                    life = self.ready(profile)
                    if life is not None and life.client is not None:
                        return life.client
                    self._refuse_unloaded(profile)
                    await self._changed.wait()
        except TimeoutError:
            raise ProxyError(
                503, "engine_loading", self.not_ready_text(profile), retry_after_s=10
            ) from None
        raise ProxyError(503, "shutting_down", SHUTTING_DOWN, retry_after_s=10)

    def _refuse_unloaded(self, profile: str) -> None:
        """One that gave way to others is said at once, since nobody knows for how long."""
        reported = self._memory.not_loaded(profile)
        if reported is not None:
            self._metrics.memory.admission("unloaded")
            raise refused(reported)

    # ------------------------------------------------------------ what becomes of them

    def suspect(self, life: EngineRun) -> None:
        """It did not answer where it should have: ``/slots`` tells whether it hangs."""
        if life.poller is not None:
            life.poller.ask()

    def ask_slots(self, engine: str) -> None:
        """Ask this engine for ``/slots`` soon."""
        life = self.lives.get(engine)
        if life is not None:
            self.suspect(life)

    def unloaded(self, profile: str, retry_after_s: int) -> None:
        """No engine of this profile runs, for want of memory: nobody waits for one."""
        self._memory.unload(profile, retry_after_s)
        self._wake_who_waits()

    def starting(self, engine: str, profile: str, text: str) -> None:
        """Progress of a start, for the status page and ``/health/ready``."""
        self._count_restart(engine)
        life = self.lives.get(engine)
        if life is None or life.state not in ("probing", "up"):
            if life is None or life.state != "starting":
                self._memory.engine_loading(engine)
                self._feed(EngineLoading(engine, profile))
            self.lives[engine] = EngineRun(engine, profile, "starting", text)
            self._metrics.engine_state(engine, False)

    async def up(self, engine: str, profile: str, url: str, api_key: str | None) -> bool:
        """An engine listens: ask what it is, then use it. False: it did not answer, or was lost."""
        before = self.lives.get(engine)
        if before is not None and before.state != "starting":  # a start that ends well is no loss
            self.down(engine, "replaced")
        self._count_restart(engine)
        client = EngineClient(url, api_key)
        life = EngineRun(engine, profile, "probing", "asking whether pins hold", client)
        self.lives[engine] = life
        result = await look_at(life, client, self._pace.between_s)
        if self.lives.get(engine) is not life or life.state != "probing":
            return False
        life.probe = result
        life.text = result.text
        if not result.reachable:
            self.down(engine, "refused", result.text)
            return False
        self._use(life, client, result)
        return True

    def _use(self, life: EngineRun, client: EngineClient, result: ProbeResult) -> None:
        """It was looked at: from now on requests are placed on it."""
        engine, profile = life.name, life.profile
        served = self._profiles[profile]
        if not result.pins:
            log.warning("engine %s serves without pins: %s", engine, result.text)
        windows = result.windows
        if served.windows is not None:
            # Never a slot that is not there (pins wrap around), nor more than it can hold.
            windows = tuple(map(min, served.windows, result.windows))
        if life.models is not None:
            self.models[profile] = life.models
        hung = partial(self._hung, engine)
        pace = replace(self._pace, still_s=served.params.engine_silence_s)
        life.poller = SlotsPoller(engine, client, self._clock, self._feed, hung, pace)
        life.state = "up"
        self._tokenizer.ready(client, profile)
        self._metrics.engine_state(engine, True)
        self._metrics.engine_build(build_of(result, served))
        # Of a unified KV each slot's own window is the whole pool.
        pool = max(result.windows) if served.kv_unified else None
        growth = self._memory.engine_ready(engine, served.growth, served.peak_bytes)
        pins, empties = result.pins, result.empties
        self._feed(EngineReady(engine, profile, windows, pool, pins, growth, empties))
        self._wake_who_waits()

    def down(self, engine: str, reason: str, text: str = "") -> None:
        """An engine is gone or going: nothing it held is left, its requests end now.

        ``reason``: the cause in a word, for the series; ``text``: the story, for people.
        """
        life = self.lives.get(engine)
        if life is None or life.state == "down":
            return
        was_up = life.state == "up"
        life.state, life.text = "down", text or reason
        self._lost_reason[engine] = reason
        self._memory.engine_gone(engine)
        if life.poller is not None:
            life.poller.stop()
        if was_up:
            self._metrics.engine_state(engine, False)
            self._lost(engine, reason, life.text)
        if life.client is not None:
            client, life.client = life.client, None
            self._close_soon(client)

    def _count_restart(self, engine: str) -> None:
        if (reason := self._lost_reason.pop(engine, None)) is not None:
            self._metrics.engine_restarted(engine, reason)

    def _wake_who_waits(self) -> None:
        """Something is otherwise than it was for who waits for an engine."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _close_soon(self, client: EngineClient) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _hung(self, engine: str, reason: str) -> None:
        log.error("engine %s hangs: %s", engine, reason)
        if self.on_hung is not None:
            self.on_hung(engine, reason)

    def give_up(self) -> None:
        """All of them, and let nobody wait for one any more. May be called twice."""
        self._closed = True
        for engine in list(self.lives):
            self.down(engine, "shutting_down", SHUTTING_DOWN)
        self._wake_who_waits()

    async def close(self) -> None:
        """After :meth:`give_up`: until their connections are closed, or a few seconds."""
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=_CLOSE_TIMEOUT_S)

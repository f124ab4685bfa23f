"""The shell around the scheduler: feeds it what happens and runs what it says.

Every event goes one way: ``handle``, then metrics and journal see the same event and actions, then
the actions are run, and behind them the history takes its account. Nothing in here decides
anything; nothing in the scheduler waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from policies.types import Request
from proxy.actions import Action, AskSlots, Dispatch, Mismatch, Refuse, WakeAt
from proxy.afterwards import Afterwards
from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError, ProxyError, refused
from proxy.events import (
    EngineLoading,
    EngineLost,
    EngineReady,
    Event,
    Failure,
    RequestArrived,
    RequestFailed,
    Tick,
)
from proxy.history import DEFAULT_KEEP_BYTES, History
from proxy.ledger import Ledger
from proxy.life import EngineLife, build_of, look_at
from proxy.life import ServedProfile as ServedProfile
from proxy.memory import MemoryWatch
from proxy.memory_desk import MemoryDesk
from proxy.memory_gate import MemoryRules
from proxy.metrics import Metrics
from proxy.poller import Pace, SlotsPoller
from proxy.probe import ProbeResult
from proxy.scheduler import Scheduler
from proxy.status import Waiting
from proxy.thinned import Thinned, Writer
from proxy.ticket import Ticket
from proxy.tokenize import Tokenizer

log = logging.getLogger(__name__)

_TIMER_SLACK_S = 0.001  # timers may fire a tick of the loop's clock early
_CLOSE_TIMEOUT_S = 5.0
_SHUTTING_DOWN = "slotwise is shutting down"


class Driver:
    """Owns the scheduler, the engines' clients, the metrics and the timers."""

    def __init__(
        self,
        profiles: Sequence[ServedProfile],
        journal: Writer | None = None,
        *,
        ledger: Ledger | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        clock: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        memory: MemoryRules | None = None,
        watch: MemoryWatch | None = None,
    ) -> None:
        """``memory`` and ``watch``: how the machine's memory is watched; None: it is not."""
        self.profiles = {profile.name: profile for profile in profiles}
        self.names = _names(profiles)  # every name a model answers to -> its profile
        self.scheduler = Scheduler({p.name: p.params for p in profiles}, memory)
        gate = self.scheduler.memory
        self.memory = MemoryDesk(gate, watch, self.client, self.feed, clock)
        self.metrics = Metrics(list(self.profiles), clock)
        offset_s = time.time() - clock()
        self._history = History(self.scheduler.cost, keep_bytes, offset_s=offset_s)
        self.engines: dict[str, EngineLife] = {}
        self.models: dict[str, dict[str, Any]] = {}  # /v1/models of each profile, as last asked
        self.on_engine_hung: Callable[[str, str], None] | None = None
        self.clock = clock
        self.events_seen = 0  # grows with every event: who shows the state sees that it changed
        self._afterwards = Afterwards()
        self._journal = Thinned(journal, self.scheduler.is_calm) if journal else None
        self._ledger = ledger
        self.tokenizer = Tokenizer(sources={p.name: p.tokenizer for p in profiles})
        self.pace = pace or Pace()
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._changed = asyncio.Event()  # set, and replaced, when an engine comes up
        self._lost_reason: dict[str, str] = {}
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------ events and actions

    def feed(self, event: Event) -> None:
        """One event through the scheduler, and what follows from it."""
        now = self.clock()
        self.events_seen += 1
        actions = self.scheduler.handle(event, now)
        self.metrics.observe(event, actions, now)
        if self._journal is not None:
            self._journal.write(now, event, actions)
        self._afterwards.add(partial(self._write_down, now, event, actions))
        for action in actions:
            self._run(action)
        self.memory.observe(event, actions)

    def _write_down(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """In the order of the events, behind what they led to: a request does not wait for it."""
        record = self._history.observe(event, actions, now)
        if record is not None:
            self.metrics.attributed(record)
            if self._ledger is not None:
                self._ledger.write(record)

    def note(self, id: str, **known: Any) -> None:
        """What is learnt of a request beside its events, for its record."""
        self._afterwards.add(partial(self._history.note, id, **known))

    @property
    def history(self) -> History:
        """What became of the requests, up to now."""
        self._afterwards.catch_up()
        return self._history

    def _run(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatched(action)
            case Refuse():
                if ticket := self._tickets.pop(action.id, None):
                    ticket.refused(action)
            case AskSlots():
                life = self.engines.get(action.engine)
                if life is not None and life.poller is not None:
                    life.poller.ask()
            case WakeAt():
                self._wake_at(action.at)
            case Mismatch():
                log.warning("slot %s, request %s: %s", action.slot, action.id or "-", action.what)

    def _dispatched(self, action: Dispatch) -> None:
        ticket = self._tickets.get(action.id)
        if ticket is None:  # never without a bug; the slot must not be lost all the same
            log.error("request %s was dispatched, but nobody waits for it", action.id)
            self.feed(RequestFailed(action.id, Failure.CLIENT_GONE, started=False))
            return
        ticket.dispatched(action)

    def _wake_at(self, at: float) -> None:
        """Keep the earliest timer: one Tick too many is harmless, the scheduler asks anew."""
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay_s = max(0.0, at - self.clock()) + _TIMER_SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self.feed(Tick())

    # ------------------------------------------------------------ requests

    def submit(self, request: Request) -> Ticket:
        """Hand a request to the scheduler. The caller closes the ticket, whatever happens."""

        def feed(event: Event) -> None:
            if self._tickets.get(request.id) is ticket and ticket.ended:
                del self._tickets[request.id]
            self.feed(event)

        ticket = Ticket(request, feed)
        self._tickets[request.id] = ticket
        self.feed(RequestArrived(request))
        return ticket

    def waiting_for(self, id: str) -> Waiting | None:
        return self.scheduler.waiting_for(id, self.clock())

    def client(self, engine: str) -> EngineClient:
        """The client of an engine that a dispatch names."""
        life = self.engines.get(engine)
        if life is None or life.client is None:
            raise EngineUnreachableError(f"engine {engine} is gone", sent=False)
        return life.client

    def ready_engine(self, profile: str) -> EngineLife | None:
        return next(
            (e for e in self.engines.values() if e.profile == profile and e.state == "up"), None
        )

    def suspect(self, life: EngineLife) -> None:
        """It did not answer where it should have: ``/slots`` tells whether it hangs."""
        if life.poller is not None:
            life.poller.ask()

    async def wait_ready(self, profile: str, timeout_s: float) -> EngineClient:
        """A ready engine of this profile; raises a 503 after ``timeout_s``."""
        life = self.ready_engine(profile)
        if life is not None and life.client is not None and not self._closed:
            return life.client  # nearly always
        try:
            async with asyncio.timeout(timeout_s):
                while not self._closed:
                    life = self.ready_engine(profile)
                    if life is not None and life.client is not None:
                        return life.client
                    absent = profile in self.scheduler.memory.unloaded
                    if absent and not self.memory.wanted(profile):
                        raise self._not_loaded(profile)
                    await self._changed.wait()
        except TimeoutError:
            raise ProxyError(
                503, "engine_loading", self.not_ready_text(profile), retry_after_s=10
            ) from None
        raise ProxyError(503, "shutting_down", _SHUTTING_DOWN, retry_after_s=10)

    def _not_loaded(self, profile: str) -> ProxyError:
        """It gave way to others: to be said at once, since nobody knows for how long."""
        self.metrics.memory.admission("unloaded")
        return refused(self.scheduler.memory.not_loaded(profile, ""))

    def profile_unloaded(self, profile: str, retry_after_s: int) -> None:
        """No engine of this profile runs, for want of memory: nobody waits for one."""
        self.memory.unload(profile, retry_after_s)
        self._wake_who_waits_for_engines()

    def not_ready_text(self, profile: str) -> str:
        lives = [e for e in self.engines.values() if e.profile == profile]
        told = "; ".join(f"{e.name} {e.state}: {e.text}" for e in lives) or "not started"
        return f"no engine of {profile} is ready ({told})"

    # ------------------------------------------------------------ engines

    def engine_starting(self, engine: str, profile: str, text: str) -> None:
        """Progress of a start, for the status page and ``/health/ready``."""
        self._count_restart(engine)
        life = self.engines.get(engine)
        if life is None or life.state not in ("probing", "up"):
            if life is None or life.state != "starting":
                self.memory.engine_loading(engine)
                self.feed(EngineLoading(engine, profile))
            self.engines[engine] = EngineLife(engine, profile, "starting", text)
            self.metrics.engine_state(engine, False)

    async def engine_up(self, engine: str, profile: str, url: str, api_key: str | None) -> bool:
        """An engine listens: ask what it is, then use it. False: it did not answer, or was lost."""
        self.engine_down(engine, "replaced")
        self._count_restart(engine)
        client = EngineClient(url, api_key)
        life = EngineLife(engine, profile, "probing", "asking whether pins hold", client)
        self.engines[engine] = life
        result = await look_at(life, client, self.pace.between_s)
        if self.engines.get(engine) is not life or life.state != "probing":
            return False
        life.probe = result
        life.text = result.text
        if not result.reachable:
            self.engine_down(engine, "refused", result.text)
            return False
        self._use(life, client, result)
        return True

    def _use(self, life: EngineLife, client: EngineClient, result: ProbeResult) -> None:
        """It was looked at: from now on requests are placed on it."""
        engine, profile = life.name, life.profile
        served = self.profiles[profile]
        if not result.pins:
            log.warning("engine %s serves without pins: %s", engine, result.text)
        windows = result.windows
        if served.windows is not None:
            # Never a slot that is not there (pins wrap around), nor more than it can hold.
            windows = tuple(map(min, served.windows, result.windows))
        if life.models is not None:
            self.models[profile] = life.models
        hung = partial(self._hung, engine)
        pace = replace(self.pace, still_s=served.params.queue.engine_silence_s)
        life.poller = SlotsPoller(engine, client, self.clock, self.feed, hung, pace)
        life.state = "up"
        self.tokenizer.ready(client, profile)
        self.metrics.engine_state(engine, True)
        self.metrics.engine_build(build_of(result, served))
        # Of a unified KV each slot's own window is the whole pool.
        pool = max(result.windows) if served.kv_unified else None
        growth = self.memory.engine_ready(engine, served.growth, served.peak_bytes)
        self.feed(EngineReady(engine, profile, windows, pool, result.pins, growth))
        self._wake_who_waits_for_engines()

    def _count_restart(self, engine: str) -> None:
        if (reason := self._lost_reason.pop(engine, None)) is not None:
            self.metrics.engine_restarted(engine, reason)

    def _wake_who_waits_for_engines(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def engine_down(self, engine: str, reason: str, text: str = "") -> None:
        """An engine is gone or going: nothing it held is left, its requests end now.

        ``reason``: the cause in a word, for the series; ``text``: the story, for people.
        """
        life = self.engines.get(engine)
        if life is None or life.state == "down":
            return
        was_up = life.state == "up"
        life.state, life.text = "down", text or reason
        self._lost_reason[engine] = reason
        self.memory.engine_gone(engine)
        if life.poller is not None:
            life.poller.stop()
        if was_up:
            self.metrics.engine_state(engine, False)
            # The loss first: else an ending would hand its slot to the next request.
            self.feed(EngineLost(engine, reason))
            for ticket in list(self._tickets.values()):
                if ticket.dispatch is not None and ticket.dispatch.slot.engine == engine:
                    ticket.engine_lost(life.text)
        if life.client is not None:
            client, life.client = life.client, None
            self._close_soon(client)

    def _close_soon(self, client: EngineClient) -> None:
        task = asyncio.get_running_loop().create_task(client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _hung(self, engine: str, reason: str) -> None:
        log.error("engine %s hangs: %s", engine, reason)
        if self.on_engine_hung is not None:
            self.on_engine_hung(engine, reason)

    async def close(self) -> None:
        """Give every engine up, answer everybody who still waits, and let nothing run on.

        May be called twice.
        """
        self._closed = True
        for engine in list(self.engines):
            self.engine_down(engine, "shutting_down", _SHUTTING_DOWN)
        for ticket in list(self._tickets.values()):
            ticket.close()
            ticket.refused(Refuse(ticket.request.id, 503, "shutting_down", _SHUTTING_DOWN, 10))
        self._wake_who_waits_for_engines()
        if self._timer is not None:
            self._timer.cancel()
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=_CLOSE_TIMEOUT_S)
        await self.memory.close()
        await self.tokenizer.close()
        self._afterwards.catch_up()
        for file in (self._journal, self._ledger):
            if file is not None:
                await asyncio.to_thread(file.close)


def _names(profiles: Sequence[ServedProfile]) -> dict[str, str]:
    names = {profile.name: profile.name for profile in profiles}
    for profile in profiles:
        for alias in profile.aliases:
            names.setdefault(alias, profile.name)
    return names

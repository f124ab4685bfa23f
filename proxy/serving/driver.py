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

from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    Dispatch,
    EngineLost,
    Event,
    Failure,
    Mismatch,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.memory import MemoryRules
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.core.snapshot import Waiting
from slotwise.proxy.engine.pace import Pace
from slotwise.proxy.engine.sse import Progress, Seen
from slotwise.proxy.errors import refused
from slotwise.proxy.history.history import DEFAULT_KEEP_BYTES, History
from slotwise.proxy.memory.controller import MemoryController
from slotwise.proxy.memory.watch import MemoryWatch
from slotwise.proxy.serving.engines import SHUTTING_DOWN, EngineRegistry
from slotwise.proxy.serving.served import ServedProfile
from slotwise.proxy.telemetry.journal import Thinned, Writer
from slotwise.proxy.telemetry.metrics import Metrics
from slotwise.proxy.telemetry.request_log import RequestLog
from slotwise.proxy.tokens.tokenizer import Tokenizer


class Ticket:
    """Made by the driver when a request is submitted; the relay holds it until the end."""

    def __init__(self, request: Request, feed: Callable[[Event], None]) -> None:
        self.request = request
        self.dispatch: Dispatch | None = None
        self.lost: str | None = None  # why the engine is gone, once it is
        self.sent = False  # the engine may have got it
        self.ended = False
        self.seen: Seen | None = None  # what the answer told so far, once there is one
        self._feed = feed
        self._refusal: Refuse | None = None
        self._decided = asyncio.Event()
        self._guard: asyncio.Timeout | None = None

    # ------------------------------------------------------------ the driver's side

    def dispatched(self, action: Dispatch) -> None:
        self.dispatch = action
        self._decided.set()

    def refused(self, action: Refuse) -> None:
        self._refusal = action
        self.ended = True
        self._decided.set()

    def engine_lost(self, reason: str) -> None:
        """The engine is gone: end now, and wake whoever waits for its bytes."""
        self.lost = reason
        self.failed(Failure.ENGINE_LOST)
        if self._guard is not None and not self._guard.expired():
            self._guard.reschedule(asyncio.get_running_loop().time())

    # ------------------------------------------------------------ the relay's side

    async def decided(self) -> Dispatch:
        """Wait for the scheduler's decision; raises ``ProxyError`` when it refuses."""
        await self._decided.wait()
        if self._refusal is not None:
            raise refused(self._refusal)
        assert self.dispatch is not None
        return self.dispatch

    def guarded_by(self, guard: asyncio.Timeout | None) -> None:
        """The time-out around the wait for the engine, so that its loss can end that wait."""
        self._guard = guard

    def progressed(self, progress: Progress) -> None:
        if not self.ended:
            self._feed(RequestProgressed(self.request.id, progress.processed, progress.cached))

    def finished(self, seen: Seen) -> None:
        """The engine's own end was read."""
        self._end(
            RequestFinished(
                self.request.id,
                seen.prompt_tokens,
                seen.cached_tokens,
                seen.completion_tokens,
                seen.id_slot,
                seen.prefill_s,
                seen.decode_s,
                seen.finish == "tool_calls",
            )
        )

    def failed(self, failure: Failure) -> None:
        generated = self.seen.generated if self.seen else 0
        self._end(RequestFailed(self.request.id, failure, generated, self.sent))

    def close(self) -> None:
        """The end of the request's life; what is still open is ended. Never waits."""
        if self.dispatch is not None:
            self.failed(Failure.CLIENT_GONE)
        else:
            self._end(RequestCancelled(self.request.id))

    def _end(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            self._feed(event)


log = logging.getLogger(__name__)

_TIMER_SLACK_S = 0.001  # timers may fire a tick of the loop's clock early


class Driver:
    """Owns the scheduler, the engines, the metrics and the timers."""

    def __init__(
        self,
        profiles: Sequence[ServedProfile],
        journal: Writer | None = None,
        *,
        request_log: RequestLog | None = None,
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
        self.memory = MemoryController(
            gate, watch, lambda e: self.engines.client(e), self.feed, clock
        )
        self.metrics = Metrics(list(self.profiles), clock)
        offset_s = time.time() - clock()
        self.history = History(self.scheduler.cost, keep_bytes, offset_s=offset_s)
        self.clock = clock
        self.events_seen = 0  # grows with every event: who shows the state sees that it changed
        self._journal = Thinned(journal, self.scheduler.is_calm) if journal else None
        self._request_log = request_log
        self.tokenizer = Tokenizer(sources={p.name: p.tokenizer for p in profiles})
        self.pace = pace or Pace()
        self.engines = EngineRegistry(
            self.profiles,
            self.feed,
            self._engine_lost,
            memory=self.memory,
            metrics=self.metrics,
            tokenizer=self.tokenizer,
            clock=clock,
            pace=self.pace,
        )
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    # ------------------------------------------------------------ events and actions

    def feed(self, event: Event) -> None:
        """One event through the scheduler, and what follows from it."""
        now = self.clock()
        self.events_seen += 1
        actions = self.scheduler.handle(event, now)
        self.metrics.observe(event, actions, now)
        if self._journal is not None:
            self._journal.write(now, event, actions)
        self._write_down(event, actions, now)
        for action in actions:
            self._run(action)
        self.memory.observe(event, actions)

    def _write_down(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """What happens next has no part in an error of the records: it is logged."""
        try:
            record = self.history.observe(event, actions, now)
            if record is not None:
                self.metrics.attributed(record)
                if self._request_log is not None:
                    self._request_log.write(record)
        except Exception:
            log.exception("noting what happened")

    def _run(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatched(action)
            case Refuse():
                if ticket := self._tickets.pop(action.id, None):
                    ticket.refused(action)
            case AskSlots():
                self.engines.ask_slots(action.engine)
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

    def _engine_lost(self, engine: str, reason: str, text: str) -> None:
        # The loss first: else an ending would hand its slot to the next request.
        self.feed(EngineLost(engine, reason))
        for ticket in list(self._tickets.values()):
            if ticket.dispatch is not None and ticket.dispatch.slot.engine == engine:
                ticket.engine_lost(text)

    async def close(self) -> None:
        """Give every engine up, answer everybody who still waits, and let nothing run on.

        May be called twice.
        """
        self.engines.give_up()
        for ticket in list(self._tickets.values()):
            ticket.close()
            ticket.refused(Refuse(ticket.request.id, 503, "shutting_down", SHUTTING_DOWN, 10))
        if self._timer is not None:
            self._timer.cancel()
        await self.engines.close()
        await self.memory.close()
        await self.tokenizer.close()
        for file in (self._journal, self._request_log):
            if file is not None:
                await asyncio.to_thread(file.close)


def _names(profiles: Sequence[ServedProfile]) -> dict[str, str]:
    names = {profile.name: profile.name for profile in profiles}
    for profile in profiles:
        for alias in profile.aliases:
            names.setdefault(alias, profile.name)
    return names

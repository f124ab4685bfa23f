"""The series on ``/metrics``, fed from the events and actions that pass the driver.

What was reused is what the *engine* reports: a prompt's tokens count as ``cached`` or ``evaluated``
only when it said how many were which. Where it did not, or the request ended without its final
event, the proxy's own count of the prompt goes to ``unknown``, so that the reuse ratio
``cached / (cached + evaluated)`` never mixes knowledge with guesses. Label values come from fixed
sets, from the configuration and from the slots an engine has, so no client can add a series.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Concatenate, ParamSpec

from prometheus_client import CollectorRegistry

from policies.attribution import NO_SECTION, RECOMPUTED, SECTIONS, Cause
from policies.types import Reason, Rule, SlotId
from proxy import exposition, rule_series
from proxy.actions import Action, Dispatch, HoldEnded, Mismatch, Refuse
from proxy.engine_metrics import EngineMetrics
from proxy.events import (
    EngineLost,
    EngineReady,
    Event,
    Failure,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    SlotsReported,
)
from proxy.memory_series import MemorySeries
from proxy.normalize import PARTS
from proxy.record import Record
from proxy.series import Series
from proxy.standing import Standing
from proxy.status import SlotStatus, Waiting

_SOURCES = ("cached", "evaluated", "unknown")
_PINNED_RULES = (Rule.HOME, Rule.BRANCH, Rule.SESSION, Rule.GUEST, Rule.NEW, Rule.AFFINITY)
_PLACED_CODES = (200, 499)  # 499: the client left
_NEVER_PLACED_CODES = (400, 429, 499, 503)
_RESTART_REASONS = (
    "exited",
    "hung",
    "silent",
    "not_started",
    "not_ready",
    "refused",
    "unloaded",
    "other",
)
_UNKNOWN = "unknown"
_AT_ONCE = 256  # noted, at most; a request has about eight
P = ParamSpec("P")
_MAX_BUILDS = 16  # an engine that is replaced all day long is not a new series each time


@dataclass(slots=True)
class _Request:
    """What is remembered of a request from its arrival to its end."""

    profile: str
    n_tokens: int
    dispatch: Dispatch | None = None


def _later(
    count: Callable[Concatenate[Metrics, P], None],
) -> Callable[Concatenate[Metrics, P], None]:
    """Note what happened now, count it together with others: a few lines of code that are run now
    and then find nothing of theirs in the processor's caches, and take several times as long."""

    def note(self: Metrics, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._noted.append(partial(count, self, *args, **kwargs))
        if len(self._noted) >= _AT_ONCE:
            self.count()

    note.__doc__ = count.__doc__
    return note


class Metrics:
    """All series of one proxy, in a registry of its own."""

    def __init__(
        self, profiles: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``profiles``: the configured names; their series are there from the start, at 0."""
        self._registry = CollectorRegistry()
        self._series = Series(self._registry)
        self.memory = MemorySeries(self._registry)
        self.engines = EngineMetrics(clock)
        self._registry.register(self.engines)
        self._profiles = tuple(profiles)
        self._requests: dict[str, _Request] = {}
        self._windows: dict[str, int] = {}  # slots of each engine
        self._running: dict[str, int] = {}  # requests at work, by engine
        self._builds: set[str] = set()
        self._noted: list[Callable[[], None]] = []  # in order, not counted yet
        self._start_at_zero()

    # ------------------------------------------------------------ what happened

    def count(self) -> None:
        """Count all that was noted."""
        noted, self._noted = self._noted, []
        for one in noted:
            one()

    @_later
    def observe(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """Count one ``handle`` call of the scheduler: what came in, then what went out."""
        match event:
            case RequestArrived(request=request):
                self._requests[request.id] = _Request(request.profile, len(request.tokens))
            case RequestCancelled(id=id):
                waiting = self._requests.get(id)
                if waiting and waiting.dispatch is None:
                    del self._requests[id]
            case RequestFinished():
                self._finished(event)
            case RequestFailed():
                self._failed(event)
            case EngineReady():
                self._engine_ready(event)
            case EngineLost(engine=engine):
                self.engine_state(engine, up=False)
        self.memory.observe(actions)
        for action in actions:
            self._act(event, action)

    @_later
    def first_token(self, request_id: str, seconds: float) -> None:
        """The first token of a running request came ``seconds`` after its arrival."""
        request = self._requests.get(request_id)
        if request and request.dispatch:
            self._series.time_to_first_token.labels(request.profile, request.dispatch.rule).observe(
                seconds
            )

    @_later
    def attributed(self, record: Record) -> None:
        """A request ended, and this became of its prompt."""
        if record.bound is None:
            return
        profile, changed = record.profile, record.changed
        for cause, section, tokens, _ in record.shares:
            if cause in RECOMPUTED:
                # what a difference takes with it lies behind it: the cause is where it begins
                blamed = changed.section if changed and cause is Cause.CHANGED else section
                known = blamed if blamed in SECTIONS else NO_SECTION
                self._series.recomputed_tokens.labels(profile, cause, known).inc(tokens)
        self._series.reuse_bound_tokens.labels(profile).inc(record.bound)
        self._series.prefill_seconds_avoided.labels(profile).inc(record.avoided_s)

    @_later
    def answered(self, profile: str | None, rule: Rule, code: int) -> None:
        """An answer with this HTTP status was given; ``profile`` None: no such model."""
        known = profile if profile in self._profiles else _UNKNOWN
        self._series.requests.labels(known, rule, code if 100 <= code <= 599 else "other").inc()

    def tokens_local(self, profile: str, tokenizer: bool, template: bool) -> None:
        """Who encodes and who renders a profile's prompts now."""
        self._series.tokens_local.labels(profile, "tokenizer").set(int(tokenizer))
        self._series.tokens_local.labels(profile, "template").set(int(template))

    @_later
    def normalized(self, profile: str, parts: Iterable[str]) -> None:
        """Parts of a request were made equal to their like."""
        for part in parts:
            self._series.normalized.labels(profile, part).inc()

    def engine_state(self, engine: str, up: bool) -> None:
        self.count()  # what is noted came before
        self._series.engine_up.labels(engine).set(int(up))

    def engine_restarted(self, engine: str, reason: str) -> None:
        """``reason``: the cause in a word, one of those known here; any other text is ``other``."""
        known = reason if reason in _RESTART_REASONS else "other"
        self._series.engine_restarts.labels(engine, known).inc()

    def engine_chose_by_lru(self, engine: str) -> None:
        """The engine took the slot that was unused longest, whatever it held. From any thread."""
        self._series.engine_lru_selections.labels(engine).inc()

    def engine_build(self, build: str) -> None:
        """The ``build_info`` an engine gives in its ``/props``; the engines may differ."""
        if len(self._builds) < _MAX_BUILDS:
            self._builds.add(build)
        self._series.build_info.clear()  # the line that had no build in it
        for known in self._builds:
            self._build_info(known)

    # ------------------------------------------------------------ exposition

    def sync(
        self,
        waiting: Iterable[Waiting],
        slots: Iterable[SlotStatus],
        standings: Iterable[Standing] = (),
    ) -> None:
        """Set the gauges to what is so now; called before each exposition."""
        self.count()
        for profile in self._profiles:
            for reason in Reason:
                self._series.waiting.labels(profile, reason).set(0)
        for waits in waiting:
            self._series.waiting.labels(waits.profile, waits.reason).inc()
        for engine, n in self._windows.items():
            self._series.running.labels(engine).set(self._running.get(engine, 0))
            for id_slot in range(n):
                self._show_slot(SlotId(engine, id_slot), busy=False, resident=0)
        for status in slots:
            # A slot whose end is not proven may still be at work, and takes nobody: busy.
            self._show_slot(status.slot, status.state != "idle", status.resident)
        for one in standings:
            rule_series.show(self._series, one)

    def exposition(self) -> tuple[bytes, str]:
        """The body and content type of a ``/metrics`` answer, at once."""
        self.count()
        return b"".join(exposition.families(self._registry)), exposition.CONTENT_TYPE

    async def exposition_in_turns(self) -> tuple[bytes, str]:
        """The same, with a turn for whoever else is served after each family."""
        self.count()
        return await exposition.in_turns(self._registry), exposition.CONTENT_TYPE

    # ------------------------------------------------------------ the parts

    def _act(self, event: Event, action: Action) -> None:
        match action:
            case Dispatch():
                self._dispatched(action)
            case Refuse():
                refused = self._requests.pop(action.id, None)
                if refused:
                    self._waited(refused.profile, action.wait_reason, action.waited_s)
            case HoldEnded():
                rule_series.hold_ended(self._series, action)
            case Mismatch() if _is_about_pins(event, action):
                self._series.pin_mismatches.labels(action.slot.engine).inc()

    def _dispatched(self, action: Dispatch) -> None:
        request = self._requests.get(action.id)
        if request is None:
            return
        request.dispatch = action
        engine = action.slot.engine
        self._running[engine] = self._running.get(engine, 0) + 1
        profile = request.profile
        self._waited(profile, action.wait_reason, action.waited_s)
        rule_series.placed(self._series, profile, action)

    def _waited(self, profile: str, reason: Reason, waited_s: float) -> None:
        self._series.queue_wait.labels(profile, reason).observe(waited_s)

    def _finished(self, event: RequestFinished) -> None:
        request, dispatch = self._end(event.id)
        if request is None or dispatch is None:
            return
        rule_series.generated(self._series, request.profile, event)
        told, cached = event.prompt_tokens, event.cached_tokens
        if told is None or cached is None:
            self._count(request, dispatch, event.id_slot, "unknown", request.n_tokens)
            return
        self._count(request, dispatch, event.id_slot, "cached", cached)
        self._count(request, dispatch, event.id_slot, "evaluated", max(0, told - cached))
        # only beside a report, so that expected and cached can be compared
        self._series.expected_cached_tokens.labels(request.profile).inc(dispatch.expected_cached)

    def _failed(self, event: RequestFailed) -> None:
        request, dispatch = self._end(event.id)
        if request is None or dispatch is None:
            return
        # what never reached the engine, or was turned down by it, was not computed at all
        if event.started and event.failure is not Failure.REFUSED:
            self._count(request, dispatch, None, "unknown", request.n_tokens)

    def _end(self, id: str) -> tuple[_Request | None, Dispatch | None]:
        request = self._requests.pop(id, None)
        if request is None or request.dispatch is None:
            return request, None
        self._running[request.dispatch.slot.engine] -= 1
        return request, request.dispatch

    def _count(
        self, request: _Request, dispatch: Dispatch, told_slot: int | None, source: str, n: int
    ) -> None:
        """Add prompt tokens under the slot the engine says it used, else where it was sent."""
        engine, sent_to = dispatch.slot
        exists = told_slot is not None and 0 <= told_slot < self._windows.get(engine, 0)
        used = told_slot if exists else sent_to
        slot = _UNKNOWN if used == -1 else str(used)
        self._series.prompt_tokens.labels(request.profile, engine, slot, dispatch.rule, source).inc(
            n
        )

    def _engine_ready(self, event: EngineReady) -> None:
        engine, n = event.engine, len(event.windows)
        self._windows[engine] = n
        self.engine_state(engine, up=True)
        self._series.pin_mismatches.labels(engine)
        self._series.engine_lru_selections.labels(engine)
        for reason in _RESTART_REASONS:
            self._series.engine_restarts.labels(engine, reason)
        rules = _PINNED_RULES if event.pins else (Rule.UNPINNED,)
        slots = [str(id_slot) for id_slot in range(n)]
        for slot in slots if event.pins else [*slots, _UNKNOWN]:
            for rule in rules:
                for source in _SOURCES:
                    self._series.prompt_tokens.labels(event.profile, engine, slot, rule, source)

    def _show_slot(self, slot: SlotId, busy: bool, resident: int) -> None:
        self._series.slot_busy.labels(slot.engine, slot.id_slot).set(int(busy))
        self._series.slot_resident_tokens.labels(slot.engine, slot.id_slot).set(resident)

    def _build_info(self, llama_build: str) -> None:
        try:
            version = metadata.version("slotwise")
        except metadata.PackageNotFoundError:
            version = _UNKNOWN
        self._series.build_info.labels(version, platform.python_version(), llama_build).set(1)

    def _start_at_zero(self) -> None:
        for profile in self._profiles:
            self._series.expected_cached_tokens.labels(profile)
            self._series.reuse_bound_tokens.labels(profile)
            self._series.prefill_seconds_avoided.labels(profile)
            rule_series.start_at_zero(self._series, profile)
            self.tokens_local(profile, tokenizer=False, template=False)
            for part in PARTS:
                self._series.normalized.labels(profile, part)
            for cause in RECOMPUTED:
                for section in SECTIONS:
                    self._series.recomputed_tokens.labels(profile, cause, section)
            for code in _NEVER_PLACED_CODES:
                self._series.requests.labels(profile, Rule.NONE, code)
            for rule in (*_PINNED_RULES, Rule.UNPINNED):
                for code in _PLACED_CODES:
                    self._series.requests.labels(profile, rule, code)
                self._series.time_to_first_token.labels(profile, rule)
            for reason in Reason:
                self._series.queue_wait.labels(profile, reason)
                self._series.waiting.labels(profile, reason)
        self._build_info("")


def _is_about_pins(event: Event, mismatch: Mismatch) -> bool:
    """Whether the engine left a pin: it names another slot, or ``/slots`` shows that what was
    sent to a slot is not there. A prompt counted differently is another matter."""
    if isinstance(event, RequestFinished):
        return event.id_slot is not None and event.id_slot != mismatch.slot.id_slot
    return isinstance(event, SlotsReported)

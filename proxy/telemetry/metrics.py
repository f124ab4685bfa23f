"""What passes the driver, counted: every series on ``/metrics`` but those an engine has itself.

A request is served first and counted later: what happens is noted, and counted together with
others. Label values come from fixed sets, see ``series``.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Concatenate, ParamSpec

from prometheus_client import CollectorRegistry

from slotwise.policies.attribution import NO_SECTION, RECOMPUTED, SECTIONS, Cause
from slotwise.policies.types import Reason, Rule, SlotId
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineLost,
    EngineReady,
    Event,
    HoldEnded,
    Mismatch,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    SlotsReported,
)
from slotwise.proxy.core.snapshot import ProfileFigures, SlotStatus, Waiting
from slotwise.proxy.history.record import Record
from slotwise.proxy.telemetry import engine_metrics, request_metrics, series
from slotwise.proxy.telemetry.engine_metrics import EngineMetrics
from slotwise.proxy.telemetry.memory_metrics import MemorySeries
from slotwise.proxy.telemetry.request_metrics import RequestSeries
from slotwise.proxy.telemetry.series import RESTART_REASONS, UNKNOWN, Series

_AT_ONCE = 256  # noted, at most; a request has about eight
P = ParamSpec("P")
_MAX_BUILDS = 16  # an engine that is replaced all day long is not a new series each time


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
        self._requests = RequestSeries(self._series)
        self._builds: set[str] = set()
        self._noted: list[Callable[[], None]] = []  # in order, not counted yet
        self._counts: dict[type[Event], Callable[[Any], None]] = {
            RequestArrived: lambda event: self._requests.arrived(event.request),
            RequestCancelled: lambda event: self._requests.cancelled(event.id),
            RequestFinished: self._requests.finished,
            RequestFailed: self._requests.failed,
            EngineReady: self._engine_ready,
            EngineLost: lambda event: self.engine_state(event.engine, up=False),
        }
        self._start_at_zero()

    # ------------------------------------------------------------ what happened

    def count(self) -> None:
        """Count all that was noted."""
        noted, self._noted = self._noted, []
        for one in noted:
            one()

    def observe(self, event: Event, actions: Sequence[Action], now: float) -> None:
        """Count one ``handle`` call of the scheduler: what came in, then what went out."""
        # Progress and ticks, the most frequent, mostly lead to nothing: nothing is noted then.
        if actions or type(event) in self._counts:
            self._observe(event, actions)

    @_later
    def _observe(self, event: Event, actions: Sequence[Action]) -> None:
        count = self._counts.get(type(event))
        if count is not None:
            count(event)
        self.memory.observe(actions)
        for action in actions:
            self._act(event, action)

    @_later
    def first_token(self, request_id: str, seconds: float) -> None:
        """The first token of a running request came ``seconds`` after its arrival."""
        self._requests.first_token(request_id, seconds)

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
        known = profile if profile in self._profiles else UNKNOWN
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
        known = reason if reason in RESTART_REASONS else "other"
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
        profile_figures: Iterable[ProfileFigures] = (),
    ) -> None:
        """Set the gauges to what is so now; called before each exposition."""
        self.count()
        for profile in self._profiles:
            for reason in Reason:
                self._series.waiting.labels(profile, reason).set(0)
        for waits in waiting:
            self._series.waiting.labels(waits.profile, waits.reason).inc()
        for engine, n in self._requests.slots.items():
            self._series.running.labels(engine).set(self._requests.running.get(engine, 0))
            for id_slot in range(n):
                self._show_slot(SlotId(engine, id_slot), busy=False, resident=0)
        for status in slots:
            # A slot whose end is not proven may still be at work, and takes nobody: busy.
            self._show_slot(status.slot, status.state != "idle", status.resident)
        for one in profile_figures:
            series.show(self._series, one)

    def exposition(self) -> tuple[bytes, str]:
        """The body and content type of a ``/metrics`` answer, at once."""
        self.count()
        return b"".join(engine_metrics.families(self._registry)), engine_metrics.CONTENT_TYPE

    async def exposition_in_turns(self) -> tuple[bytes, str]:
        """The same, with a turn for whoever else is served after each family."""
        self.count()
        return await engine_metrics.in_turns(self._registry), engine_metrics.CONTENT_TYPE

    # ------------------------------------------------------------ the parts

    def _act(self, event: Event, action: Action) -> None:
        match action:
            case Dispatch():
                self._requests.dispatched(action)
            case Refuse():
                self._requests.refused(action)
            case HoldEnded():
                request_metrics.hold_ended(self._series, action)
            case Mismatch() if _is_about_pins(event, action):
                self._series.pin_mismatches.labels(action.slot.engine).inc()

    def _engine_ready(self, event: EngineReady) -> None:
        self._requests.slots[event.engine] = len(event.windows)
        self.engine_state(event.engine, up=True)
        series.of_engine(self._series, event)

    def _show_slot(self, slot: SlotId, busy: bool, resident: int) -> None:
        self._series.slot_busy.labels(slot.engine, slot.id_slot).set(int(busy))
        self._series.slot_resident_tokens.labels(slot.engine, slot.id_slot).set(resident)

    def _build_info(self, llama_build: str) -> None:
        try:
            version = metadata.version("slotwise")
        except metadata.PackageNotFoundError:
            version = UNKNOWN
        self._series.build_info.labels(version, platform.python_version(), llama_build).set(1)

    def _start_at_zero(self) -> None:
        for profile in self._profiles:
            series.of_profile(self._series, profile)
            self.tokens_local(profile, tokenizer=False, template=False)
        self._build_info("")


def _is_about_pins(event: Event, mismatch: Mismatch) -> bool:
    """Whether the engine left a pin: it names another slot, or ``/slots`` shows that what was
    sent to a slot is not there. A prompt counted differently is another matter."""
    if isinstance(event, RequestFinished):
        return event.id_slot is not None and event.id_slot != mismatch.slot.id_slot
    return isinstance(event, SlotsReported)

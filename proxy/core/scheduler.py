"""All scheduling state in one place: events in, actions out, nothing else.

``handle(event, now)`` is synchronous, never waits and never reads a clock, so the server, the
simulator and a replayed journal run the very same object. After every event that may change an
answer it walks the waiting requests in the order of who goes first and dispatches what the rules
place, one at a time, each decision seeing the effect of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from slotwise.policies.params import Cost, Params
from slotwise.policies.ram_cache import RamCache
from slotwise.policies.types import Request, SlotId
from slotwise.proxy.core.dispatch import Dispatcher
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    EngineLoading,
    EngineLost,
    EngineReady,
    Event,
    Failure,
    MemorySampled,
    Mismatch,
    ProfileUnloaded,
    ReclaimEnded,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    SlotReport,
    SlotsReported,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.memory import MemoryGate, MemoryRules
from slotwise.proxy.core.mirror import SlotMirror, SlotState
from slotwise.proxy.core.snapshot import (
    ProfileFigures,
    SlotStatus,
    Waiting,
    profile_json,
    slot_statuses,
    standing,
    waiting,
)
from slotwise.proxy.core.state import EngineState, ProfileState, Running, profile_of


class Reports:
    """Puts what they say into the books; each says in which profiles somebody may go on now."""

    def __init__(self, profiles: Mapping[str, ProfileState], memory: MemoryGate) -> None:
        self._profiles = profiles
        self._memory = memory

    def progressed(self, event: RequestProgressed, now: float) -> list[ProfileState]:
        """Only the end of a prompt changes what others may do."""
        self._memory.reserves.progressed(event.id, event.processed)
        for profile in self._profiles.values():
            running = profile.running.get(event.id)
            if running is None:
                continue
            if running.mirror and self._current(running.engine):
                running.mirror.progressed(event.processed, event.cached)
            if not running.read and event.processed >= len(running.request.tokens):
                profile.was_read(running, now)
                return [profile]
        return []

    def finished(self, event: RequestFinished, now: float, out: list[Action]) -> list[ProfileState]:
        """What was sent to a slot lies there now, unless the engine says otherwise."""
        self._memory.reserves.ended(event.id, answered=True)
        profile, running = self._ended(event, now)
        if profile is None or running is None:
            return []
        n, cached = len(running.request.tokens), event.cached_tokens
        profile.serve(running, cached, event.completion_tokens or 0, now)
        mirror, engine = running.mirror, running.engine
        if mirror is None or not self._current(engine):
            return [profile]
        if cached is not None:
            mirror.reused(cached)
        mirror.commit(event.prompt_tokens, event.completion_tokens, now, profile.calls(event))
        if event.id_slot is not None and event.id_slot != mirror.id.id_slot:
            said = f"pinned to slot {mirror.id.id_slot}, the engine used slot {event.id_slot}"
            out.append(Mismatch(mirror.id, event.id, said))
            self._distrust(engine, now)
            out.append(AskSlots(engine.name))
        elif event.prompt_tokens is not None and event.prompt_tokens != n:
            said = f"counted {n} prompt tokens, the engine {event.prompt_tokens}"
            out.append(Mismatch(mirror.id, event.id, said))
        elif self._reused_too_little(profile, running, event.cached_tokens):
            if running.before is not None:
                engine.replace_ram_cache(())  # it does not have what it was believed to have
            out.append(AskSlots(engine.name))  # did it run where it was sent?
        return [profile]

    def failed(self, event: RequestFailed, now: float, out: list[Action]) -> list[ProfileState]:
        """What its slot holds now depends on how far it came."""
        self._memory.reserves.ended(event.id, answered=False)
        profile, running = self._ended(event, now)
        if profile is None or running is None:
            return []
        profile.serve(running, len(running.request.tokens), event.generated, now)
        mirror, engine = running.mirror, running.engine
        if mirror is None or not self._current(engine):
            return [profile]
        if not event.started:
            mirror.never_sent(now)
            if running.before is not None:
                engine.replace_ram_cache(running.before.states)
            return [profile]
        if event.failure is Failure.REFUSED:
            mirror.refused(now)
        else:
            mirror.abort(event.generated, now)
        if event.failure is Failure.ENGINE_ERROR:
            mirror.forget()  # a failed decode empties the slots it touched
        out.append(AskSlots(engine.name))
        return [profile]

    def slots(self, event: SlotsReported, now: float, out: list[Action]) -> list[ProfileState]:
        """What a ``/slots`` reply shows beats what was believed."""
        profile = profile_of(event.engine, self._profiles.values())
        if profile is None:
            return []
        engine = profile.engines[event.engine]
        for report in event.slots:
            if 0 <= report.id_slot < len(engine.mirrors) and engine.pins:
                mirror = engine.mirrors[report.id_slot]
                if self._memory.is_emptying(mirror.id):
                    continue
                # A reply that was asked for earlier says nothing about what came since.
                if mirror.state is not SlotState.RUNNING and event.asked_at > mirror.since:
                    self._reconcile(mirror, report, now, out)
        if any(m.state is SlotState.UNPROVEN for m in engine.mirrors):
            out.append(AskSlots(engine.name))
        return [profile]

    def _reconcile(
        self, mirror: SlotMirror, report: SlotReport, now: float, out: list[Action]
    ) -> None:
        if report.busy:
            if mirror.state is SlotState.IDLE:
                out.append(Mismatch(mirror.id, "", "busy with a request that is not ours"))
                mirror.suspect(now)
        elif not mirror.shown_idle(report.n_tokens, now):
            said = f"holds {report.n_tokens or 0} tokens, fewer than was believed"
            out.append(Mismatch(mirror.id, "", said))

    def _ended(
        self, event: RequestFinished | RequestFailed, now: float
    ) -> tuple[ProfileState | None, Running | None]:
        reported = event if isinstance(event, RequestFinished) else None
        for profile in self._profiles.values():
            running = profile.running.get(event.id)
            if running is not None:
                profile.end(running, reported, now)
                return profile, running
        return None, None

    def _current(self, engine: EngineState) -> bool:
        """Whether this is the engine's present life, not one that ended."""
        return self._profiles[engine.profile].engines.get(engine.name) is engine

    def _distrust(self, engine: EngineState, now: float) -> None:
        """The engine runs requests where it likes: nothing idle is known any more."""
        for mirror in engine.mirrors:
            if mirror.state is not SlotState.RUNNING:
                mirror.suspect(now)

    def _reused_too_little(
        self, profile: ProfileState, running: Running, cached: int | None
    ) -> bool:
        return cached is not None and cached < running.expected - profile.params.chunk_tokens


_RETRY_AFTER_FULL_S = 5


class Scheduler:
    """The one owner of what waits, what runs and what every slot holds."""

    def __init__(self, params: Mapping[str, Params], memory: MemoryRules | None = None) -> None:
        """``params``: the parameters of each profile that may be asked for, by its name.

        ``memory``: how the machine's memory is watched; None: it is not.
        """
        self._profiles = {name: ProfileState(name, p) for name, p in params.items()}
        self.memory = MemoryGate(memory)
        self._deciding = Dispatcher(self._profiles, self.memory)
        self._reports = Reports(self._profiles, self.memory)
        self._wake: float | None = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time ``now`` (s, monotonic); say what to do about it."""
        actions: list[Action] = []
        for profile in self._apply(event, now, actions):
            self._deciding.decide(profile, now, actions)
        self._set_timer(actions)
        return actions

    # ------------------------------------------------------------ events

    def _apply(self, event: Event, now: float, out: list[Action]) -> list[ProfileState]:
        """Change the state; returns the profiles in which somebody may go on now."""
        match event:
            case RequestProgressed():
                return self._reports.progressed(event, now)
            case RequestArrived():
                return self._arrived(event, now, out)
            case RequestCancelled():
                return [p for p in self._profiles.values() if p.drop_waiter(event.id, now)]
            case RequestFinished():
                return self._reports.finished(event, now, out)
            case RequestFailed():
                return self._reports.failed(event, now, out)
            case SlotsReported():
                return self._reports.slots(event, now, out)
            case EngineReady():
                return self._ready(event, now)
            case EngineLost():
                return self._lost(event)
            case EngineLoading():
                self.memory.engine_loading(event)
                return []
            case ProfileUnloaded():
                out += self.memory.unload(event, self._profiles[event.profile], now)
                return []
            case MemorySampled():
                out += self.memory.sampled(event, self._profiles, now)
                return [p for p in self._profiles.values() if p.waits_for_memory()]
            case ReclaimEnded():
                out += self.memory.reclaim_ended(event)
                return []
            case Tick():
                self._wake = None
                return list(self._profiles.values())

    def _arrived(self, event: RequestArrived, now: float, out: list[Action]) -> list[ProfileState]:
        request = event.request
        profile = self._profiles[request.profile]
        params = profile.params
        of_key = sum(w.view.request.key == request.key for w in profile.waiters.values())
        if len(profile.waiters) >= params.max_waiting:
            out.append(_full(request, 503, "queue_full", f"{params.max_waiting} requests wait"))
            return []
        if of_key >= params.max_waiting_per_key:
            limit = f"{params.max_waiting_per_key} requests of this client wait"
            out.append(_full(request, 429, "rate_limit_exceeded", limit))
            return []
        if profile.name in self.memory.unloaded:
            out.append(self.memory.not_loaded(profile.name, request.id))
            return []
        profile.add_waiter(request, now)
        return [profile]

    def _ready(self, event: EngineReady, now: float) -> list[ProfileState]:
        profile = self._profiles[event.profile]
        mirrors = [
            SlotMirror(SlotId(event.engine, i), window, since=now)
            for i, window in enumerate(event.windows)
        ]
        rules = profile.params
        ram_cache = RamCache(rules.cache_tokens if rules.ram_cache else 0, empties=event.empties)
        profile.add_engine(
            EngineState(event.engine, event.profile, mirrors, event.pool, event.pins, ram_cache)
        )
        self.memory.engine_ready(event)
        return [profile]

    def _lost(self, event: EngineLost) -> list[ProfileState]:
        profile = profile_of(event.engine, self._profiles.values())
        if profile is None:
            return []
        profile.drop_engine(event.engine)
        self.memory.reserves.engine_lost(event.engine)
        return [profile]

    # ------------------------------------------------------------ timers

    def _set_timer(self, out: list[Action]) -> None:
        """Ask to be woken when time alone may change an answer."""
        wake: float | None = None
        for profile in self._profiles.values():
            for waiter in profile.waiters.values():
                for at in (waiter.deadline, waiter.recheck):
                    if at is not None and (wake is None or at < wake):
                        wake = at
        if wake is not None and wake != self._wake:
            out.append(WakeAt(wake))
        self._wake = wake

    # ------------------------------------------------------------ what can be asked

    def waiting(self, now: float) -> list[Waiting]:
        """Who waits, in the order of who goes first."""
        return [
            waiting(w, ahead, now)
            for p in self._profiles.values()
            for ahead, w in enumerate(p.line)
        ]

    def waiting_for(self, id: str, now: float) -> Waiting | None:
        """Where one request stands; None: it does not wait (any more)."""
        return next((w for w in self.waiting(now) if w.id == id), None)

    def waits_for_memory(self) -> bool:
        """Whether somebody does."""
        return any(p.waits_for_memory() for p in self._profiles.values())

    def is_calm(self) -> bool:
        """Whether the sample just taken will have changed nothing once the next has come."""
        return self.memory.calm and not self.waits_for_memory()

    def slots(self) -> list[SlotStatus]:
        """Every slot of every engine that is ready."""
        return slot_statuses(self._profiles.values())

    def profile_figures(self, now: float) -> list[ProfileFigures]:
        """Figures of every profile."""
        return [standing(profile, now) for profile in self._profiles.values()]

    def served_s(self, profile: str, key: str, now: float) -> float:
        """Seconds of the engine's work that a key was served lately."""
        return self._profiles[profile].services.of(key, now)

    def cost(self, profile: str) -> Cost:
        """What work costs on this profile's engine, as far as it has told by now."""
        return self._profiles[profile].params.cost

    def largest_window(self, profile: str) -> int | None:
        """Tokens; None: no engine of this profile is ready."""
        engines = self._profiles[profile].engines.values()
        return max((m.window for e in engines for m in e.mirrors), default=None)

    def snapshot(self, now: float) -> dict[str, object]:
        """All of it as plain data, without a word of any prompt."""
        return {name: profile_json(p, now) for name, p in self._profiles.items()}


def _full(request: Request, status: int, code: str, limit: str) -> Refuse:
    message = f"the queue is full: {limit}"
    return Refuse(request.id, status, code, message, retry_after_s=_RETRY_AFTER_FULL_S)

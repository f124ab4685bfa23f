"""All scheduling state in one place: events in, actions out, nothing else.

``handle(event, now)`` is synchronous, never waits and never reads a clock, so the server, the
simulator and a replayed journal run the very same object. After every event that may change an
answer it walks the waiting requests in the order of who goes first and dispatches what the rules
place, one at a time, each decision seeing the effect of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from slotwise.policies.params import Cost, Params
from slotwise.policies.park import Park
from slotwise.policies.types import Request, SlotId
from slotwise.proxy.core.actions import Action, Refuse, WakeAt
from slotwise.proxy.core.book import Profile, profile_of
from slotwise.proxy.core.deciding import Deciding
from slotwise.proxy.core.events import (
    EngineLoading,
    EngineLost,
    EngineReady,
    Event,
    MemorySampled,
    ProfileUnloaded,
    ReclaimEnded,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    SlotsReported,
    Tick,
)
from slotwise.proxy.core.memory_gate import MemoryGate, MemoryRules
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.reports import Reports
from slotwise.proxy.core.running import Engine
from slotwise.proxy.core.standing import Standing, standing
from slotwise.proxy.core.status import SlotStatus, Waiting, profile_json, slot_statuses, waiting

_RETRY_AFTER_FULL_S = 5


class Scheduler:
    """The one owner of what waits, what runs and what every slot holds."""

    def __init__(self, params: Mapping[str, Params], memory: MemoryRules | None = None) -> None:
        """``params``: the parameters of each profile that may be asked for, by its name.

        ``memory``: how the machine's memory is watched; None: it is not.
        """
        self._profiles = {name: Profile(name, p) for name, p in params.items()}
        self.memory = MemoryGate(memory)
        self._deciding = Deciding(self._profiles, self.memory)
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

    def _apply(self, event: Event, now: float, out: list[Action]) -> list[Profile]:
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

    def _arrived(self, event: RequestArrived, now: float, out: list[Action]) -> list[Profile]:
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

    def _ready(self, event: EngineReady, now: float) -> list[Profile]:
        profile = self._profiles[event.profile]
        mirrors = [
            SlotMirror(SlotId(event.engine, i), window, since=now)
            for i, window in enumerate(event.windows)
        ]
        rules = profile.params
        park = Park(rules.cache_tokens if rules.ram_cache else 0, empties=event.empties)
        profile.add_engine(
            Engine(event.engine, event.profile, mirrors, event.pool, event.pins, park)
        )
        self.memory.engine_ready(event)
        return [profile]

    def _lost(self, event: EngineLost) -> list[Profile]:
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

    def standings(self, now: float) -> list[Standing]:
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

"""Who chooses the slot: slotwise's own scheduler, or one of the plain rules it is measured against.

Every arm speaks the scheduler's language, events in and actions out, so the simulator does not
know which one it drives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol

from slotwise.bench.sim.engine import SLOTWISE_BATCH, EngineSetup
from slotwise.policies.params import Params
from slotwise.policies.prefix import EMPTY, Tokens, lcp
from slotwise.policies.types import Reason, Request, Rule, SlotId
from slotwise.proxy.core.events import Action, Dispatch, Event, RequestArrived, RequestFinished
from slotwise.proxy.core.scheduler import Scheduler

ENGINE, PROFILE = "e0", "sim"
SLOTWISE = "slotwise"
OPTIMUM = "optimum"
RULES_OFF = "rules-off"  # slotwise with each rule off in turn


class Chooser(Protocol):
    """What the simulator drives: :class:`proxy.core.scheduler.Scheduler` or a plain rule."""

    def handle(self, event: Event, now: float) -> list[Action]: ...


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a workload: how the engine is started, and who chooses."""

    name: str
    setup: EngineSetup
    make: Callable[[], Chooser]


def slotwise_setup(slots: int, park_tokens: int = 0) -> EngineSetup:
    """An engine as slotwise starts and asks it: idle slots are left alone, batches are shorter,
    every answer is a stream."""
    return EngineSetup(
        slots, park_tokens, idle_snapshots=False, batch_tokens=SLOTWISE_BATCH, streams=True
    )


def arms(names: Sequence[str], slots: int, park_tokens: int, params: Params) -> list[Arm]:
    """The arms of these names; raises ``ValueError`` for one that is not known.

    All but llama.cpp's own default leave idle slots alone, as slotwise starts its engines.
    """
    plain = EngineSetup(slots, park_tokens, idle_snapshots=False)
    own = slotwise_setup(slots, park_tokens)
    known: dict[str, tuple[EngineSetup, Callable[[], Chooser]]] = {
        "llama.cpp": (EngineSetup(slots, park_tokens), _Unpinned),
        "llama.cpp-no-idle-slots": (plain, _Unpinned),
        "llama.cpp-np1": (EngineSetup(1, park_tokens), _Unpinned),
        "round-robin": (plain, lambda: _Pinned(_RoundRobin(slots))),
        "session-pin": (plain, lambda: _Pinned(_SessionPin(slots))),
        "longest-prefix": (plain, lambda: _LongestPrefix(slots)),
        SLOTWISE: (own, partial(_scheduler, params)),
    }
    for name, changed in switched(params):
        known[name] = (own, partial(_scheduler, changed))
    wanted = [one for name in names for one in _expanded(name, params)]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValueError(f"arms: {unknown[0]!r} is not one of {', '.join([*known, RULES_OFF])}")
    return [Arm(name, *known[name]) for name in dict.fromkeys(wanted)]


def _expanded(name: str, params: Params) -> list[str]:
    return [off for off, _ in switched(params)] if name == RULES_OFF else [name]


def switched(params: Params) -> Iterator[tuple[str, Params]]:
    """``slotwise-RULE`` for every rule, and the parameters with its switch the other way."""
    for knob in fields(params):
        if knob.metadata.get("unit") == "switch":
            on = getattr(params, knob.name)
            switched: dict[str, Any] = {knob.name: not on}
            changed = replace(params, **switched)
            yield f"{SLOTWISE}{'-' if on else '+'}{knob.name}", changed


def _scheduler(params: Params) -> Scheduler:
    return Scheduler({PROFILE: params})


# ---------------------------------------------------------------- plain rules


def _dispatch(request: Request, slot: int, rule: Rule) -> Dispatch:
    return Dispatch(
        id=request.id,
        slot=SlotId(ENGINE, slot),
        rule=rule,
        expected_cached=0,
        waited_s=0.0,
        wait_reason=Reason.NONE,
        max_tokens=None,
        why="",
    )


class _Unpinned:
    """Everything goes to the engine at once, which chooses and queues."""

    def handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            return [_dispatch(event.request, -1, Rule.UNPINNED)]
        return []


class _RoundRobin:
    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._next = -1

    def __call__(self, request: Request) -> int:
        self._next = (self._next + 1) % self._slots
        return self._next


class _SessionPin:
    """A session keeps the slot it got first: the one with the fewest sessions."""

    def __init__(self, slots: int) -> None:
        self._sessions = [0] * slots
        self._slot_of: dict[str, int] = {}

    def __call__(self, request: Request) -> int:
        who = request.session or request.id
        if who not in self._slot_of:
            slot = self._sessions.index(min(self._sessions))
            self._slot_of[who] = slot
            self._sessions[slot] += 1
        return self._slot_of[who]


@dataclass(slots=True)
class _Pinned:
    """A request's slot is fixed when it arrives; it waits until the slot is free."""

    choose: Callable[[Request], int]
    _queues: dict[int, deque[Request]] = field(default_factory=dict)
    _at_work: dict[str, int] = field(default_factory=dict)

    def handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            slot = self.choose(event.request)
            self._queues.setdefault(slot, deque()).append(event.request)
            return self._next(slot)
        if isinstance(event, RequestFinished):
            return self._next(self._at_work.pop(event.id))
        return []

    def _next(self, slot: int) -> list[Action]:
        queue = self._queues[slot]
        if not queue or slot in self._at_work.values():
            return []
        request = queue.popleft()
        self._at_work[request.id] = slot
        return [_dispatch(request, slot, Rule.SESSION)]


class _LongestPrefix:
    """First come, first served; of the idle slots the longest prefix, else the least recent."""

    def __init__(self, slots: int) -> None:
        self._held: list[Tokens] = [EMPTY] * slots
        self._used = [-1.0] * slots
        self._at_work: dict[str, int] = {}
        self._queue: deque[Request] = deque()

    def handle(self, event: Event, now: float) -> list[Action]:
        if isinstance(event, RequestArrived):
            self._queue.append(event.request)
        elif isinstance(event, RequestFinished):
            self._used[self._at_work.pop(event.id)] = now
        else:
            return []
        actions: list[Action] = []
        while self._queue and len(self._at_work) < len(self._held):
            actions.append(self._place(self._queue.popleft()))
        return actions

    def _place(self, request: Request) -> Dispatch:
        busy = self._at_work.values()
        idle = [i for i in range(len(self._held)) if i not in busy]
        slot = max(idle, key=lambda i: (lcp(self._held[i], request.tokens), -self._used[i]))
        self._held[slot] = request.tokens
        self._at_work[request.id] = slot
        return _dispatch(request, slot, Rule.AFFINITY)

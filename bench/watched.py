"""A scheduler that is watched while it is simulated: how long did anybody wait, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slotwise.bench.arms import PROFILE, SLOTWISE, Arm, slotwise_setup
from slotwise.bench.cost_model import CostModel
from slotwise.bench.sim_workload import Workload
from slotwise.bench.simulation import Run, simulate
from slotwise.policies.bounds import most_s
from slotwise.policies.order import SERVICE_STEP_S
from slotwise.policies.params import Params
from slotwise.policies.types import Reason, Request
from slotwise.proxy.core.actions import Action, Dispatch, Refuse
from slotwise.proxy.core.events import Event, RequestArrived
from slotwise.proxy.core.scheduler import Scheduler

GUEST, OVERTAKEN, WHOLE, STREAMED = "guest", "overtaken", "whole", "streamed"
TIMER_S = 0.01  # how late a timer may be
_GROW = (Reason.HOME_BUSY, Reason.HELD, Reason.COLD_PREFILL, OVERTAKEN)


@dataclass(frozen=True, slots=True)
class Bound:
    """A wait that a rule limits; ``kind``: a reason to wait, or one of the kinds above."""

    name: str
    kind: str
    knob: str
    seconds: float
    grows: bool = False  # a request that takes long by itself may wait longer

    def of(self, request: Request, params: Params) -> float:
        """How long this request may wait (s), however long the line was."""
        return most_s(self.seconds, request, params) if self.grows else self.seconds


def bounds(params: Params) -> list[Bound]:
    """Every bound of these parameters."""
    longest_s = params.max_wait_s
    return [
        Bound(name, kind, knob, seconds, kind in _GROW)
        for name, kind, knob, seconds in (
            ("for a busy home", Reason.HOME_BUSY, "max_wait_s", longest_s),
            ("of a guest, for a slot", GUEST, "max_wait_s / 5", params.guest_wait_s),
            ("for a slot that is kept", Reason.HELD, "max_wait_s", longest_s),
            ("while a long prompt is read", Reason.COLD_PREFILL, "max_wait_s", longest_s),
            (
                "of a side job, for first tokens",
                Reason.BACKGROUND,
                "max_wait_s * 2/5",
                params.side_job_wait_s,
            ),
            ("behind later ones, out of turn", OVERTAKEN, "max_wait_s", longest_s),
            ("in all, not streamed", WHOLE, "max_wait_s * 2", params.whole_wait_s),
            ("in all, streamed", STREAMED, "request_timeout_s", params.request_timeout_s),
        )
    ]


@dataclass(slots=True)
class Longest:
    """Of each kind of wait the longest (s), and the requests that waited so."""

    by_kind: dict[str, float] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)  # what the bound was (s) less: negative
    who: dict[str, set[str]] = field(default_factory=dict)

    def seen(self, kind: str, id: str, seconds: float, most_s: float) -> None:
        self.by_kind[kind] = max(self.by_kind.get(kind, 0.0), seconds)
        self.over[kind] = max(self.over.get(kind, -most_s), seconds - most_s)
        self.who.setdefault(kind, set()).add(id)

    def seconds(self, bound: Bound) -> float:
        return self.by_kind.get(bound.kind, 0.0)

    def kept(self, bound: Bound) -> bool:
        """Whether nobody waited longer than his bound; a timer may be a moment late."""
        return self.over.get(bound.kind, 0.0) <= TIMER_S

    def requests(self, bound: Bound) -> int:
        return len(self.who.get(bound.kind, ()))


class Watched:
    """Slotwise's scheduler, with a note of every wait at every event."""

    def __init__(self, params: Params, guests: set[str], bounded_by: Params | None = None) -> None:
        """``bounded_by``: other parameters, whose bounds the waits are held against."""
        self.longest = Longest()
        self._params = bounded_by or params
        self._bounds = {bound.kind: bound for bound in bounds(self._params)}
        self._scheduler = Scheduler({PROFILE: params})
        self._guests = guests  # ids
        self._asked: dict[str, tuple[Request, float]] = {}  # who waits, since when (s)
        self._reasons: dict[str, Reason] = {}

    def handle(self, event: Event, now: float) -> list[Action]:
        """As the scheduler does."""
        for id, reason in self._reasons.items():  # what was given last held until now
            kind = GUEST if reason is Reason.HELD and id in self._guests else reason
            self._seen(kind, *self._asked[id], now)
        if isinstance(event, RequestArrived):
            self._asked[event.request.id] = (event.request, now)
        actions = self._scheduler.handle(event, now)
        for action in actions:
            if isinstance(action, Dispatch | Refuse):
                self._left(action, now)
        self._reasons = {waiting.id: waiting.reason for waiting in self._scheduler.waiting(now)}
        return actions

    def _left(self, action: Dispatch | Refuse, now: float) -> None:
        request, since = self._asked.pop(action.id)
        self._seen(STREAMED if request.stream else WHOLE, request, since, now)
        if isinstance(action, Dispatch):
            turn = self._steps(request.key, now)
            for other, before in self._asked.values():
                if before < since and self._steps(other.key, now) <= turn:
                    self._seen(OVERTAKEN, other, before, now)

    def _seen(self, kind: str, request: Request, since: float, now: float) -> None:
        bound = self._bounds.get(kind)
        if bound is not None:
            params = replace(self._params, cost=self._scheduler.cost(PROFILE))  # as learned so far
            self.longest.seen(kind, request.id, now - since, bound.of(request, params))

    def _steps(self, key: str, now: float) -> int:
        """What a key was served: that one served less goes first is its turn."""
        return int(self._scheduler.served_s(PROFILE, key, now) / SERVICE_STEP_S)


def watched(
    workload: Workload,
    slots: int,
    params: Params,
    cost: CostModel,
    bounded_by: Params | None = None,
) -> tuple[Longest, Run]:
    """Serve a workload; returns the longest waits, and the schedule."""
    guests = {ask.id for ask in workload.asks() if ask.guest}
    chooser = Watched(params, guests, bounded_by)
    run = simulate(workload, Arm(SLOTWISE, slotwise_setup(slots), lambda: chooser), cost)
    return chooser.longest, run

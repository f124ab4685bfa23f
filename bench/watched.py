"""A scheduler that is watched while it is simulated: how long did anybody wait, and for what."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.arms import PROFILE, SLOTWISE, Arm
from bench.cost_model import CostModel
from bench.engine_model import EngineSetup
from bench.sim_workload import Workload
from bench.simulation import Run, simulate
from policies.params import Params
from policies.types import Reason, Request
from proxy.events import Action, Dispatch, Event, Refuse, RequestArrived
from proxy.scheduler import Scheduler

GUEST, OVERTAKEN, WHOLE, STREAMED = "guest", "overtaken", "whole", "streamed"


@dataclass(frozen=True, slots=True)
class Bound:
    """A wait that a rule limits; ``kind``: a reason to wait, or one of the kinds above."""

    name: str
    kind: str
    knob: str
    seconds: float


def bounds(params: Params) -> list[Bound]:
    """Every bound of these parameters."""
    found = []
    for name, kind, knob in (
        ("for a busy home", Reason.HOME_BUSY, "home.home_max_wait_s"),
        ("of a guest, for a slot", GUEST, "guest.guest_max_wait_s"),
        ("for a slot that is kept", Reason.HELD, "keep.keep_max_wait_s"),
        ("while a long prompt is read", Reason.COLD_PREFILL, "cold.cold_max_wait_s"),
        ("to begin a conversation", Reason.SESSION_CAP, "cap.cap_max_wait_s"),
        ("of a side job, for first tokens", Reason.BACKGROUND, "order.background_max_wait_s"),
        ("behind later ones, out of turn", OVERTAKEN, "order.max_overtake_s"),
        ("in all, not streamed", WHOLE, "queue.queue_timeout_s"),
        ("in all, streamed", STREAMED, "queue.request_timeout_s"),
    ):
        section, knob_name = knob.split(".")
        seconds = float(getattr(getattr(params, section), knob_name))
        found.append(Bound(name, kind, knob, seconds))
    return found


@dataclass(slots=True)
class Longest:
    """Of each kind of wait the longest (s), and the requests that waited so."""

    by_kind: dict[str, float] = field(default_factory=dict)
    who: dict[str, set[str]] = field(default_factory=dict)

    def seen(self, kind: str, id: str, seconds: float) -> None:
        self.by_kind[kind] = max(self.by_kind.get(kind, 0.0), seconds)
        self.who.setdefault(kind, set()).add(id)

    def seconds(self, bound: Bound) -> float:
        return self.by_kind.get(bound.kind, 0.0)

    def requests(self, bound: Bound) -> int:
        return len(self.who.get(bound.kind, ()))


class Watched:
    """Slotwise's scheduler, with a note of every wait at every event."""

    def __init__(self, params: Params, guests: set[str]) -> None:
        self.longest = Longest()
        self._scheduler = Scheduler({PROFILE: params})
        self._guests = guests  # ids
        self._step_s = params.order.service_step_s
        self._asked: dict[str, tuple[Request, float]] = {}  # who waits, since when (s)
        self._reasons: dict[str, Reason] = {}

    def handle(self, event: Event, now: float) -> list[Action]:
        """As the scheduler does."""
        for id, reason in self._reasons.items():  # what was given last held until now
            waited_s = now - self._asked[id][1]
            kind = GUEST if reason is Reason.HELD and id in self._guests else reason
            self.longest.seen(kind, id, waited_s)
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
        self.longest.seen(STREAMED if request.stream else WHOLE, action.id, now - since)
        if isinstance(action, Dispatch):
            turn = self._steps(request.key, now)
            for id, (other, before) in self._asked.items():
                if before < since and self._steps(other.key, now) <= turn:
                    self.longest.seen(OVERTAKEN, id, now - before)

    def _steps(self, key: str, now: float) -> int:
        """What a key was served: that one served less goes first is its turn."""
        return int(self._scheduler.served_s(PROFILE, key, now) / self._step_s)


def watched(workload: Workload, slots: int, params: Params, cost: CostModel) -> tuple[Longest, Run]:
    """Serve a workload; returns the longest waits, and the schedule."""
    guests = {ask.id for ask in workload.asks() if ask.guest}
    chooser = Watched(params, guests)
    setup = EngineSetup(slots, 0, idle_snapshots=False)
    run = simulate(workload, Arm(SLOTWISE, setup, lambda: chooser), cost)
    return chooser.longest, run

"""Whole schedules in virtual time: clients, a chooser of slots, and one model of an engine.

The chooser is slotwise's own scheduler object or a plain rule; it hears what the proxy would hear
and the simulator does what it says. Everything is a function of the workload, so the same seed
gives the same result.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from slotwise.bench.sim.arms import ENGINE, PROFILE, Arm
from slotwise.bench.sim.cost_model import CostModel
from slotwise.bench.sim.engine import EngineModel, Job, Output
from slotwise.bench.sim.load import Ask, Workload
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    Dispatch,
    EngineReady,
    Event,
    Failure,
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
from slotwise.proxy.engine.pace import Pace, SlotsPacer

WINDOW_TOKENS = 1 << 20  # no prompt is too long: windows are another question
_TIMER_LATE_S = 1e-3  # as real timers are
_RETRY_S = 30.0  # a client that was refused comes again
_LONGEST_S = 30 * 86400.0


class SimulationError(RuntimeError):
    """A schedule that did not end; the text says what was left."""


@dataclass(slots=True)
class Served:
    """One request's fate, in seconds of virtual time."""

    ask: Ask
    arrived: float
    begun: float = -1.0  # it got its slot
    first: float = -1.0
    finished: float = -1.0
    cached: int = 0
    refused: int = 0
    left: bool = False  # the client gave up

    @property
    def ttft_s(self) -> float:
        return self.first - self.arrived


@dataclass(slots=True)
class Run:
    """What a schedule did."""

    arm: str
    served: list[Served] = field(default_factory=list)
    sessions_s: list[float] = field(default_factory=list)  # from start to last answer
    prefill_s: float = 0.0
    copy_s: float = 0.0
    ended: float = 0.0
    rules: dict[str, int] = field(default_factory=dict)


def simulate(workload: Workload, arm: Arm, cost: CostModel) -> Run:
    """Serve the whole workload; raises :class:`SimulationError` where it never ends."""
    return _Simulation(workload, arm, cost).run()


class _Simulation:
    def __init__(self, workload: Workload, arm: Arm, cost: CostModel) -> None:
        self._workload = workload
        self._cost = cost
        self._on_the_way = 0  # requests that were sent and have not reached the engine
        self._engine = EngineModel(arm.setup, cost)
        self._chooser = arm.make()
        self._later = deque(workload.sessions)
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._served: dict[str, Served] = {}
        self._result = Run(arm.name)
        self._wake: float | None = None
        self._asked = False  # for /slots
        self._asking = SlotsPacer(Pace())
        self._sent: set[str] = set()  # requests that reached the engine or are on their way
        self._streams = arm.setup.streams
        self._then: dict[str, Callable[[float], None]] = {}
        self._untold: dict[str, RequestProgressed] = {}  # how far prompts are, not yet fed

    def run(self) -> Run:
        windows = (WINDOW_TOKENS,) * self._engine.setup.slots
        self._feed(EngineReady(ENGINE, PROFILE, windows, None, True, empties=True), 0.0)
        for _ in range(self._workload.live or len(self._later)):
            self._begin_session(0.0)
        now = 0.0
        while self._heap or self._engine.next_at < _LONGEST_S:
            if self._heap and self._heap[0][0] <= self._engine.next_at:
                now, _, action = heapq.heappop(self._heap)
                action(now)
            else:
                now = self._engine.next_at
                for output in self._engine.step():
                    self._said(output, now)
            if now > _LONGEST_S:
                break
        left = [id for id, served in self._served.items() if served.finished < 0]
        if left:
            what = f"{len(left)} requests never ended: {', '.join(left[:5])}"
            raise SimulationError(f"{self._result.arm}: {what}")
        result, engine = self._result, self._engine
        result.served = list(self._served.values())
        result.prefill_s, result.copy_s = engine.prefill_s, engine.copy_s
        result.ended = max((served.finished for served in result.served), default=0.0)
        return result

    # ------------------------------------------------------------ clients

    def _at(self, when: float, action: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    def _begin_session(self, now: float) -> None:
        """A client opens its next session, if there is one left."""
        if self._later:
            session = self._later.popleft()
            at = now + session[0].pause_s
            self._send_later(session, 0, at, at)

    def _send_later(self, session: list[Ask], k: int, when: float, begun: float) -> None:
        self._at(when, lambda now: self._send(session, k, now, begun))

    def _send(self, session: list[Ask], k: int, now: float, begun: float) -> None:
        ask = session[k]
        self._then[ask.id] = lambda at: self._answered(session, k, at, begun)
        for one in (ask, *ask.beside):
            self._arrive(one, now)
            if one.gives_up_s is not None:
                self._at(now + one.gives_up_s, partial(self._gives_up, one))

    def _answered(self, session: list[Ask], k: int, now: float, begun: float) -> None:
        if k + 1 < len(session):
            self._send_later(session, k + 1, now + session[k + 1].pause_s, begun)
        else:
            self._result.sessions_s.append(now - begun)
            if self._workload.live is not None:
                self._begin_session(now)

    def _gives_up(self, ask: Ask, now: float) -> None:
        """The client closes its connection, unless it has its answer, and goes on."""
        served = self._served[ask.id]
        if served.finished >= 0:
            return
        served.finished, served.left = now, True
        if ask.id in self._sent:
            self._engine.abandon(ask.id, now, self._streams)
            generated = self._engine.generated(ask.id)
            self._feed(RequestFailed(ask.id, Failure.CLIENT_GONE, generated), now)
        else:
            self._feed(RequestCancelled(ask.id), now)
        then = self._then.pop(ask.id, None)
        if then is not None:
            then(now)

    def _arrive(self, ask: Ask, now: float) -> None:
        served = self._served.setdefault(ask.id, Served(ask, now))
        if served.left:
            return  # it was refused, and left before it came again
        row = ask.row
        session = "" if ask.guest or self._workload.open_loop else row.session
        request = Request(
            id=ask.id,
            profile=PROFILE,
            tokens=row.prompt,
            first_user_end=row.first_user_end,
            turns=row.turns,
            max_tokens=ask.output if ask.guest or ask.says_limit else None,
            stream=ask.stream,
            key=ask.client,
            session=session if ask.session is None else ask.session,
            kind=ask.kind,
        )
        self._feed(RequestArrived(request), now)

    # ------------------------------------------------------------ chooser

    def _feed(self, event: Event, now: float) -> None:
        # While a prompt is read nothing is decided: the last report before the next event will do.
        untold, self._untold = self._untold, {}
        for report in untold.values():
            self._chooser.handle(report, now)
        for action in self._chooser.handle(event, now):
            self._do(action, now)

    def _do(self, action: Action, now: float) -> None:
        match action:
            case Dispatch():
                self._dispatch(action, now)
            case WakeAt():
                self._wake = action.at
                self._at(max(now, action.at) + _TIMER_LATE_S, lambda at: self._tick(action.at, at))
            case AskSlots():
                if not self._asked:
                    self._asked = True
                    self._at(self._asking.next_at(now), self._report)
            case Refuse():
                served = self._served[action.id]
                served.refused += 1
                wait_s = action.retry_after_s or _RETRY_S
                self._at(now + wait_s, lambda at: self._arrive(served.ask, at))

    def _dispatch(self, action: Dispatch, now: float) -> None:
        served = self._served[action.id]
        rules = self._result.rules
        rules[action.rule] = rules.get(action.rule, 0) + 1
        pin = action.slot.id_slot if action.slot.id_slot >= 0 else None
        ask = served.ask
        streams = ask.stream or self._streams
        job = Job(ask.id, ask.row, ask.output, pin, action.empties, streams=streams)
        self._sent.add(ask.id)
        crowd = self._on_the_way > 0 or self._engine.at_work()
        outside_s = self._cost.outside_s(len(job.row.prompt), crowd)
        if not outside_s:
            self._engine.submit(job, now)
            return
        self._on_the_way += 1
        self._at(now + outside_s, lambda at: self._reached(job, at))

    def _reached(self, job: Job, now: float) -> None:
        self._on_the_way -= 1
        if not self._served[job.id].left:
            self._engine.submit(job, now)

    def _tick(self, wanted: float, now: float) -> None:
        if self._wake == wanted:  # else the chooser asked for another time since
            self._wake = None
            self._feed(Tick(), now)

    def _report(self, now: float) -> None:
        self._asked = False
        self._asking.asked(now)
        self._engine.asked(now)
        slots = tuple(
            SlotReport(i, busy, tokens) for i, (busy, tokens) in enumerate(self._engine.slots())
        )
        self._feed(SlotsReported(ENGINE, now, slots), now)
        if not self._asked:
            self._asking.proven()

    # ------------------------------------------------------------ engine

    def _said(self, output: Output, now: float) -> None:
        job, served = output.job, self._served[output.job.id]
        if served.left:
            return  # nobody hears it
        if not output.finished and not output.first:
            self._untold[job.id] = RequestProgressed(job.id, job.done, job.cached)
            return
        if output.first:
            self._feed(RequestProgressed(job.id, job.done, job.cached), now)
            served.begun, served.first, served.cached = job.begun, now, job.cached
        if not output.finished:
            return
        served.finished = now
        n = len(job.row.prompt)
        reported = RequestFinished(
            job.id,
            n,
            job.cached,
            job.output,
            job.slot,
            prefill_s=served.first - job.started,
            decode_s=now - served.first,
            tool_calls=served.ask.tool_calls,
        )
        self._feed(reported, now)
        then = self._then.pop(job.id, None)
        if then is not None:
            then(now)

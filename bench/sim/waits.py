"""No wait without its bound: every one that the rules know, with the longest that was seen.

    python -m slotwise.bench.sim.waits

The very scheduler that serves, in virtual time. The *soak*: ten minutes in which one key sends 100
requests at once, another one each 3 s, side jobs come each 4 s, and more agents live than there are
slots, with guests between their turns. The *corners*: for each bound a few requests that run into
it, such as the copy of a request that runs for long.

A wait counts by how long its request had waited when that reason was given for the last time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import orjson

from slotwise.bench.sim import cost_model
from slotwise.bench.sim.arms import PROFILE, SLOTWISE, Arm, slotwise_setup
from slotwise.bench.sim.cost_model import CostModel
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import Run, simulate
from slotwise.bench.trace.report import markdown_table, parser_of, percentile
from slotwise.bench.trace.rows import Row
from slotwise.policies.bounds import most_s
from slotwise.policies.order import SERVICE_STEP_S
from slotwise.policies.params import Params
from slotwise.policies.prefix import pack
from slotwise.policies.types import SIDE_JOB, Reason, Request
from slotwise.proxy.core.events import Action, Dispatch, Event, Refuse, RequestArrived
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


SOAK_S = 600.0
_MOST_TOKENS, _TALKS = 1 << 18, 1 << 14  # ids of their own for each of so many conversations
_HEAD = 2000  # tokens that all conversations of one client begin with
_FLOOD = 100  # requests at once
_STEADY_S, _SIDE_S = 3.0, 6.0
_AGENTS, _TURNS = 2, 24


@dataclass(frozen=True, slots=True)
class Scene:
    """``name``: the bound whose corner it is."""

    name: str
    workload: Workload
    slots: int
    cost: str  # the engine's cost model
    params: Params = field(default_factory=Params)


class Talk:
    """One conversation: prompts of any length, each of which goes on from the ones before."""

    _numbers = count(1)

    def __init__(self, client: str, most: int, head: int = 0) -> None:
        """``most`` tokens at the end; the first ``head`` are those of every conversation."""
        self.name = f"{client}-{next(Talk._numbers)}"
        self._client = client
        own = next(Talk._numbers) % _TALKS * _MOST_TOKENS + head
        self._tokens = pack([*range(head), *range(own, own + most - head)])
        self._asks = 0
        self._begins = head + 1

    def ask(self, n: int, output: int, pause_s: float, **more: Any) -> Ask:
        """A request of ``n`` tokens; its answer is what the conversation goes on with."""
        self._asks += 1
        row = Row(
            self.name,
            self._tokens.first(n),
            self._tokens.first(n + output - 1),
            min(n, self._begins),
            self._asks,
            output,
        )
        id = f"{self.name}.{self._asks}"
        return Ask(id, row, output, pause_s, self._client, **more)


def single(client: str, n: int, output: int, at_s: float, head: int = 0, **more: Any) -> list[Ask]:
    """One call of a conversation that has no second."""
    return [Talk(client, n + output, head).ask(n, output, at_s, **more)]


def talk(client: str, turns: int, n: int, more: int, output: int, pause_s: float) -> list[Ask]:
    """Turns that grow by ``more`` tokens, each ``pause_s`` after the answer before."""
    one = Talk(client, n + turns * more + output)
    return [one.ask(n + k * more, output, pause_s) for k in range(turns)]


def soak(seed: int = 1) -> Scene:
    """Ten minutes on four slots, with the rules as they are by default."""
    drawn = random.Random(seed)
    sessions = [
        single("flood", drawn.randrange(3000, 8000), 200, 60.0, _HEAD) for _ in range(_FLOOD)
    ]
    sessions += [
        single("steady", 2100, 10, _STEADY_S * k, stream=k % 2 == 0)
        for k in range(int(SOAK_S / _STEADY_S))
    ]
    sessions += [
        single("side jobs", 300, 20, _SIDE_S * k, kind=SIDE_JOB)
        for k in range(int(SOAK_S / _SIDE_S))
    ]
    return Scene("soak", Workload([*sessions, *_agents(drawn)]), 4, "evidence")


def _agents(drawn: random.Random) -> list[list[Ask]]:
    sessions = []
    for number in range(_AGENTS):
        one = Talk("agents", 8000 + _TURNS * 2500, _HEAD)
        asks, n = [], 8000
        for k in range(_TURNS):
            pause_s = 10.0 * number if not k else drawn.uniform(10, 40)
            asks.append(one.ask(n, 150, pause_s))
            if drawn.random() < 0.3:
                size = drawn.randrange(300, 900)
                asks[-1].beside = single("guests", size, 20, 0, guest=True)
            n += 150 + drawn.randrange(500, 2000)
        sessions.append(asks)
    return sessions


# ---------------------------------------------------------------- corners, on the slow engine
# Nobody waits longer than in a plain line and for its own read: who runs into another bound comes
# behind a long line, or has a long prompt.


def corners() -> list[Scene]:
    """A scene for each bound; a prompt of 100,000 tokens takes eleven minutes there."""
    calm: dict[str, Any] = {"keep": False}
    alone: dict[str, Any] = {"max_running": 1}
    return [
        _corner("for a busy home", 2, _a_copy_of_a_long_run()),
        _corner("of a guest, for a slot", 1, _a_guest_before_a_long_conversation()),
        _corner("for a slot that is kept", 1, _an_owner_that_comes_again()),
        _corner("while a long prompt is read", 2, _two_long_prompts(), **calm),
        _corner("of a side job, for first tokens", 4, _a_side_job_among_prompts(), **calm),
        _corner("behind later ones, out of turn", 4, _a_newcomer_among_owners(), **calm, **alone),
        _corner("in all, not streamed", 1, _behind_an_endless_answer(stream=False)),
        _corner("in all, streamed", 1, _behind_an_endless_answer(stream=True)),
    ]


def _corner(name: str, slots: int, sessions: list[list[Ask]], **policy: Any) -> Scene:
    params = Params(**policy, long_reads=0.0)  # bounds as they are given
    return Scene(name, Workload(sessions), slots, "gb10", params)


def _a_copy_of_a_long_run() -> list[list[Ask]]:
    one = Talk("ann", 30_000)
    long, copy = one.ask(4000, 12_000, 0.0), one.ask(4000, 12_000, 5.0)
    return [[long], [copy]]


def _a_guest_before_a_long_conversation() -> list[list[Ask]]:
    return [talk("ann", 2, 100_000, 300, 100, 1.0), single("guest", 300, 20, 700.0, guest=True)]


def _an_owner_that_comes_again() -> list[list[Ask]]:
    return [talk("ann", 60, 100_000, 300, 100, 10.0), single("new", 100_000, 100, 700.0)]


def _two_long_prompts() -> list[list[Ask]]:
    return [single("ann", 100_000, 50, 0.0), single("ben", 90_000, 50, 1.0)]


def _a_side_job_among_prompts() -> list[list[Ask]]:
    prompts = [single("ann", 6000, 50, 5.0 * k) for k in range(60)]
    return [*prompts, single("side", 300, 20, 120.0, kind=SIDE_JOB)]


def _a_newcomer_among_owners() -> list[list[Ask]]:
    agents = [talk(f"agent{k}", 60, 4000, 300, 200, 0.1) for k in range(3)]
    return [*agents, single("new", 100_000, 100, 60.0)]


def _behind_an_endless_answer(stream: bool) -> list[list[Ask]]:
    return [single("ann", 2000, 100_000, 0.0), single("ben", 2000, 50, 1.0, stream=stream)]


def longest(scene: Scene) -> tuple[Longest, Run]:
    """Serve a scene; returns the longest wait of every kind."""
    cost = cost_model.load(scene.cost)
    params = replace(scene.params, cost=cost.as_policy())
    return watched(scene.workload, scene.slots, params, cost)


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row per bound, and a row per group of clients in the soak."""
    soaked, run = longest(soak())
    cornered = {scene.name: longest(scene)[0] for scene in corners()}
    rows = [_row(bound, soaked, cornered.get(bound.name, Longest())) for bound in bounds(Params())]
    return rows, _clients(run)


def _row(bound: Bound, soaked: Longest, corner: Longest) -> dict[str, Any]:
    return {
        "wait": bound.name,
        "knob": bound.knob,
        "bound s": bound.seconds,
        "soak, requests": soaked.requests(bound),
        "soak, longest s": round(soaked.seconds(bound), 2),
        "corner, longest s": round(corner.seconds(bound), 2),
        "within": "yes" if soaked.kept(bound) and corner.kept(bound) else "NO",
    }


def _clients(run: Run) -> list[dict[str, Any]]:
    waits: dict[str, list[float]] = {}
    refused: dict[str, int] = {}
    for served in run.served:
        client = served.ask.client
        waits.setdefault(client, []).append(served.begun - served.arrived)
        refused[client] = refused.get(client, 0) + served.refused
    return [
        {
            "key": client,
            "requests": len(seconds),
            "from arrival to slot, p50 s": round(percentile(seconds, 50) or 0.0, 2),
            "p95 s": round(percentile(seconds, 95) or 0.0, 2),
            "longest s": round(max(seconds), 2),
            "answered 429": refused[client],
        }
        for client, seconds in sorted(waits.items())
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 1 where a wait went past its bound."""
    parser = parser_of("slotwise.bench.sim.waits", __doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    rows, clients = measure()
    if options.json:
        print(orjson.dumps({"waits": rows, "soak": clients}).decode())
    else:
        print(f"{markdown_table(rows)}\n\nThe soak, by who asked:\n\n{markdown_table(clients)}")
    return int(any(row["within"] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())

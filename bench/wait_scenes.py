"""What is sent to see how long anybody waits: a soak, and a corner for each bound."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from slotwise.bench.rows import Row
from slotwise.bench.sim_workload import Ask, Workload
from slotwise.policies.params import Params
from slotwise.policies.prefix import pack
from slotwise.policies.types import SIDE_JOB

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

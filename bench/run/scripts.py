"""Scripts from files: recorded chats, block traces, arrivals, and slotwise's own journal.

Pauses are the recorded ones where the source had them. The others are drawn: log-normal about a
median, as the pauses of agents are (measured on recorded sessions: median 9 s after a tool call,
four of five under 30 s), with a fixed seed, so that every server gets the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from slotwise.bench.run.sender import Chat, Ids, Script, Step, of_workload
from slotwise.bench.sim import load as asks
from slotwise.bench.trace import trace, workload
from slotwise.bench.trace.blocks import is_block_trace, is_local, knows_sessions
from slotwise.bench.trace.trace import Call, TraceError
from slotwise.policies.types import Request
from slotwise.proxy.core.events import Event, RequestArrived, RequestFinished

ORDERS = {
    "shuffled": "closed loop, sessions in a random order",
    "file": "closed loop, sessions in the order of the file",
    "session": "one call at a time, session after session",
    "insertion": "one call at a time, in the order of the file",
    "drawn": "one call at a time, the next drawn among the live sessions",
    "open": "every call at its recorded time",
}
_ONE_AT_A_TIME = ("session", "insertion", "drawn")
_PAUSE_SIGMA = 1.3
_GUEST_SHARE = 0.15  # of the turns of a trace that holds no side jobs, as in the simulator
_JOURNAL_HEAD = b'{"slotwise_journal"'
Entries = Iterable[tuple[float, Event, object]]
JournalReader = Callable[[Path], Entries]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a file becomes a script."""

    sessions: int = 4  # live at a time
    order: str = "shuffled"  # one of ORDERS
    total: int | None = None  # sessions in all; None: every recorded one
    calls: int = 40  # of a session, the first so many
    requests: int = 1000  # open loop: the first so many
    most_output: int = 64  # tokens of an answer
    think_s: float = 0.0  # median of the pauses that were not recorded
    most_think_s: float = 600.0
    spread_s: float = 0.0  # block traces: a session starts within this time
    stretch: float = 1.0  # block traces: prompts are so many times as long
    seed: int = 1

    @property
    def is_open(self) -> bool:
        return self.order == "open"

    def output(self, tokens: int) -> int:
        """What is asked for where so many tokens were generated."""
        return max(1, min(tokens, self.most_output))


def read(name: str, wanted: Wanted, journal: JournalReader | None = None) -> Script:
    """The script of a trace or a made-up workload, by its path or name; raises ``ValueError``.

    ``journal`` reads slotwise's own journal.
    """
    if name in (workload.TITLES, workload.NEWSROOM):
        return _ordered(made_up(name, wanted), wanted)
    path = trace.find(name)
    if _is_journal(path):
        if journal is None:
            raise TraceError(path, None, "a journal; slotwise replay reads it")
        return _ordered(of_journal(list(journal(path)), wanted), wanted)
    if is_block_trace(path):
        return _ordered(of_workload(_block_workload(path, wanted)), wanted)
    return _ordered(of_calls(trace.read_calls(path), wanted), wanted)


def _is_journal(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_JOURNAL_HEAD)) == _JOURNAL_HEAD


def _ordered(script: Script, wanted: Wanted) -> Script:
    """In one lane and without pauses, where calls are to come one at a time."""
    if wanted.order not in _ONE_AT_A_TIME or script.open_loop:
        return script
    lanes = script.sessions
    if wanted.order == "drawn":
        lanes = [_drawn(lanes, wanted)]
    elif wanted.order == "insertion":
        lanes = [sorted((step for lane in lanes for step in lane), key=lambda step: step.place)]
    return Script([[replace(step, pause_s=0.0) for step in lane] for lane in lanes], live=1)


def _drawn(sessions: list[list[Step]], wanted: Wanted) -> list[Step]:
    waiting = [session[::-1] for session in sessions[::-1]]  # pop() takes the first of the next
    return workload.drawn(waiting, wanted.sessions, random.Random(wanted.seed))


def _chosen(sessions: list[list[Step]], wanted: Wanted) -> Script:
    """The sessions that are wanted, cut to their first calls."""
    if wanted.order in ("shuffled", "drawn"):
        random.Random(wanted.seed).shuffle(sessions)
    cut = [session[: wanted.calls] for session in sessions[: wanted.total]]
    return Script(cut, wanted.sessions)


def _block_workload(path: Path, wanted: Wanted) -> asks.Workload:
    shape = asks.Shape(
        sessions=wanted.sessions,
        total=wanted.total,
        calls=wanted.calls,
        most_output=wanted.most_output,
        most_think_s=wanted.most_think_s,
        stretch=wanted.stretch,
        spread_s=wanted.spread_s,
        guest_share=_GUEST_SHARE if is_local(path) else 0.0,
    )
    if wanted.is_open or not knows_sessions(path):
        return asks.open_loop(path, wanted.requests, 1.0, shape)
    recorded = asks.Recorded(path, shape)
    if wanted.total is None:  # no twins where nobody asked for more than there is
        shape = replace(shape, sessions=min(wanted.sessions, len(recorded)))
    return asks.closed_loop(recorded, shape, wanted.seed)


# ---------------------------------------------------------------- recorded chats


def of_calls(calls: Iterable[Call], wanted: Wanted) -> Script:
    """The calls of a text trace; raises ``ValueError`` where an open loop has no times."""
    steps = [_step(call, place, wanted) for place, call in enumerate(calls)]
    if wanted.is_open:
        return _at_their_times(steps, wanted)
    sessions: dict[str, list[Step]] = {}
    for step in steps:
        sessions.setdefault(step.session, []).append(step)
    rng = random.Random(wanted.seed)
    return _chosen([_paused(session, wanted, rng) for session in sessions.values()], wanted)


def _at_their_times(steps: list[Step], wanted: Wanted) -> Script:
    timed = [(t, step) for step in steps if (t := _time(step)) is not None]
    if len(timed) < len(steps):
        missing = len(steps) - len(timed)
        raise ValueError(f"order open: {missing} of {len(steps)} calls have no recorded time")
    timed.sort(key=lambda entry: entry[0])
    sessions = [[replace(step, pause_s=t - timed[0][0])] for t, step in timed[: wanted.requests]]
    return Script(sessions, open_loop=True)


def _step(call: Call, place: int, wanted: Wanted) -> Step:
    name = f"{call.session}.{call.turn}.{place}"
    return Step(name, call.session, Chat(call), wanted.output(call.max_tokens), place=place)


def _time(step: Step) -> float | None:
    return step.prompt.call.t if isinstance(step.prompt, Chat) else None


def _paused(session: list[Step], wanted: Wanted, rng: random.Random) -> list[Step]:
    """With the pauses before all but the first; recorded times include the answer before."""
    paused = session[:1]
    for before, step in pairwise(session):
        pause_s = rng.lognormvariate(0.0, _PAUSE_SIGMA) * wanted.think_s
        began, begins = _time(before), _time(step)
        if began is not None and begins is not None:
            pause_s = max(0.0, begins - began)
        paused.append(replace(step, pause_s=min(pause_s, wanted.most_think_s)))
    return paused


def made_up(name: str, wanted: Wanted) -> Script:
    """Conversations with title jobs, or one-shots with a long common preamble."""
    sessions: dict[str, list[Step]] = {}
    for place, moment in enumerate(workload.moments(name, wanted.sessions, wanted.seed)):
        turn, *side = [_step(call, place, wanted) for call in moment]
        step = replace(turn, beside=tuple(replace(job, side=True) for job in side))
        sessions.setdefault(turn.session, []).append(step)
    rng = random.Random(wanted.seed)
    return _chosen([_paused(session, wanted, rng) for session in sessions.values()], wanted)


# ---------------------------------------------------------------- our own journal


def of_journal(entries: Entries, wanted: Wanted) -> Script:
    """What clients asked of slotwise: each conversation a session, with the pauses it had.

    Prompts are the ids the server served. A request without a conversation is one of its own.
    """
    arrived: dict[str, tuple[float, Request]] = {}
    ended: dict[str, tuple[float, int]] = {}  # s, tokens generated
    for now, event, _ in entries:
        if isinstance(event, RequestArrived):
            arrived[event.request.id] = (now, event.request)
        elif isinstance(event, RequestFinished):
            ended[event.id] = (now, event.completion_tokens or 1)
    start = min((at for at, _ in arrived.values()), default=0.0)
    sessions: dict[str, list[Step]] = {}
    last: dict[str, float] = {}
    for place, (id, (at, request)) in enumerate(arrived.items()):
        name = request.session or id
        finished, generated = ended.get(id, (at, request.max_tokens or 1))
        pause_s = min(max(0.0, at - last.get(name, at)), wanted.most_think_s)
        last[name] = max(finished, last.get(name, at))
        step = Step(
            id=id,
            session=name,
            prompt=Ids(request.tokens, made_up=False),
            output=wanted.output(generated),
            pause_s=at - start if wanted.is_open else pause_s,
            place=place,
        )
        sessions.setdefault(id if wanted.is_open else name, []).append(step)
    if wanted.is_open:
        return Script(list(sessions.values())[: wanted.requests], open_loop=True)
    return _chosen(list(sessions.values()), wanted)

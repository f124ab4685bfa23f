"""Sends a script to a server and notes of every call when it should have gone, and when it went."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np

from slotwise.bench.run import client
from slotwise.bench.run.client import CHAT, COMPLETION, Answer, CallError
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.trace.trace import Call
from slotwise.policies.prefix import Tokens

# Token ids that are pieces of plain text in the vocabularies of all models we know of: special
# ones lie at either end.
PLAIN_IDS = range(1000, 2500)
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Chat:
    """A recorded chat call."""

    call: Call
    path: str = CHAT

    def fields(self) -> dict[str, Any]:
        """The part of the request's body that is the prompt."""
        tools = {"tools": self.call.tools} if self.call.tools else {}
        return {"messages": self.call.messages, **tools}


@dataclass(frozen=True, slots=True)
class Ids:
    """A prompt of token ids; ``made_up`` ones belong to no vocabulary."""

    tokens: Tokens
    made_up: bool
    path: str = COMPLETION

    def fields(self) -> dict[str, Any]:
        """The part of the request's body that is the prompt."""
        return {"prompt": (plain(self.tokens) if self.made_up else self.tokens).ids()}


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a client."""

    id: str
    session: str
    prompt: Chat | Ids
    output: int  # tokens asked for
    pause_s: float = 0.0  # since the answer before it; open loop: since the start
    side: bool = False  # a side job: nobody waits for it
    beside: tuple[Step, ...] = ()  # sent at the same moment
    place: int = 0  # in its file

    def body(self) -> dict[str, Any]:
        """The request's body: streamed, greedy, with the engine's own account at its end."""
        return {
            **self.prompt.fields(),
            "max_tokens": self.output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@dataclass(frozen=True, slots=True)
class Script:
    """Lanes of steps, mostly a session each. ``live`` of them go on at a time, each step after the
    answer before it; ``open_loop``: every step at its own time, whatever became of those before."""

    sessions: list[list[Step]] = field(default_factory=list)
    live: int | None = None  # None: all
    open_loop: bool = False

    def steps(self) -> Iterator[Step]:
        """Every step, side jobs included, session by session."""
        for session in self.sessions:
            for step in session:
                yield step
                yield from step.beside

    def __len__(self) -> int:
        return sum(1 for _ in self.steps())


def plain(tokens: Tokens) -> Tokens:
    """Made-up ids as ids of plain text, every id always as the same one."""
    ids = np.frombuffer(tokens.packed, dtype="<u4").astype(np.uint64)
    mixed = (ids * _MIX) >> np.uint64(40)
    into = PLAIN_IDS.start + mixed % np.uint64(len(PLAIN_IDS))
    return Tokens(into.astype("<u4").tobytes())


def of_workload(workload: Workload) -> Script:
    """What the simulator serves, as requests to a real server."""

    def step(ask: Ask) -> Step:
        beside = tuple(map(step, ask.beside))
        prompt = Ids(ask.row.prompt, made_up=True)
        name = ask.row.session
        return Step(ask.id, name, prompt, ask.output, ask.pause_s, ask.guest, beside)

    sessions = [[step(ask) for ask in session] for session in workload.sessions]
    return Script(sessions, workload.live, workload.open_loop)


def fitting(script: Script, most_prompt: int, tokens: Mapping[str, Tokens] | None = None) -> Script:
    """The same with every session ended before its first prompt that is too long.

    ``tokens``: prompts by their steps. Without, only prompts of ids have a length.
    """

    def length(step: Step) -> int:
        if tokens is not None:
            return len(tokens[step.id])
        return len(step.prompt.tokens) if isinstance(step.prompt, Ids) else 0

    def cut(lane: list[Step]) -> list[Step]:
        too_long = (n for n, step in enumerate(lane) if length(step) > most_prompt)
        return lane[: next(too_long, len(lane))]

    return replace(script, sessions=[kept for lane in script.sessions if (kept := cut(lane))])


class ReplayError(RuntimeError):
    """A replay that was given up; the text says why."""


@dataclass(frozen=True, slots=True)
class How:
    """To whom and how a script is sent."""

    url: str  # of the server, without /v1
    think_scale: float = 1.0  # pauses are so many times as long
    call_limit_s: float = 600.0  # of one call, waits in the server included
    limit_s: float = 3600.0  # of the whole
    most_failures: int = 10
    headers: Mapping[str, str] = field(default_factory=dict)
    session_header: str | None = None  # a header that names a call's session
    fields: Mapping[str, Any] = field(default_factory=dict)  # of every body
    pin_slots: int = 0  # above 0: the client pins each session to one of so many slots


@dataclass(slots=True)
class Sent:
    """One call: s since the start of the replay."""

    step: Step
    targeted_s: float
    started_s: float
    ended_s: float = 0.0
    answer: Answer | None = None
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """To the first token since the call was due, the client's own waits included."""
        assert self.answer is not None
        return self.started_s - self.targeted_s + self.answer.ttft_s


@dataclass(slots=True)
class Outcome:
    """What became of a script."""

    calls: list[Sent] = field(default_factory=list)  # in the order of their starts
    skipped: int = 0  # steps behind one that failed, or not reached
    wall_s: float = 0.0
    cut_off: bool = False  # the time was over before the script

    @property
    def failures(self) -> list[Sent]:
        return [sent for sent in self.calls if sent.answer is None]


async def send(script: Script, how: How, done: Callable[[], None] = lambda: None) -> Outcome:
    """Play the script to its end; ``done`` is called after every call.

    Raises :class:`ReplayError` after too many failures.
    """
    async with client.connection() as connection:
        playing = _Playing(script, how, connection, done)
        begun = time.perf_counter()
        await _within(how.limit_s, playing)
    outcome = playing.outcome
    outcome.wall_s = time.perf_counter() - begun
    outcome.skipped = len(script) - len(outcome.calls)
    return outcome


async def _within(limit_s: float, playing: _Playing) -> None:
    """Play until the script or the time is over."""
    try:
        async with asyncio.timeout(limit_s):
            await playing.play()
    except TimeoutError:
        playing.outcome.cut_off = True
        for sent in playing.outcome.calls:
            if sent.answer is None and not sent.error:
                sent.error = f"still going on when the time was over, {limit_s:g} s"
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _Playing:
    def __init__(
        self, script: Script, how: How, connection: httpx.AsyncClient, done: Callable[[], None]
    ) -> None:
        self._script, self._how, self._connection, self._done = script, how, connection, done
        self._pins = _Pins(how.pin_slots)
        self._begun = time.perf_counter()
        self._failed = 0
        self.outcome = Outcome()

    def _now(self) -> float:
        return time.perf_counter() - self._begun

    async def play(self) -> None:
        lanes = deque(self._script.sessions)
        most = None if self._script.open_loop else self._script.live
        count = min(most or len(lanes), len(lanes))
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._lanes(lanes, group))

    async def _lanes(self, lanes: deque[list[Step]], group: asyncio.TaskGroup) -> None:
        while lanes:
            await self._lane(lanes.popleft(), group)

    async def _lane(self, steps: Sequence[Step], group: asyncio.TaskGroup) -> None:
        free_at = 0.0 if self._script.open_loop else self._now()
        failed: set[str] = set()  # sessions; a lane may hold several
        for step in steps:
            if step.session in failed:
                continue
            targeted = free_at + step.pause_s * self._how.think_scale
            await asyncio.sleep(max(0.0, targeted - self._now()))
            for job in step.beside:
                group.create_task(self._call(job, targeted))
            sent = await self._call(step, targeted)
            free_at = sent.ended_s
            if sent.answer is None:
                failed.add(step.session)

    async def _call(self, step: Step, targeted: float) -> Sent:
        how = self._how
        headers = dict(how.headers)
        if how.session_header and not step.side:
            headers[how.session_header] = step.session
        async with self._pins.slot(step.session) as pin:
            body = {**step.body(), **how.fields, **pin}
            sent = Sent(step, targeted, self._now())
            self.outcome.calls.append(sent)
            try:
                async with asyncio.timeout(how.call_limit_s):
                    address = how.url + step.prompt.path
                    sent.answer = await client.send(self._connection, address, body, headers)
            except CallError as error:
                sent.error = str(error)
            except TimeoutError:
                sent.error = f"no end after {how.call_limit_s:g} s"
            sent.ended_s = self._now()
        self._done()
        if sent.answer is None:
            self._count_failure(sent)
        return sent

    def _count_failure(self, sent: Sent) -> None:
        self._failed += 1
        if self._failed > self._how.most_failures:
            raise ReplayError(f"{self._failed} calls failed, the last: {sent.error}")


class _Pins:
    """Session pinning by the client: a session keeps the slot that had the fewest of them.

    One call at a time on a slot: pinned to a busy one, llama-server loads another conversation
    into it.
    """

    def __init__(self, slots: int) -> None:
        self._locks = [asyncio.Lock() for _ in range(slots)]
        self._sessions = [0] * slots
        self._slot_of: dict[str, int] = {}

    @asynccontextmanager
    async def slot(self, session: str) -> AsyncIterator[dict[str, int]]:
        """The body's pin, once its slot is free; nothing where the server chooses."""
        if not self._locks:
            yield {}
            return
        if session not in self._slot_of:
            chosen = self._sessions.index(min(self._sessions))
            self._slot_of[session] = chosen
            self._sessions[chosen] += 1
        index = self._slot_of[session]
        async with self._locks[index]:
            yield {"id_slot": index}

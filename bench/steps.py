"""What a replay sends: sessions of steps, each a request that is made when its turn comes.

A recorded chat is sent as the chat it was. Of a trace without text only the shape is known: its
prompts are rows of made-up token ids, the very rows that the simulator serves, put into the range
of ids that are plain text in every vocabulary. Two prompts share exactly what they shared there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slotwise.bench.client import CHAT, COMPLETION
from slotwise.bench.sim_workload import Ask, Workload
from slotwise.bench.trace import Call
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


def fitting(script: Script, most_prompt: int) -> tuple[Script, int]:
    """The same with every session ended before its first prompt that is too long, and how many
    steps that leaves out. Only prompts whose length is known can be told."""
    kept = [_until_too_long(session, most_prompt) for session in script.sessions]
    shorter = replace(script, sessions=[session for session in kept if session])
    return shorter, len(script) - len(shorter)


def _until_too_long(session: list[Step], most_prompt: int) -> list[Step]:
    for number, step in enumerate(session):
        if isinstance(step.prompt, Ids) and len(step.prompt.tokens) > most_prompt:
            return session[:number]
    return session

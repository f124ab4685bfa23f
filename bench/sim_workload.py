"""What clients send in a simulation: sessions of recorded calls with their pauses, and guests.

A prompt is a row of real token ids, 64 for each block of the trace, so that the scheduler runs
exactly as it is, with every limit in tokens. The ids of a block follow from its number; building a
prompt is a copy, and only its new part is digested.

What a slot holds after a call is its prompt and the answer. Where the session's next prompt goes
on from all of this one, as nearly all do, the answer's tokens are the next ones of that prompt, as
with a template that renders an answer the way it was generated. Otherwise they are nobody's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from bench.block_trace import (
    CLAUDE_BLOCK_TOKENS,
    BlockCall,
    block_tokens,
    is_local,
    read_blocks,
)
from bench.rows import Row
from bench.trace import TraceError
from policies.prefix import EMPTY, Tokens, lcp

_SESSION_BLOCKS = 32768  # numbers of one session's own blocks
_ID_BYTES = 4
_FIRST_FRESH, _FIRST_GUEST = 1 << 31, 3 << 30  # token ids; those of blocks lie below


@dataclass(frozen=True, slots=True)
class Shape:
    """How recorded sessions are turned into load."""

    sessions: int = 8  # live at a time
    total: int | None = None  # sessions in all; None: every recorded one
    calls: int = 40  # of a session, the first so many
    most_output: int = 1500  # tokens
    most_think_s: float = 600
    spread_s: float = 120  # a session starts within this time
    stretch: float = 1.0  # prompts are so many times as long as recorded
    shared_head: float = 0.75  # of tools and system text, the same for all sessions
    guest_share: float = 0.15  # of turns that a guest comes with
    guest_head: int = 512  # tokens that all guests share
    guest_own: tuple[int, int] = (256, 1536)  # tokens
    guest_output: int = 48  # tokens

    @property
    def block_tokens(self) -> int:
        """Tokens of a recorded block of 64."""
        return max(1, round(CLAUDE_BLOCK_TOKENS * self.stretch))

    def stretched(self, tokens: int) -> int:
        return max(1, tokens * self.block_tokens // CLAUDE_BLOCK_TOKENS)


@dataclass(slots=True)
class Ask:
    """One request of a client."""

    id: str
    row: Row
    output: int  # tokens that will be generated
    pause_s: float  # before it, since the answer to the one before; open loop: its arrival
    client: str = ""  # who sends it
    guest: bool = False
    tool_calls: bool = False  # what the answer asks for
    beside: list[Ask] = field(default_factory=list)  # sent together with it
    says_limit: bool = False  # whether the request names ``output`` as its limit; guests do
    kind: str = "chat"
    stream: bool = True
    gives_up_s: float | None = None  # the client leaves after so long, and goes on
    session: str | None = None  # its conversation; None: its row's, side jobs have none


@dataclass(slots=True)
class Workload:
    """Sessions, each a list of requests that follow one another.

    ``live`` of them at a time: when one ends the next begins. None: all begin when their first
    pause is over.
    """

    sessions: list[list[Ask]]
    live: int | None = None
    open_loop: bool = False

    def asks(self) -> list[Ask]:
        """Every request, guests included, in no particular order."""
        turns = [ask for session in self.sessions for ask in session]
        return turns + [one for ask in turns for one in ask.beside]


class Recorded:
    """The sessions of a trace, as rows of token ids; made once, used by every seed."""

    def __init__(self, path: Path, shape: Shape) -> None:
        """Read the calls of each session's main agent, in their order; raises ``TraceError``."""
        by_session: dict[str, list[BlockCall]] = {}
        for call in read_blocks(path):
            if call.agent == "main":
                by_session.setdefault(call.session, []).append(call)
        if not by_session:
            raise TraceError(path, None, "holds no calls")
        self._calls = [calls[: shape.calls] for calls in by_session.values()]
        self._local, self._size = is_local(path), block_tokens(path)
        self._shape = shape
        self._rows: dict[int, list[Row]] = {}
        self._fresh = _Fresh(_FIRST_FRESH)

    def __len__(self) -> int:
        return len(self._calls)

    def asks(self, number: int) -> list[Ask]:
        """The requests of a session; numbers beyond the last are its twins, with other ids."""
        calls = self._calls[number % len(self)]
        if number not in self._rows:
            if self._local:
                self._rows[number] = _session(number, calls, self._shape, self._fresh)
            else:
                name = f"s{number}"
                self._rows[number] = [self._global(name, k, c) for k, c in enumerate(calls)]
        return [
            Ask(
                id=f"{row.session}.{k}",
                row=row,
                output=row.max_tokens,
                pause_s=min(call.think_s, self._shape.most_think_s),
                client=row.session,
                tool_calls=call.tool_calls,
            )
            for k, (row, call) in enumerate(zip(self._rows[number], calls, strict=True))
        ]

    def _global(self, name: str, k: int, call: BlockCall) -> Row:
        """A call whose block ids mean the same in every session; its answer is nobody's."""
        output = max(1, min(call.output_tokens, self._shape.most_output))
        prompt, held = _global_prompt(call, self._size, output, self._fresh)
        return Row(name, prompt, held, 0, k + 1, output)


def closed_loop(recorded: Recorded, shape: Shape, seed: int) -> Workload:
    """Sessions in a random order, each sending its next call after the answer and a pause.

    Where more are wanted than were recorded, each has twins that share its head alone.
    """
    rng = random.Random(seed)
    total = max(shape.sessions, len(recorded) if shape.total is None else shape.total)
    numbers: list[int] = []
    while len(numbers) < total:
        twins = range(len(numbers), len(numbers) + len(recorded))
        numbers += rng.sample(twins, min(total - len(numbers), len(recorded)))
    guests = _Guests(shape, rng, _Fresh(_FIRST_GUEST))
    sessions = []
    for number in numbers:
        asks = recorded.asks(number)
        asks[0].pause_s = rng.uniform(0, shape.spread_s)  # clients neither start nor stop in step
        for ask in asks:
            if rng.random() < shape.guest_share:
                ask.beside = [guests.one(ask.client)]
        sessions.append(asks)
    return Workload(sessions, live=shape.sessions)


def open_loop(path: Path, most: int, slower: float, shape: Shape) -> Workload:
    """The first ``most`` calls at their recorded times, whatever becomes of those before.

    ``slower`` stretches the times: a trace of a whole cluster is too much for one engine.
    """
    size = block_tokens(path)
    fresh = _Fresh(_FIRST_FRESH)
    asks: list[Ask] = []
    for call in islice(read_blocks(path), most):
        output = max(1, min(call.output_tokens, shape.most_output))
        prompt, held = _global_prompt(call, size, output, fresh)
        row = Row(call.session, prompt, held, 0, 1, output)
        asks.append(Ask(f"q{len(asks)}", row, output, call.t * slower, call.session))
    return Workload([[ask] for ask in asks], open_loop=True)


def _global_prompt(call: BlockCall, size: int, output: int, fresh: _Fresh) -> tuple[Tokens, Tokens]:
    """The prompt of a call, and what a slot holds after it."""
    packed = _ids(call.blocks, size)[: _ID_BYTES * call.prompt_tokens]
    prompt = Tokens(packed + fresh.ids(call.prompt_tokens - len(packed) // _ID_BYTES))
    return prompt, prompt.grown(len(prompt), fresh.ids(output - 1))


# ---------------------------------------------------------------- sessions


def _session(number: int, calls: list[BlockCall], shape: Shape, fresh: _Fresh) -> list[Row]:
    shared = int(shape.shared_head * calls[0].head_tokens) // CLAUDE_BLOCK_TOKENS  # blocks
    rows = [_named(call.blocks, number, shared) for call in calls]
    outputs = [max(1, min(call.output_tokens, shape.most_output)) for call in calls]
    lengths = [shape.stretched(call.prompt_tokens) for call in calls]
    prompts, held = _prompts(lengths, rows, outputs, shape.block_tokens, fresh)
    made = []
    first_user_end, turns = 0, 0
    for k, call in enumerate(calls):
        if not k or lcp(prompts[k - 1], prompts[k]) < first_user_end:
            # It begins anew: the first call, or the one after a compaction.
            first_user_end = _first_user_end(prompts, k, shape.stretched(call.head_tokens))
            turns = 0
        turns += 1
        made.append(Row(f"s{number}", prompts[k], held[k], first_user_end, turns, outputs[k]))
    return made


def _first_user_end(prompts: list[Tokens], k: int, head: int) -> int:
    """The first user turn reaches as far as the next call repeats the first, past the head."""
    n = len(prompts[k])
    repeated = lcp(prompts[k], prompts[k + 1]) if k + 1 < len(prompts) else n
    return repeated if repeated > head else min(n, head + 1)


def _named(blocks: list[int], number: int, shared: int) -> list[int]:
    """Ids local to a session as numbers of the whole workload; below 32768 are the heads'."""
    if max(blocks, default=0) >= _SESSION_BLOCKS:
        raise ValueError(f"blocks: expected ids below {_SESSION_BLOCKS}, got {max(blocks)}")
    base = (number + 1) * _SESSION_BLOCKS
    return [b if i < shared and b == i + 1 else base + b for i, b in enumerate(blocks)]


def _prompts(
    lengths: list[int], rows: list[list[int]], outputs: list[int], size: int, fresh: _Fresh
) -> tuple[list[Tokens], list[Tokens]]:
    """Every call's prompt, and what a slot holds after it; from the last call to the first."""
    prompts: list[Tokens] = [EMPTY] * len(lengths)
    held: list[Tokens] = [EMPTY] * len(lengths)
    for k, n in reversed(list(enumerate(lengths))):
        full = n + outputs[k] - 1  # the last token is sampled and never fed back
        goes_on = k + 1 < len(lengths) and rows[k + 1][: len(rows[k])] == rows[k]
        if goes_on and len(prompts[k + 1]) >= n:
            prompts[k] = prompts[k + 1].first(n)
            held[k] = prompts[k + 1].first(full)
        else:
            packed = _ids(rows[k], size)[: _ID_BYTES * n]
            prompts[k] = held[k] = Tokens(packed + fresh.ids(n - len(packed) // _ID_BYTES))
        if len(held[k]) < full:
            held[k] = held[k].grown(len(held[k]), fresh.ids(full - len(held[k])))
    return prompts, held


def _ids(blocks: Sequence[int], size: int) -> bytes:
    """The token ids of blocks, packed."""
    first = np.asarray(blocks, dtype="<u4")[:, None] * np.uint32(size)
    return (first + np.arange(size, dtype="<u4")).tobytes()


class _Fresh:
    """Token ids that occur nowhere else."""

    def __init__(self, first: int) -> None:
        self._next = first

    def ids(self, count: int) -> bytes:
        first, self._next = self._next, self._next + max(0, count)
        return np.arange(first, self._next, dtype="<u4").tobytes()


class _Guests:
    """Short one-shots with a common head: titles, tags, commit messages."""

    def __init__(self, shape: Shape, rng: random.Random, fresh: _Fresh) -> None:
        self._shape, self._rng, self._fresh = shape, rng, fresh
        self._head = fresh.ids(shape.guest_head)
        self._count = 0

    def one(self, client: str) -> Ask:
        shape = self._shape
        prompt = Tokens(self._head + self._fresh.ids(self._rng.randint(*shape.guest_own)))
        held = prompt.grown(len(prompt), self._fresh.ids(shape.guest_output - 1))
        name = f"g{self._count}"
        self._count += 1
        row = Row(name, prompt, held, len(prompt), 1, shape.guest_output)
        return Ask(name, row, shape.guest_output, 0.0, client, guest=True)

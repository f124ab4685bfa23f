"""What clients send in a simulation: sessions of recorded calls with pauses, as token rows."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slotwise.bench.trace.blocks import (
    CLAUDE_BLOCK_TOKENS,
    BlockCall,
    block_tokens,
    is_local,
    read_blocks,
)
from slotwise.bench.trace.rows import Row, RowSource
from slotwise.bench.trace.trace import TraceError
from slotwise.policies.prefix import Tokens, lcp

_SESSION_BLOCKS = 32768  # numbers of one session's own blocks
_ID_BYTES = 4


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


def output_tokens(call: BlockCall, shape: Shape) -> int:
    """Tokens that are generated for a recorded call."""
    return max(1, min(call.output_tokens, shape.most_output))


class Span(NamedTuple):
    """Token ids that follow one another."""

    first: int
    length: int

    def packed(self) -> bytes:
        return np.arange(self.first, self.first + self.length, dtype="<u4").tobytes()


class Fresh:
    """Token ids that occur nowhere else."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int) -> Span:
        span = Span(self._next, max(0, count))
        self._next += span.length
        return span


@dataclass(frozen=True, eq=False)
class Trunk:
    """A long row as its blocks; a fresh span behind them."""

    blocks: Sequence[int]
    size: int  # tokens of a block
    length: int  # tokens
    rest: Span


@lru_cache(maxsize=64)
def _made(trunk: Trunk) -> Tokens:
    """Its tokens: of the sessions that live, they are made once."""
    packed = _ids(trunk.blocks, trunk.size)[: _ID_BYTES * trunk.length]
    return Tokens(packed + trunk.rest.packed())


@dataclass(frozen=True, slots=True)
class Beginning:
    """A call of a session: the beginning of a long row. Its answer goes on in that row as far as
    ``held`` tokens, and then in ids of nobody's."""

    session: str
    trunk: Trunk
    prompt_tokens: int
    held: int
    tail: Span
    first_user_end: int
    turns: int
    output: int

    def row(self) -> Row:
        full = _made(self.trunk).first(self.held)
        if self.tail.length:
            full = full.grown(len(full), self.tail.packed())
        prompt = full.first(self.prompt_tokens)
        return Row(self.session, prompt, full, self.first_user_end, self.turns, self.output)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A call as it is recorded: blocks, and behind them ids of nobody's."""

    session: str
    turns: int
    prompt_tokens: int
    output: int
    blocks: Sequence[int]
    size: int  # tokens of a block
    rest: Span  # of the prompt
    tail: Span  # of the answer

    def row(self) -> Row:
        packed = _ids(self.blocks, self.size)[: _ID_BYTES * self.prompt_tokens]
        prompt = Tokens(packed + self.rest.packed())
        full = prompt.grown(len(prompt), self.tail.packed())
        return Row(self.session, prompt, full, 0, self.turns, self.output)


def block_row(
    session: str, turns: int, call: BlockCall, size: int, output: int, fresh: Fresh
) -> Blocks:
    n = call.prompt_tokens
    rest = fresh.take(n - min(n, len(call.blocks) * size))
    tail = fresh.take(output - 1)
    return Blocks(session, turns, n, output, call.blocks, size, rest, tail)


def session_rows(
    number: int, calls: list[BlockCall], shape: Shape, fresh: Fresh
) -> list[Beginning]:
    """The rows of one session's calls, in their order."""
    shared = int(shape.shared_head * calls[0].head_tokens) // CLAUDE_BLOCK_TOKENS  # blocks
    rows = [_named(call.blocks, number, shared) for call in calls]
    outputs = [output_tokens(call, shape) for call in calls]
    lengths = [shape.stretched(call.prompt_tokens) for call in calls]
    made: list[Beginning] = []
    first_user_end, turns = 0, 0
    cuts = _cuts(lengths, rows, outputs, shape.block_tokens, fresh)
    prompts = _Prompts(cuts, lengths)
    for k, call in enumerate(calls):
        if not k or lcp(prompts[k - 1], prompts[k]) < first_user_end:
            # It begins anew: the first call, or the one after a compaction.
            first_user_end = _first_user_end(prompts, k, shape.stretched(call.head_tokens))
            turns = 0
        turns += 1
        trunk, held, tail = cuts[k]
        made.append(
            Beginning(
                f"s{number}", trunk, lengths[k], held, tail, first_user_end, turns, outputs[k]
            )
        )
    return made


class _Prompts:
    """The prompts of a session, each made when it is asked for."""

    def __init__(self, cuts: Sequence[_Cut], lengths: Sequence[int]) -> None:
        self._cuts = cuts
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, k: int) -> Tokens:
        return _made(self._cuts[k].trunk).first(self._lengths[k])


def _first_user_end(prompts: _Prompts, k: int, head: int) -> int:
    """The first user turn reaches as far as the next call repeats the first, past the head."""
    n = len(prompts[k])
    repeated = lcp(prompts[k], prompts[k + 1]) if k + 1 < len(prompts) else n
    return repeated if repeated > head else min(n, head + 1)


def _named(blocks: Sequence[int], number: int, shared: int) -> list[int]:
    """Ids local to a session as numbers of the whole workload; below 32768 are the heads'."""
    if max(blocks, default=0) >= _SESSION_BLOCKS:
        raise ValueError(f"blocks: expected ids below {_SESSION_BLOCKS}, got {max(blocks)}")
    base = (number + 1) * _SESSION_BLOCKS
    head = [b if b == i + 1 else base + b for i, b in enumerate(blocks[:shared])]
    return head + [base + b for b in blocks[len(head) :]]


class _Cut(NamedTuple):
    """Where a call's row is to be had: the beginning of a trunk, and fresh ids behind."""

    trunk: Trunk
    held: int  # tokens of it that prompt and answer repeat
    tail: Span


def _cuts(
    lengths: list[int], rows: list[list[int]], outputs: list[int], size: int, fresh: Fresh
) -> list[_Cut]:
    """Of every call; from the last call to the first."""
    nothing = _Cut(Trunk(array("Q"), size, 0, Span(0, 0)), 0, Span(0, 0))
    cuts = [nothing] * len(lengths)
    for k, n in reversed(list(enumerate(lengths))):
        full = n + outputs[k] - 1  # the last token is sampled and never fed back
        goes_on = k + 1 < len(lengths) and rows[k + 1][: len(rows[k])] == rows[k]
        if goes_on and lengths[k + 1] >= n:
            trunk, held = cuts[k + 1].trunk, min(full, lengths[k + 1])
        else:
            rest = fresh.take(n - min(n, len(rows[k]) * size))
            trunk, held = Trunk(array("Q", rows[k]), size, n, rest), n
        cuts[k] = _Cut(trunk, held, fresh.take(full - held))
    return cuts


def _ids(blocks: Sequence[int], size: int) -> bytes:
    """The token ids of blocks, packed."""
    first = np.asarray(blocks, dtype="<u4")[:, None] * np.uint32(size)
    return (first + np.arange(size, dtype="<u4")).tobytes()


_FIRST_FRESH, _FIRST_GUEST = 1 << 31, 3 << 30  # token ids; those of blocks lie below


@dataclass(slots=True)
class Ask:
    """One request of a client."""

    id: str
    source: RowSource
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

    @property
    def row(self) -> Row:
        """Its tokens, made anew where they are not kept."""
        return self.source.row()

    @property
    def prompt_tokens(self) -> int:
        return self.source.prompt_tokens


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
        self._rows: dict[int, Sequence[RowSource]] = {}
        self._fresh = Fresh(_FIRST_FRESH)

    def __len__(self) -> int:
        return len(self._calls)

    def asks(self, number: int) -> list[Ask]:
        """The requests of a session; numbers beyond the last are its twins, with other ids."""
        calls = self._calls[number % len(self)]
        if number not in self._rows:
            if self._local:
                self._rows[number] = session_rows(number, calls, self._shape, self._fresh)
            else:
                name = f"s{number}"
                self._rows[number] = [self._global(name, k, c) for k, c in enumerate(calls)]
        return [
            Ask(
                id=f"s{number}.{k}",
                source=source,
                output=output_tokens(call, self._shape),
                pause_s=min(call.think_s, self._shape.most_think_s),
                client=f"s{number}",
                tool_calls=call.tool_calls,
            )
            for k, (source, call) in enumerate(zip(self._rows[number], calls, strict=True))
        ]

    def _global(self, name: str, k: int, call: BlockCall) -> Blocks:
        """A call whose block ids mean the same in every session; its answer is nobody's."""
        return block_row(
            name, k + 1, call, self._size, output_tokens(call, self._shape), self._fresh
        )


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
    guests = _Guests(shape, rng, Fresh(_FIRST_GUEST))
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
    fresh = Fresh(_FIRST_FRESH)
    asks: list[Ask] = []
    for call in islice(read_blocks(path), most):
        output = output_tokens(call, shape)
        source = block_row(call.session, 1, call, size, output, fresh)
        asks.append(Ask(f"q{len(asks)}", source, output, call.t * slower, call.session))
    return Workload([[ask] for ask in asks], open_loop=True)


class _Guests:
    """Short one-shots with a common head: titles, tags, commit messages."""

    def __init__(self, shape: Shape, rng: random.Random, fresh: Fresh) -> None:
        self._shape, self._rng, self._fresh = shape, rng, fresh
        self._head = fresh.take(shape.guest_head).packed()
        self._count = 0

    def one(self, client: str) -> Ask:
        shape = self._shape
        own = self._fresh.take(self._rng.randint(*shape.guest_own))
        prompt = Tokens(self._head + own.packed())
        held = prompt.grown(len(prompt), self._fresh.take(shape.guest_output - 1).packed())
        name = f"g{self._count}"
        self._count += 1
        row = Row(name, prompt, held, len(prompt), 1, shape.guest_output)
        return Ask(name, row, shape.guest_output, 0.0, client, guest=True)

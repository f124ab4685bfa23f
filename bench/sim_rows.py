"""The rows of recorded calls: token ids that follow from blocks, made when they are asked for.

Prompts of thousands of long calls do not fit in memory. A session's are beginnings of a few long
rows, which are kept as blocks, as is a call of a trace whose blocks mean the same everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from slotwise.bench.block_trace import CLAUDE_BLOCK_TOKENS, BlockCall
from slotwise.bench.rows import Row
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

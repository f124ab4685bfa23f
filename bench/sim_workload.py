"""What clients send in a simulation: sessions of recorded calls with their pauses, and guests.

A prompt is a row of real token ids, 64 for each block of the trace, so that the scheduler runs
exactly as it is, with every limit in tokens. The ids of a block follow from its number. A session's
prompts are beginnings of a few long rows, which are kept; each prompt is made when it is asked for:
building it is a copy, and only its new part is digested.

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

from slotwise.bench.block_trace import (
    BlockCall,
    block_tokens,
    is_local,
    read_blocks,
)
from slotwise.bench.rows import Row, RowSource
from slotwise.bench.sim_rows import Blocks, Fresh, Shape, block_row, output_tokens, session_rows
from slotwise.bench.trace import TraceError
from slotwise.policies.prefix import Tokens

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

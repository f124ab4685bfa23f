"""How much of all prompts could have come from a cache at most: three bounds on token rows.

*Infinite cache*: every request reuses the longest prefix that any earlier request left behind.
No cache of any kind can do better in this order of requests.

*N slots*: a slot holds the last request it served and nothing else. So each request has one
predecessor, the request before it on its slot; each request is the predecessor of at most one;
and N requests start on an empty slot. Choosing predecessors for the greatest reuse is an
assignment problem. Every schedule that keeps the order is such a choice, so its optimum is an upper
bound for all of them (it may choose predecessors that no real schedule combines; it is never
below the best schedule).

*Park*: a cache of so many tokens, with Belady's choice of what to forget.

An engine always evaluates at least one token of a prompt: a prompt of n tokens reuses n-1 at most.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from slotwise.bench.trace.rows import Row
from slotwise.policies.prefix import BLOCK_TOKENS, Tokens, lcp

_BLOCK_BYTES = 4 * BLOCK_TOKENS
WINDOW_REQUESTS = 2000  # the matrix of a window takes 8 bytes a pair: 32 MB


def reusable(prompt: Tokens, held: Tokens) -> int:
    """Tokens of ``prompt`` an engine reuses on a slot that holds ``held``."""
    return min(lcp(prompt, held), max(len(prompt) - 1, 0))


class InfiniteCache:
    """Everything ever served, kept for ever: a tree of blocks, so that what rows have in common is
    kept once."""

    def __init__(self) -> None:
        # Under the digest of all that comes before, every block that was seen to follow.
        self._next: dict[int, set[bytes]] = {}

    def add(self, held: Tokens) -> None:
        """Keep this row."""
        for before, block in _blocks(held):
            self._next.setdefault(before, set()).add(block)

    def reuse(self, prompt: Tokens) -> int:
        """Tokens of this prompt that the cache holds."""
        found = 0
        for before, block in _blocks(prompt):
            known = self._next.get(before, set())
            if len(block) == _BLOCK_BYTES and block in known:
                found += BLOCK_TOKENS
                continue
            part = Tokens(block)
            found += max((lcp(part, Tokens(other)) for other in known), default=0)
            break
        return min(found, max(len(prompt) - 1, 0))


def _blocks(row: Tokens) -> Iterator[tuple[int, bytes]]:
    """Every block of a row, the last one as long as it is, and a digest of all before it."""
    before, packed = 0, row.packed
    for start in range(0, len(packed), _BLOCK_BYTES):
        block = packed[start : start + _BLOCK_BYTES]
        yield before, block
        before = hash((before, block))


def infinite_each(rows: Iterable[Row]) -> list[int]:
    """Of every prompt the tokens that an infinite cache would have served."""
    cache = InfiniteCache()
    found = []
    for row in rows:
        found.append(cache.reuse(row.prompt))
        cache.add(row.full)
    return found


def infinite(rows: Sequence[Row]) -> int:
    """Prompt tokens that an infinite cache would have served."""
    return sum(infinite_each(rows))


def time_floor_s(
    rows: Sequence[Row], reused: Sequence[int], prefill_s: Callable[[int, int], float]
) -> float:
    """Seconds of prefill that remain where of each prompt so many tokens are reused."""
    return sum(prefill_s(n, len(row.prompt)) for row, n in zip(rows, reused, strict=True))


def largest_residents(rows: Sequence[Row], count: int) -> int:
    """Tokens that ``count`` slots hold at most: those of the longest rows of as many sessions."""
    longest: dict[str, int] = {}
    for row in rows:
        longest[row.session] = max(longest.get(row.session, 0), len(row.full))
    return sum(sorted(longest.values(), reverse=True)[:count])


def park(rows: Sequence[Row], capacity_tokens: int, reused: Sequence[int] | None = None) -> int:
    """Prompt tokens that a cache of so many tokens could have served at most.

    ``reused``: what :func:`infinite_each` found for these rows, where it is known already.

    The cache keeps chained blocks, and of two rows with a common beginning it keeps that once, as
    no engine does; whom it forgets is Belady's choice: the block whose next use is farthest away,
    or that is never used again. A block is used whenever one behind it is, so what is kept of a
    row is always a beginning. Raises ``ValueError`` for a negative capacity.
    """
    if capacity_tokens < 0:
        raise ValueError(f"capacity: expected at least 0 tokens, got {capacity_tokens}")
    chains, asked = [], []
    for row in rows:
        chains.append(_chain(row.full))
        asked.append(chains[-1][: len(row.prompt) // BLOCK_TOKENS])
    cache = _Belady(capacity_tokens // BLOCK_TOKENS, asked)
    found = 0
    for number, best in enumerate(infinite_each(rows) if reused is None else reused):
        blocks = cache.leading(asked[number])
        # Blocks are whole, prefixes are not: the part of one more block is credited.
        found += min(best, blocks * BLOCK_TOKENS + BLOCK_TOKENS - 1)
        cache.add(chains[number], number)
    return found


def _chain(row: Tokens) -> array[int]:
    """For every whole block of a row a digest of all up to its end."""
    return array("q", [hash(pair) for pair in _blocks(row) if len(pair[1]) == _BLOCK_BYTES])


class _Belady:
    """Blocks, and when each is asked for next."""

    def __init__(self, capacity_blocks: int, asked: Sequence[Sequence[int]]) -> None:
        self._capacity = capacity_blocks
        self._uses: dict[int, list[int]] = {}  # by block, the last first
        for number in reversed(range(len(asked))):
            for block in asked[number]:
                self._uses.setdefault(block, []).append(number)
        self._next: dict[int, int] = {}  # of the blocks that are kept
        self._farthest: list[tuple[int, int, int]] = []  # with entries that are out of date

    def leading(self, blocks: Sequence[int]) -> int:
        """How many blocks from the beginning on are kept."""
        return next((n for n, b in enumerate(blocks) if b not in self._next), len(blocks))

    def add(self, blocks: Sequence[int], number: int) -> None:
        """Request ``number`` computed these: keep what is used again, as far as there is room."""
        for depth, block in enumerate(blocks):
            uses = self._uses.get(block, [])
            while uses and uses[-1] <= number:
                uses.pop()
            if uses:
                self._next[block] = uses[-1]
                heapq.heappush(self._farthest, (-uses[-1], -depth, block))
            else:
                self._next.pop(block, None)
        while len(self._next) > self._capacity:
            use, _, block = heapq.heappop(self._farthest)
            if self._next.get(block) == -use:
                del self._next[block]


def slots(rows: Sequence[Row], count: int, window: int = WINDOW_REQUESTS) -> int:
    """Prompt tokens that ``count`` slots could have served at most, whatever the schedule.

    Long workloads are cut into windows of ``window`` requests, so that the matrix stays small. At a
    window's start the slots hold ``count`` earlier requests; each is credited as the best of all
    earlier ones, so the sum stays a bound. Raises ``ValueError`` where ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"slots: expected at least 1, got {count}")
    before = InfiniteCache()
    found = 0
    for start in range(0, len(rows), window):
        part = rows[start : start + window]
        found += _assigned(part, [before.reuse(row.prompt) for row in part], count)
        for row in part:
            before.add(row.full)
    return found


def _assigned(rows: Sequence[Row], from_before: Sequence[int], starts: int) -> int:
    """The best assignment of predecessors: earlier rows of the window, or one of the starts."""
    from scipy.optimize import linear_sum_assignment  # simulate goes without it

    n = len(rows)
    forbidden = -1.0 - sum(len(row.prompt) for row in rows)  # never worth it: worse than no reuse
    gain = np.full((n + starts, n), forbidden)
    gain[n:, :] = from_before
    for later, row in enumerate(rows):
        for earlier in range(later):
            gain[earlier, later] = reusable(row.prompt, rows[earlier].full)
    chosen = linear_sum_assignment(gain, maximize=True)
    return int(gain[chosen].sum())

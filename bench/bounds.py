"""How much of all prompts could have come from a cache at most: two bounds on token rows.

*Infinite cache*: every request reuses the longest prefix that any earlier request left behind.
No cache of any kind can do better in this order of requests.

*N slots*: a slot holds the last request it served and nothing else. So each request has one
predecessor, the request before it on its slot; each request is the predecessor of at most one;
and N requests start on an empty slot. Choosing predecessors for the greatest reuse is an
assignment problem. Every schedule that keeps the order is such a choice, so its optimum is an upper
bound for all of them (it may choose predecessors that no real schedule combines; it is never
below the best schedule).

An engine always evaluates at least one token of a prompt: a prompt of n tokens reuses n-1 at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from bench.rows import Row
from policies.prefix import Tokens, lcp

WINDOW_REQUESTS = 2000  # the matrix of a window takes 8 bytes a pair: 32 MB


def reusable(prompt: Tokens, held: Tokens) -> int:
    """Tokens of ``prompt`` an engine reuses on a slot that holds ``held``."""
    return min(lcp(prompt, held), max(len(prompt) - 1, 0))


class InfiniteCache:
    """Everything ever served, kept for ever.

    Rows are kept in the byte order of their packed ids: the row with the longest common prefix is
    always a neighbour of the place where the new prompt would go.
    """

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._rows: dict[bytes, Tokens] = {}

    def add(self, held: Tokens) -> None:
        """Keep this row."""
        if held.packed not in self._rows:
            self._rows[held.packed] = held
            insort(self._packed, held.packed)

    def reuse(self, prompt: Tokens) -> int:
        """Tokens of this prompt that the cache holds."""
        place = bisect_left(self._packed, prompt.packed)
        neighbours = self._packed[max(place - 1, 0) : place + 1]
        return max((reusable(prompt, self._rows[packed]) for packed in neighbours), default=0)


def infinite(rows: Sequence[Row]) -> int:
    """Prompt tokens that an infinite cache would have served."""
    cache = InfiniteCache()
    found = 0
    for row in rows:
        found += cache.reuse(row.prompt)
        cache.add(row.full)
    return found


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
    n = len(rows)
    forbidden = -1.0 - sum(len(row.prompt) for row in rows)  # never worth it: worse than no reuse
    gain = np.full((n + starts, n), forbidden)
    gain[n:, :] = from_before
    for later, row in enumerate(rows):
        for earlier in range(later):
            gain[earlier, later] = reusable(row.prompt, rows[earlier].full)
    chosen = linear_sum_assignment(gain, maximize=True)
    return int(gain[chosen].sum())

"""What was used last, within so many bytes: the cache behind segments and whole prompts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """Values by digest; the least recently used make room. ``cost_bytes``: what one takes."""

    def __init__(self, max_bytes: int, cost_bytes: Callable[[V], int]) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._cost_bytes = cost_bytes
        self._entries: OrderedDict[bytes, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> V | None:
        """None: it is not kept."""
        value = self._entries.get(key)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return value

    def put(self, key: bytes, value: V) -> None:
        """Keep it, unless it is kept already or takes more than there is room for."""
        cost = self._cost_bytes(value)
        if key in self._entries or cost > self.max_bytes:
            return
        self._entries[key] = value
        self.size_bytes += cost
        while self.size_bytes > self.max_bytes:
            self.size_bytes -= self._cost_bytes(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        self._entries.clear()
        self.size_bytes = 0

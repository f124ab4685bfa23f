"""Whole prompts that the engine rendered, kept by the digest of the request."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from policies.prefix import Tokens
from policies.types import Section

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 400  # the key, the objects and the dictionary's own share


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the scheduler takes it; see ``policies.types.Request``."""

    tokens: Tokens
    first_user_end: int
    turns: int
    sections: tuple[Section, ...] = ()


class TokenCache:
    """The prompts used last that the engine rendered, by digest, bounded in bytes."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[bytes, Encoded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Encoded | None:
        encoded = self._entries.get(key)
        if encoded is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return encoded

    def put(self, key: bytes, encoded: Encoded) -> None:
        if key in self._entries or _cost_bytes(encoded) > self.max_bytes:
            return
        self._entries[key] = encoded
        self.size_bytes += _cost_bytes(encoded)
        while self.size_bytes > self.max_bytes:
            self.size_bytes -= _cost_bytes(self._entries.popitem(last=False)[1])


def _cost_bytes(encoded: Encoded) -> int:
    """What an entry holds: 4 bytes an id, a digest object for each block of 256, sections."""
    packed = len(encoded.tokens.packed)
    return packed + packed // 1024 * 57 + 100 * len(encoded.sections) + _ENTRY_BYTES

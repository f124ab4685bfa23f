"""Whole prompts that the engine rendered, kept by the digest of the request."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.policies.prefix import Tokens
from slotwise.policies.types import Section
from slotwise.proxy.tokens.recently_used import RecentlyUsed

DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 400  # the key, the objects and the dictionary's own share


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the scheduler takes it; see ``slotwise.policies.types.Request``."""

    tokens: Tokens
    first_user_end: int
    turns: int
    sections: tuple[Section, ...] = ()


class TokenCache(RecentlyUsed[Encoded]):
    """The prompts used last that the engine rendered, by digest, bounded in bytes."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        super().__init__(max_bytes, _cost_bytes)


def _cost_bytes(encoded: Encoded) -> int:
    """What an entry holds: 4 bytes an id, a digest object for each block of 256, sections."""
    packed = len(encoded.tokens.packed)
    return packed + packed // 1024 * 57 + 100 * len(encoded.sections) + _ENTRY_BYTES

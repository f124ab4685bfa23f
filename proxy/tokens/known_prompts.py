"""What is kept of prompts seen before: segments by content, and whole prompts as trails.

A prompt that goes on from a known one costs only what is new; one that is put together anew from
known segments costs hashing them. Both are bounded in bytes.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from slotwise.policies.prefix import Tokens
from slotwise.proxy.tokens.prefix_tree import PrefixTree
from slotwise.proxy.tokens.recently_used import RecentlyUsed

DEFAULT_SEGMENT_BYTES = 64 * 2**20
DEFAULT_TRAIL_BYTES = 64 * 2**20
_ENTRY_BYTES = 150  # a key, an entry and their objects, besides the contents
_MOST_TRAILS = 256


class SegmentCache(RecentlyUsed[bytes]):
    """Packed ids of segments by content, those used last, within ``max_bytes``."""

    def __init__(self, max_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        super().__init__(max_bytes, lambda packed: len(packed) + _ENTRY_BYTES)


def content_key(salt: bytes, segment: str) -> bytes:
    """What a segment is kept under. ``salt``: names the tokenizer, at most 64 bytes."""
    content = segment.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16, key=salt).digest()


@dataclass(frozen=True, slots=True)
class Mapped:
    """A text, its tokens, and the places where both meet: its begin, and the end of each piece."""

    text: str
    ends: list[int]  # characters; ends[0] == 0
    positions: list[int]  # tokens before that place; the first: what the engine puts in front
    cuts: list[int]  # indices into ``ends``: the pieces ending there are special tokens
    tokens: Tokens
    places: dict[int, int] = field(default_factory=dict)  # inside pieces: characters -> tokens

    @property
    def stable(self) -> int:
        """Index of the last end that stays one however the text goes on.

        The last piece, unless it is a special token, may go on in the next prompt.
        """
        last = len(self.ends) - 1
        return last if self.cuts and self.cuts[-1] == last else last - 1


@dataclass(frozen=True, slots=True)
class Trail:
    """A known prompt up to the last place where it is cut whatever follows."""

    chars: int  # of the prompt's text up to there
    ends: list[int]
    positions: list[int]
    cuts: list[int]
    tokens: Tokens  # of the whole prompt; shared with whoever asked
    places: dict[int, int]  # inside pieces of the head: characters -> tokens
    size_bytes: int


class Trails:
    """The prompts seen last, within ``max_bytes``.

    A prompt that goes on from one takes its place: that one's segments are still kept.
    """

    def __init__(self, max_bytes: int = DEFAULT_TRAIL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._trails: OrderedDict[int, tuple[bytes, Trail]] = OrderedDict()
        self._heads: dict[bytes, PrefixTree[int]] = {}  # by owner: text -> number
        self._next = 0

    def __len__(self) -> int:
        return len(self._trails)

    def longest(self, salt: bytes, text: str) -> tuple[int, Trail] | None:
        """The longest one with which this text begins, and its number."""
        heads = self._heads.get(salt)
        number = heads.longest(text) if heads is not None else None
        if number is None:
            return None
        self._trails.move_to_end(number)
        return number, self._trails[number][1]

    def put(self, salt: bytes, mapped: Mapped, instead_of: int | None) -> None:
        last = mapped.stable
        if last < 1 or len(mapped.text) > self.max_bytes:
            return
        head = mapped.text[: mapped.ends[last]]
        trail = Trail(
            chars=len(head),
            ends=mapped.ends[: last + 1],
            positions=mapped.positions[: last + 1],
            cuts=mapped.cuts,
            tokens=mapped.tokens,
            places=mapped.places,
            size_bytes=sys.getsizeof(head)
            + len(mapped.tokens.packed) * 17 // 16
            + 100 * len(mapped.ends)
            + _ENTRY_BYTES,
        )
        if instead_of is not None:
            self._drop(instead_of)
        same = self._heads.setdefault(salt, PrefixTree()).put(head, self._next)
        if same is not None:
            self._drop(same)
        self._trails[self._next] = salt, trail
        self._next += 1
        self.size_bytes += trail.size_bytes
        while self.size_bytes > self.max_bytes or len(self._trails) > _MOST_TRAILS:
            self._drop(next(iter(self._trails)))

    def clear(self) -> None:
        self._trails.clear()
        self._heads.clear()
        self.size_bytes = 0

    def _drop(self, number: int) -> None:
        dropped = self._trails.pop(number, None)
        if dropped is None:
            return
        salt, trail = dropped
        self.size_bytes -= trail.size_bytes
        heads = self._heads[salt]
        heads.drop(number)
        if not len(heads):
            del self._heads[salt]

"""A rendered prompt -> its tokens, and where each of its parts ends in them; new text alone costs.

Three things are kept: whole prompts (one that goes on from another pays for what is new), segments
by content (a prompt put together anew from known parts pays for hashing them), and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

from slotwise.policies.prefix import Tokens, lcp
from slotwise.proxy.tokens.encoders import Encoder
from slotwise.proxy.tokens.segments import Piece, Segmenter

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


DEFAULT_SEGMENT_BYTES = 64 * 2**20
DEFAULT_TRAIL_BYTES = 64 * 2**20
_ENTRY_BYTES = 150  # a key, an entry and their objects, besides the contents
_MOST_TRAILS = 256
_END_CHARS = 4096  # compared first: prompts that share a long head differ near their ends


class SegmentCache(RecentlyUsed[bytes]):
    """Packed ids of segments by content, those used last, within ``max_bytes``."""

    def __init__(self, max_bytes: int = DEFAULT_SEGMENT_BYTES) -> None:
        super().__init__(max_bytes, lambda packed: len(packed) + _ENTRY_BYTES)


def content_key(salt: bytes, segment: str) -> bytes:
    """What a segment is kept under. ``salt``: names the tokenizer, at most 64 bytes."""
    content = segment.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16, key=salt).digest()


@dataclass(frozen=True, slots=True)
class TokenizedText:
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
class KnownPrompt:
    """A known prompt up to the last place where it is cut whatever follows."""

    chars: int  # of the prompt's text up to there
    ends: list[int]
    positions: list[int]
    cuts: list[int]
    tokens: Tokens  # of the whole prompt; shared with whoever asked
    places: dict[int, int]  # inside pieces of the head: characters -> tokens
    size_bytes: int


class _Kept(NamedTuple):
    """A trail, whose it is, and the text it stands for."""

    salt: bytes
    head: str
    trail: KnownPrompt


class KnownPrompts:
    """The prompts seen last, within ``max_bytes``.

    A prompt that goes on from one takes its place: that one's segments are still kept.
    """

    def __init__(self, max_bytes: int = DEFAULT_TRAIL_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, salt: bytes, text: str) -> tuple[int, KnownPrompt] | None:
        """The longest one with which this text begins, and its number."""
        number, chars = None, 0
        for candidate, kept in self._kept.items():
            n = kept.trail.chars
            if not chars < n <= len(text) or kept.salt != salt:
                continue
            if text.startswith(kept.head[-_END_CHARS:], max(0, n - _END_CHARS)) and text.startswith(
                kept.head
            ):
                number, chars = candidate, n
        if number is None:
            return None
        self._kept.move_to_end(number)
        return number, self._kept[number].trail

    def put(self, salt: bytes, mapped: TokenizedText, instead_of: int | None) -> None:
        last = mapped.stable
        if last < 1 or len(mapped.text) > self.max_bytes:
            return
        head = mapped.text[: mapped.ends[last]]
        trail = KnownPrompt(
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
        same = self.longest(salt, head)
        if same is not None and same[1].chars == len(head):
            self._drop(same[0])
        self._kept[self._next] = _Kept(salt, head, trail)
        self._next += 1
        self.size_bytes += trail.size_bytes
        while self.size_bytes > self.max_bytes or len(self._kept) > _MOST_TRAILS:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, number: int) -> None:
        dropped = self._kept.pop(number, None)
        if dropped is not None:
            self.size_bytes -= dropped.trail.size_bytes


OFF_LOOP_CHARS = 256 * 1024
"""A text longer than this, new, is cut in a thread, so that other streams keep flowing."""

_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class Edges:
    """What the engine puts before and behind every prompt; packed ids."""

    before: bytes = b""
    behind: bytes = b""


class PromptEncoder:
    """For one tokenizer, named by ``salt`` in the caches that all share."""

    def __init__(
        self,
        encoder: Encoder,
        cuts: Segmenter,
        edges: Edges,
        salt: bytes,
        segments: SegmentCache,
        trails: KnownPrompts,
    ) -> None:
        self.cuts = cuts
        self._encoder = encoder
        self._edges = edges
        self._salt = salt
        self._segments = segments
        self._trails = trails
        self._special = {i: array("I", (i,)).tobytes() for i in cuts.clean.values()}

    async def encode(self, text: str, *, whole: bool = True) -> TokenizedText:
        """``whole``: a prompt, with what the engine adds at its edges; else a part of one."""
        known = self._trails.longest(self._salt, text) if whole else None
        trail = known[1] if known else None
        start = trail.chars if trail else 0
        big = len(text) - start > OFF_LOOP_CHARS
        if big:
            pieces, keys = await asyncio.to_thread(self._cut, text, start)
        else:
            pieces, keys = self._cut(text, start)
        packed = await self._packed([piece for piece, _ in pieces], keys)
        if big:
            mapped = await asyncio.to_thread(self._joined, text, trail, pieces, packed, whole)
        else:
            mapped = self._joined(text, trail, pieces, packed, whole)
        if whole and (trail is None or pieces):
            self._trails.put(self._salt, mapped, known[0] if known else None)
        return mapped

    async def positions(self, mapped: TokenizedText, places: Sequence[int]) -> list[int]:
        """The tokens before each of these places (characters): those that end there or before.

        Inside a segment: as many tokens as its begin, encoded alone, shares with it.
        """
        inside: dict[int, tuple[int, str]] = {}
        for place in places:
            i = bisect_left(mapped.ends, place)
            between = 0 < i < len(mapped.ends) and mapped.ends[i] != place
            if between and place not in mapped.places:
                inside[place] = i, mapped.text[mapped.ends[i - 1] : place]
        begins = [begin for _, begin in inside.values()]
        keys = [content_key(self._salt, begin) for begin in begins]
        packed = await self._packed(begins, keys) if begins else []
        found = dict(mapped.places)
        for (place, (i, _)), ids in zip(inside.items(), packed, strict=True):
            first, last = mapped.positions[i - 1], mapped.positions[i]
            piece = mapped.tokens.packed[first * _ID_BYTES : last * _ID_BYTES]
            found[place] = first + lcp(Tokens(piece), Tokens(ids))
            if i <= mapped.stable:  # it will be asked for again when the prompt goes on
                mapped.places[place] = found[place]
        return [self._position(mapped, place, found) for place in places]

    @staticmethod
    def _position(mapped: TokenizedText, place: int, inside: Mapping[int, int]) -> int:
        if place >= mapped.ends[-1]:
            return len(mapped.tokens)
        if place in inside:
            return inside[place]
        return mapped.positions[bisect_left(mapped.ends, place)]

    def _cut(self, text: str, start: int) -> tuple[list[tuple[Piece, int]], list[bytes]]:
        pieces = list(self.cuts.pieces(text, start))
        return pieces, [
            b"" if isinstance(piece, int) else content_key(self._salt, piece) for piece, _ in pieces
        ]

    async def _packed(self, pieces: Sequence[Piece], keys: Sequence[bytes]) -> list[bytes]:
        """Packed ids of each piece; those not known are encoded in one go."""
        packed: list[bytes | None] = [
            self._special[piece] if isinstance(piece, int) else self._segments.get(key)
            for piece, key in zip(pieces, keys, strict=True)
        ]
        missing = {
            key: piece
            for piece, key, known in zip(pieces, keys, packed, strict=True)
            if known is None and isinstance(piece, str)
        }
        if not missing:
            return [known for known in packed if known is not None]
        encoded = await self._encoder.encode(list(missing.values()))
        new = dict(zip(missing, encoded, strict=True))
        for key, ids in new.items():
            self._segments.put(key, ids)
        return [new[key] if ids is None else ids for ids, key in zip(packed, keys, strict=True)]

    def _joined(
        self,
        text: str,
        trail: KnownPrompt | None,
        pieces: Sequence[tuple[Piece, int]],
        packed: Sequence[bytes],
        whole: bool,
    ) -> TokenizedText:
        before = self._edges.before if whole else b""
        behind = self._edges.behind if whole else b""
        ends = list(trail.ends) if trail else [0]
        positions = list(trail.positions) if trail else [len(before) // _ID_BYTES]
        cuts = list(trail.cuts) if trail else []
        known = positions[-1]
        for (piece, end), ids in zip(pieces, packed, strict=True):
            if isinstance(piece, int):
                cuts.append(len(ends))
            ends.append(end)
            positions.append(positions[-1] + len(ids) // _ID_BYTES)
        tail = b"".join((*packed, behind))
        tokens = trail.tokens.grown(known, tail) if trail else Tokens(before + tail)
        places = dict(trail.places) if trail else {}
        return TokenizedText(text, ends, positions, cuts, tokens, places)

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
from typing import Generic, TypeVar

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
DEFAULT_PROMPT_BYTES = 64 * 2**20
_ENTRY_BYTES = 150  # a key, an entry and their objects, besides the contents
_MOST_PROMPTS = 256
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
    """A prompt up to the last place where it is cut whatever follows."""

    salt: bytes  # names the tokenizer
    head: str  # the prompt's text up to there
    ends: list[int]
    positions: list[int]
    cuts: list[int]
    tokens: Tokens  # of the whole prompt; shared with whoever asked
    places: dict[int, int]  # inside pieces of the head: characters -> tokens
    size_bytes: int


class KnownPrompts:
    """The prompts seen last, within ``max_bytes``.

    A prompt that goes on from one takes its place: that one's segments are still kept.
    """

    def __init__(self, max_bytes: int = DEFAULT_PROMPT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._kept: OrderedDict[int, KnownPrompt] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, salt: bytes, text: str) -> tuple[int, KnownPrompt] | None:
        """The longest one with which this text begins, and its number."""
        number, chars = None, 0
        for candidate, kept in self._kept.items():
            n = len(kept.head)
            if not chars < n <= len(text) or kept.salt != salt:
                continue
            if text.startswith(kept.head[-_END_CHARS:], max(0, n - _END_CHARS)) and text.startswith(
                kept.head
            ):
                number, chars = candidate, n
        if number is None:
            return None
        self._kept.move_to_end(number)
        return number, self._kept[number]

    def put(self, salt: bytes, tokenized: TokenizedText, instead_of: int | None) -> None:
        last = tokenized.stable
        if last < 1 or len(tokenized.text) > self.max_bytes:
            return
        head = tokenized.text[: tokenized.ends[last]]
        prompt = KnownPrompt(
            salt=salt,
            head=head,
            ends=tokenized.ends[: last + 1],
            positions=tokenized.positions[: last + 1],
            cuts=tokenized.cuts,
            tokens=tokenized.tokens,
            places=tokenized.places,
            size_bytes=sys.getsizeof(head)
            + len(tokenized.tokens.packed) * 17 // 16
            + 100 * len(tokenized.ends)
            + _ENTRY_BYTES,
        )
        if instead_of is not None:
            self._drop(instead_of)
        same = self.longest(salt, head)
        if same is not None and same[1].head == head:
            self._drop(same[0])
        self._kept[self._next] = prompt
        self._next += 1
        self.size_bytes += prompt.size_bytes
        while self.size_bytes > self.max_bytes or len(self._kept) > _MOST_PROMPTS:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, number: int) -> None:
        dropped = self._kept.pop(number, None)
        if dropped is not None:
            self.size_bytes -= dropped.size_bytes


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
        segmenter: Segmenter,
        edges: Edges,
        salt: bytes,
        segments: SegmentCache,
        known_prompts: KnownPrompts,
    ) -> None:
        self.segmenter = segmenter
        self._encoder = encoder
        self._edges = edges
        self._salt = salt
        self._segments = segments
        self._known_prompts = known_prompts
        self._special = {i: array("I", (i,)).tobytes() for i in segmenter.clean.values()}

    async def encode(self, text: str, *, whole: bool = True) -> TokenizedText:
        """``whole``: a prompt, with what the engine adds at its edges; else a part of one."""
        found = self._known_prompts.longest(self._salt, text) if whole else None
        number, known = found or (None, None)
        start = len(known.head) if known else 0
        big = len(text) - start > OFF_LOOP_CHARS
        if big:
            pieces, keys = await asyncio.to_thread(self._cut, text, start)
        else:
            pieces, keys = self._cut(text, start)
        packed = await self._packed([piece for piece, _ in pieces], keys)
        if big:
            tokenized = await asyncio.to_thread(self._joined, text, known, pieces, packed, whole)
        else:
            tokenized = self._joined(text, known, pieces, packed, whole)
        if whole and (known is None or pieces):
            self._known_prompts.put(self._salt, tokenized, number)
        return tokenized

    async def positions(self, tokenized: TokenizedText, places: Sequence[int]) -> list[int]:
        """The tokens before each of these places (characters): those that end there or before.

        Inside a segment: as many tokens as its begin, encoded alone, shares with it.
        """
        inside: dict[int, tuple[int, str]] = {}
        for place in places:
            i = bisect_left(tokenized.ends, place)
            between = 0 < i < len(tokenized.ends) and tokenized.ends[i] != place
            if between and place not in tokenized.places:
                inside[place] = i, tokenized.text[tokenized.ends[i - 1] : place]
        begins = [begin for _, begin in inside.values()]
        keys = [content_key(self._salt, begin) for begin in begins]
        packed = await self._packed(begins, keys) if begins else []
        found = dict(tokenized.places)
        for (place, (i, _)), ids in zip(inside.items(), packed, strict=True):
            first, last = tokenized.positions[i - 1], tokenized.positions[i]
            piece = tokenized.tokens.packed[first * _ID_BYTES : last * _ID_BYTES]
            found[place] = first + lcp(Tokens(piece), Tokens(ids))
            if i <= tokenized.stable:  # it will be asked for again when the prompt goes on
                tokenized.places[place] = found[place]
        return [self._position(tokenized, place, found) for place in places]

    @staticmethod
    def _position(tokenized: TokenizedText, place: int, inside: Mapping[int, int]) -> int:
        if place >= tokenized.ends[-1]:
            return len(tokenized.tokens)
        if place in inside:
            return inside[place]
        return tokenized.positions[bisect_left(tokenized.ends, place)]

    def _cut(self, text: str, start: int) -> tuple[list[tuple[Piece, int]], list[bytes]]:
        pieces = list(self.segmenter.pieces(text, start))
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
        known: KnownPrompt | None,
        pieces: Sequence[tuple[Piece, int]],
        packed: Sequence[bytes],
        whole: bool,
    ) -> TokenizedText:
        before = self._edges.before if whole else b""
        behind = self._edges.behind if whole else b""
        ends = list(known.ends) if known else [0]
        positions = list(known.positions) if known else [len(before) // _ID_BYTES]
        cuts = list(known.cuts) if known else []
        start = positions[-1]
        for (piece, end), ids in zip(pieces, packed, strict=True):
            if isinstance(piece, int):
                cuts.append(len(ends))
            ends.append(end)
            positions.append(positions[-1] + len(ids) // _ID_BYTES)
        tail = b"".join((*packed, behind))
        tokens = known.tokens.grown(start, tail) if known else Tokens(before + tail)
        places = dict(known.places) if known else {}
        return TokenizedText(text, ends, positions, cuts, tokens, places)

"""A rendered prompt -> its tokens, and where each of its parts ends in them; new text alone costs.

Three things are kept: whole prompts (one that goes on from another pays for what is new), segments
by content (a prompt put together anew from known parts pays for hashing them), and nothing else.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slotwise.policies.prefix import Tokens, lcp
from slotwise.proxy.tokens.encoders import Encoder
from slotwise.proxy.tokens.known_prompts import Mapped, SegmentCache, Trail, Trails, content_key
from slotwise.proxy.tokens.segments import Cuts, Piece

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
        cuts: Cuts,
        edges: Edges,
        salt: bytes,
        segments: SegmentCache,
        trails: Trails,
    ) -> None:
        self.cuts = cuts
        self._encoder = encoder
        self._edges = edges
        self._salt = salt
        self._segments = segments
        self._trails = trails
        self._special = {i: array("I", (i,)).tobytes() for i in cuts.clean.values()}

    async def encode(self, text: str, *, whole: bool = True) -> Mapped:
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

    async def positions(self, mapped: Mapped, places: Sequence[int]) -> list[int]:
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
    def _position(mapped: Mapped, place: int, inside: Mapping[int, int]) -> int:
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
        trail: Trail | None,
        pieces: Sequence[tuple[Piece, int]],
        packed: Sequence[bytes],
        whole: bool,
    ) -> Mapped:
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
        return Mapped(text, ends, positions, cuts, tokens, places)

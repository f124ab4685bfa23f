"""Longest common prefix of two prompts, in time that hardly depends on their length.

A prompt is a row of token ids, packed as little-endian 32-bit integers. Beside the ids a chain of
digests is kept, one per block of 256 tokens, each over the block and the digest before it, hence
over everything up to the end of its block. Two prompts share their first ``k`` blocks exactly when
their ``k``-th digests are equal, so a binary search over the digests finds the block in which they
part, and one big-integer XOR finds the token. The digests cost one pass when the prompt is made,
and only its new blocks where it goes on from a known one; every comparison after that takes
microseconds, for 60 tokens and for 60,000.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from hashlib import blake2b

BLOCK_TOKENS = 256
_ID_BYTES = 4
_BLOCK_BYTES = BLOCK_TOKENS * _ID_BYTES
_DIGEST_BYTES = 16
_XOR_BYTES = 128


class Tokens:
    """An immutable row of token ids (32-bit, unsigned), made for fast prefix comparison."""

    __slots__ = ("_chain", "_packed", "length")

    def __init__(self, packed: bytes, _chain: tuple[bytes, ...] | None = None) -> None:
        """Wrap ids that are packed already, 4 little-endian bytes each (see :func:`pack`)."""
        if len(packed) % _ID_BYTES:
            raise ValueError(f"packed ids take 4 bytes each, got {len(packed)} bytes")
        self._packed = packed
        self.length = len(packed) // _ID_BYTES
        """As ``len`` tells, for what is asked of every slot at every decision."""
        self._chain = _digest_chain(packed) if _chain is None else _chain

    @property
    def packed(self) -> bytes:
        return self._packed

    def __len__(self) -> int:
        return self.length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    def __repr__(self) -> str:
        return f"<Tokens n={len(self)}>"

    def ids(self) -> list[int]:
        """The token ids as a list."""
        ids = array("I")
        ids.frombytes(self._packed)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids.tolist()

    def first(self, n: int) -> Tokens:
        """The first ``n`` ids; the digests of whole blocks are shared, not computed again."""
        if n >= len(self):
            return self
        return Tokens(self._packed[: n * _ID_BYTES], self._chain[: n // BLOCK_TOKENS])

    def grown(self, n: int, packed_tail: bytes) -> Tokens:
        """The first ``n`` ids of this prompt, then others; only the blocks behind are digested.

        ``n``: at most the length; ``packed_tail``: 4 little-endian bytes an id.
        """
        if not 0 <= n <= len(self):
            raise ValueError(f"n: expected 0 to {len(self)}, got {n}")
        # Joined from a view: a slice would copy a long prompt once more.
        packed = b"".join((memoryview(self._packed)[: n * _ID_BYTES], packed_tail))
        known = self._chain[: n // BLOCK_TOKENS]
        return Tokens(packed, known + _digest_chain(packed, known))


def pack(ids: Iterable[int]) -> Tokens:
    """Pack token ids; raises ``OverflowError`` for an id outside 0..2**32-1."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return Tokens(packed.tobytes())


def lcp(a: Tokens, b: Tokens, guess: int = 0) -> int:
    """Length in tokens of the longest common prefix of ``a`` and ``b``.

    ``guess``: what it may well be, for speed: prompts of one client share the same head.
    """
    if a is b:
        return len(a)
    if guess and _part_at(a, b, guess):
        return guess
    blocks = _equal_blocks(a._chain, b._chain, guess // BLOCK_TOKENS)
    start = blocks * _BLOCK_BYTES
    return blocks * BLOCK_TOKENS + _lcp_within(
        a._packed[start : start + _BLOCK_BYTES], b._packed[start : start + _BLOCK_BYTES]
    )


def _part_at(a: Tokens, b: Tokens, n: int) -> bool:
    """Whether the first ``n`` ids are equal and the next ones, which both have, are not."""
    blocks = n // BLOCK_TOKENS
    if n >= min(a.length, b.length) or (blocks and a._chain[blocks - 1] != b._chain[blocks - 1]):
        return False
    start, end = blocks * _BLOCK_BYTES, n * _ID_BYTES
    behind = end + _ID_BYTES
    x, y = a._packed[start:behind], b._packed[start:behind]
    return x != y and x[: end - start] == y[: end - start]


def _digest_chain(packed: bytes, known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """For every whole block behind ``known`` the digest of all ids up to its end."""
    chain = []
    last = known[-1] if known else b""
    begin = len(known) * _BLOCK_BYTES
    for start in range(begin, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        block = packed[start : start + _BLOCK_BYTES]
        last = blake2b(last + block, digest_size=_DIGEST_BYTES).digest()
        chain.append(last)
    return tuple(chain)


def _equal_blocks(a: tuple[bytes, ...], b: tuple[bytes, ...], guess: int) -> int:
    """How many leading blocks are equal: equality of chained digests is monotone, so bisect."""
    low, high = 0, min(len(a), len(b))
    if high and a[high - 1] == b[high - 1]:
        return high  # the usual case: one goes on where the other ends
    if 0 < guess < high:
        if a[guess - 1] != b[guess - 1]:
            high = guess - 1
        elif a[guess] != b[guess]:
            return guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high + 1) // 2
        if a[middle - 1] == b[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _lcp_within(a: bytes, b: bytes) -> int:
    """The same for two rows of at most one block, by the lowest bit in which they differ."""
    start, length = 0, min(len(a), len(b))
    while length > _XOR_BYTES:  # halves of whole ids: an XOR of the rest is cheap
        half = length // (2 * _ID_BYTES) * _ID_BYTES
        if a[start : start + half] == b[start : start + half]:
            start += half
            length -= half
        else:
            length = half
    end = start + length
    difference = int.from_bytes(a[start:end], "little") ^ int.from_bytes(b[start:end], "little")
    if not difference:
        return end // _ID_BYTES
    lowest_bit = (difference & -difference).bit_length() - 1
    return start // _ID_BYTES + lowest_bit // (8 * _ID_BYTES)


EMPTY = Tokens(b"")

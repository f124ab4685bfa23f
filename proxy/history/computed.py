"""What was ever computed, bounded: prefixes by their digests, and each conversation's last prompt.

A prompt is cut into blocks of 64 tokens, and each block is known by a digest over everything up to
its end; the last one may be shorter, so that a prompt that comes again is recognised to its end. A
record of digests holds no text and about 150 bytes a block. What was used least recently goes
first, and of one prompt the end before the beginning: so whatever is on record is there with all
that comes before it, and the longest known prefix is found by bisection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from slotwise.policies.prefix import Tokens
from slotwise.policies.types import Request

BLOCK_TOKENS = 64
DEFAULT_MOST = 262_144  # blocks: 16.8 million tokens, about 40 MB
_BLOCK_BYTES = BLOCK_TOKENS * 4
_DIGEST_BYTES = 16
_DIGEST_COST_BYTES = 64  # a digest as an object in a list
_OWN_LANE = ("side", "summary")  # kinds whose prompts are no turn of the conversation

Chain = Sequence[bytes]  # one digest per block of a prompt


def chain(profile: str, tokens: Tokens, known: Chain = ()) -> list[bytes]:
    """The digests of a prompt's blocks; two models never share one.

    ``known``: those of its first blocks, from another prompt of the profile that begins alike.
    """
    packed = tokens.packed
    digests = list(known)
    last = digests[-1] if digests else profile.encode()
    for start in range(len(digests) * _BLOCK_BYTES, len(packed), _BLOCK_BYTES):
        block = packed[start : start + _BLOCK_BYTES]
        last = blake2b(last + block, digest_size=_DIGEST_BYTES).digest()
        digests.append(last)
    return digests


class Blocks:
    """At most ``most`` blocks, each with the id of the request that last computed or used it."""

    def __init__(self, most: int = DEFAULT_MOST) -> None:
        self._most = most
        self._owners: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def longest(self, digests: Chain, n: int) -> tuple[int, str | None]:
        """The longest prefix on record of a prompt of ``n`` tokens, and by whom; 0 and None."""
        low, high = 0, len(digests)
        while low < high:
            middle = (low + high + 1) // 2
            if digests[middle - 1] in self._owners:
                low = middle
            else:
                high = middle - 1
        return (min(low * BLOCK_TOKENS, n), self._owners[digests[low - 1]]) if low else (0, None)

    def add(self, digests: Chain, n: int, computed: int, owner: str) -> None:
        """``owner`` computed the first ``computed`` of ``n`` tokens; whole blocks of that count."""
        whole = len(digests) if computed >= n else computed // BLOCK_TOKENS
        for digest in reversed(digests[:whole]):  # the beginning last: it goes last, too
            self._owners[digest] = owner
            self._owners.move_to_end(digest)
        while len(self._owners) > self._most:
            self._owners.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The last prompt of a conversation."""

    id: str
    tokens: Tokens
    digests: Chain
    computed: int
    answer: int  # generated tokens kept behind it

    @property
    def cost_bytes(self) -> int:
        return len(self.tokens.packed) + _DIGEST_COST_BYTES * len(self.digests)


class ComputedPrompts:
    """The last prompt of each conversation; the least recently used go first."""

    def __init__(self, keep_bytes: int) -> None:
        self.kept_bytes = 0
        self._keep_bytes = keep_bytes
        self._last: OrderedDict[tuple[str, str, str], Prompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def last(self, request: Request) -> Prompt | None:
        """The one before this request in its session. None: the first, or the session is unknown.

        Of its own lane, else of another: by its shape a conversation's first turn may look like a
        side job, and what a summary is made of are the turns before it.
        """
        if not request.session:
            return None
        lanes = (_lane(request), *(_lane(request, kind) for kind in ("", *_OWN_LANE)))
        return next((found for lane in lanes if (found := self._last.get(lane))), None)

    def keep(self, request: Request, prompt: Prompt) -> None:
        if not request.session:
            return
        lane = _lane(request)
        if (old := self._last.pop(lane, None)) is not None:
            self.kept_bytes -= old.cost_bytes
        self._last[lane] = prompt
        self.kept_bytes += prompt.cost_bytes
        while self.kept_bytes > self._keep_bytes:
            _, oldest = self._last.popitem(last=False)
            self.kept_bytes -= oldest.cost_bytes


def _lane(request: Request, kind: str | None = None) -> tuple[str, str, str]:
    """A title or a summary made for a conversation is not its next turn."""
    kind = request.kind if kind is None else kind
    return request.profile, request.session, kind if kind in _OWN_LANE else ""

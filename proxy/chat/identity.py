"""Which conversation is this: a table of those that are live.

A client's own id is a hint, never the answer: title jobs and sub-agents carry the id of the main
conversation, some ids change with every request, some never do. So a hint counts only together
with the first turn and the system text, and the chain of turns decides where there is none:

* A request belongs to the conversation whose turns it repeats, and goes on from there.
* It still belongs there if it stops earlier (an answer is made again), parts late (a turn was
  edited), or if turns in the middle changed (old tool results were cleared): at least half of the
  earlier turns are shared, and what the assistant said before the first other turn is the same.
  Turns that a conversation was *born* with prove nothing: few-shot examples, a common "hi".
* Two conversations with the same beginning are one until they part, and two from then on. One that
  was taken for an edit becomes one of its own as soon as the line it left goes on as well.
* Another system text or another set of tools makes another conversation while only one turn is
  shared; after that a system text may change a good deal (retrieved notes, a git status).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal

from slotwise.proxy.chat.turns import Asked, TurnReader

Basis = Literal["hint", "turns", "new"]

MAX_SESSIONS = 4096
MAX_DIGESTS = 1_000_000
"""Of messages and turns, 8 bytes each, of all sessions together."""
EXPIRE_S = 1800.0

FRONT = -1
"""``changed_at`` where the tools or a separate system field changed: they precede message 0."""

# How much of the system text must be common, numbers and dates aside:
_LIKE_ALONE = 0.9  # where a single turn is all there is
_LIKE_AT_FIRST = 0.7  # where it goes on from a single turn
_LIKE_LATER = 0.3  # where more are shared; a summary job's prompt shares nothing
_SHARED_ENOUGH = 2  # turns that weigh more than another hint
_CANDIDATES = 32  # looked at per index: a thousand chats may begin with the same word


@dataclass(frozen=True, slots=True)
class Session:
    """The conversation of one request."""

    id: str  # 16 hex digits, opaque; "": unknown, the tokens decide
    basis: Basis
    turns_seen: int  # requests of it with other turns than the one before, this one included
    changed_at: int | None  # first message that differs from what it sent before; FRONT; None


UNKNOWN = Session("", "new", 0, None)


@dataclass(eq=False, slots=True)
class _Known:
    id: str
    key: str
    asked: Asked
    tip: int
    born: int  # turns of its first request
    turns_seen: int = 1
    hint: int = 0
    hint_seen: int = 0  # requests in a row that brought it
    left: int = 0  # tip of the line it last parted from
    last_used: float = 0.0  # s

    def size(self) -> int:
        return len(self.asked.messages) + 2 * len(self.asked.turns)


@dataclass
class _Index:
    """Conversations by some mark of theirs, the last used last."""

    buckets: dict[Hashable, dict[_Known, None]] = field(default_factory=dict)

    def add(self, mark: Hashable, known: _Known) -> None:
        self.buckets.setdefault(mark, {})[known] = None

    def drop(self, mark: Hashable, known: _Known) -> None:
        bucket = self.buckets.get(mark, {})
        bucket.pop(known, None)
        if not bucket:
            self.buckets.pop(mark, None)

    def latest(self, mark: Hashable) -> Iterator[_Known]:
        return islice(reversed(self.buckets.get(mark, {})), _CANDIDATES)


class SessionTable:
    """The live conversations; bounded in number, in size and in age.

    ``salt`` makes ids differ between processes. Reading a request (:attr:`reader`) may be done in
    a thread; :meth:`find` belongs to one thread and takes microseconds.
    """

    def __init__(
        self,
        max_sessions: int = MAX_SESSIONS,
        expire_s: float = EXPIRE_S,
        max_digests: int = MAX_DIGESTS,
        salt: bytes = b"",
    ) -> None:
        self.reader = TurnReader()
        self._max_sessions = max_sessions
        self._max_digests = max_digests
        self._expire_s = expire_s
        self._salt = salt[:16]
        self._known: dict[str, _Known] = {}  # the least recently used first
        self._by_hint, self._by_tip, self._by_first = _Index(), _Index(), _Index()
        self._digests = 0
        self._begun = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def digests(self) -> int:
        """Digests remembered, 8 bytes each."""
        return self._digests

    def identify(
        self, headers: Mapping[str, str], body: Mapping[str, Any], key: str, now: float
    ) -> Session:
        """Read and find in one go. ``headers`` by lower-case name; ``now`` in seconds."""
        return self.find(self.reader.read(headers, body), key, now)

    def find(self, asked: Asked, key: str, now: float) -> Session:
        """The conversation of ``key`` that this request goes on with, else a new one."""
        self._forget(now)
        if not asked.turns and not asked.hint:
            return UNKNOWN
        chain = _chain(asked.turns)
        known = self._match(asked, key, chain)
        if known is None:
            return self._begin(asked, key, now, chain)
        basis: Basis = "hint" if asked.hint and known.hint == asked.hint else "turns"
        changed_at = _changed_at(known.asked, asked)
        self._update(known, asked, now, chain)
        return Session(known.id, basis, known.turns_seen, changed_at)

    def _match(self, asked: Asked, key: str, chain: list[int]) -> _Known | None:
        best, best_score = None, (False, False, 0, False, 0.0)
        for known in self._candidates(asked, key, chain):
            hinted = bool(asked.hint) and known.hint == asked.hint
            shared = shared_turns(known.asked, asked, known.born, hinted)
            if not shared or known.left in chain[:-1]:
                continue
            rivals = asked.hint and known.hint_seen >= 2 and not hinted
            if rivals and shared < _SHARED_ENOUGH:
                continue
            whole = shared == len(known.asked.turns)
            likeness = known.asked.head.likeness(asked.head)
            score = (hinted, likeness >= _LIKE_ALONE, shared, whole, likeness)
            if score > best_score:
                best, best_score = known, score
        return best

    def _candidates(self, asked: Asked, key: str, chain: list[int]) -> Iterable[_Known]:
        """By hint, by all of its turns (the most first), by the first turn; each one once."""
        found: dict[_Known, None] = {}
        if asked.hint:
            found.update(dict.fromkeys(self._by_hint.latest((key, asked.hint))))
        if chain:
            whole = (known for tip in reversed(chain) for known in self._by_tip.latest((key, tip)))
            found.update(dict.fromkeys(islice(whole, _CANDIDATES)))
            found.update(dict.fromkeys(self._by_first.latest((key, chain[0]))))
        return found

    def _begin(self, asked: Asked, key: str, now: float, chain: list[int]) -> Session:
        self._begun += 1
        seed = f"{self._begun}/{key}/{chain[-1] if chain else asked.hint}"
        id = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8, key=self._salt)
        known = _Known(id.hexdigest(), key, asked, 0, born=len(asked.turns), last_used=now)
        self._insert(known, asked, chain)
        self._forget(now)
        return Session(known.id, "new", 1, None)

    def _update(self, known: _Known, asked: Asked, now: float, chain: list[int]) -> None:
        self._remove(known)
        if known.tip not in chain and (not chain or chain[-1] not in _chain(known.asked.turns)):
            known.left = known.tip
        known.turns_seen += asked.turns != known.asked.turns
        known.last_used = now
        self._insert(known, asked, chain)
        self._forget(now)

    def _insert(self, known: _Known, asked: Asked, chain: list[int]) -> None:
        if asked.hint:
            known.hint_seen = known.hint_seen + 1 if known.hint == asked.hint else 1
            known.hint = asked.hint
        known.asked = asked
        known.tip = chain[-1] if chain else 0
        self._known[known.id] = known
        self._digests += known.size()
        for index, mark in self._marks(known):
            index.add(mark, known)

    def _remove(self, known: _Known) -> None:
        del self._known[known.id]
        self._digests -= known.size()
        for index, mark in self._marks(known):
            index.drop(mark, known)

    def _marks(self, known: _Known) -> Iterator[tuple[_Index, Hashable]]:
        if known.hint:
            yield self._by_hint, (known.key, known.hint)
        if known.asked.turns:
            yield self._by_tip, (known.key, known.tip)
            yield self._by_first, (known.key, _chain(known.asked.turns[:1])[0])

    def _forget(self, now: float) -> None:
        """What expired, and the least recently used beyond the bounds; the newest stays."""
        while self._known:
            oldest = next(iter(self._known.values()))
            over = len(self._known) > self._max_sessions or self._digests > self._max_digests
            expired = now - oldest.last_used > self._expire_s
            if not expired and (not over or len(self._known) == 1):
                return
            self._remove(oldest)


def shared_turns(old: Asked, new: Asked, born: int, hinted: bool) -> int:
    """How many turns ``new`` shares with the conversation that sent ``old``; 0: another one.

    ``born``: turns of that conversation's first request. ``hinted``: both bring the same id.
    """
    if not old.turns and not new.turns:
        return int(hinted)  # raw prompts have nothing but their hint
    agree = [a == b for a, b in zip(old.turns, new.turns, strict=False)]
    if not agree or not agree[0]:
        return 0
    shared, both = sum(agree), len(agree)
    if not _kin(old, new, shared):
        return 0
    parting = agree.index(False) if shared < both else both
    if not hinted and _contradict(old, new, parting):
        return 0
    half = 2 * shared >= len(old.turns)
    if parting == both:  # one goes on where the other ends
        on = len(new.turns) >= len(old.turns)
        return shared if on or hinted or (half and both > born) else 0
    if old.said[parting] != new.said[parting]:
        return 0  # another answer went before: both lines go on
    if hinted:
        return shared if parting >= born else 0
    middle_changed = agree[-1]
    return shared if half and (middle_changed or parting > born) else 0


def _kin(old: Asked, new: Asked, shared: int) -> bool:
    """Whether what stands before the turns may belong to one conversation."""
    if shared >= _SHARED_ENOUGH:
        return old.head.likeness(new.head) >= _LIKE_LATER
    needed = _LIKE_ALONE if len(new.turns) == 1 else _LIKE_AT_FIRST
    return old.head.same_tools(new.head) and old.head.likeness(new.head) >= needed


def _contradict(old: Asked, new: Asked, parting: int) -> bool:
    """Whether most of the answers between the shared turns are others."""
    pairs = list(zip(old.said[1:parting], new.said[1:parting], strict=True))
    return 2 * sum(a != b for a, b in pairs) > len(pairs)


def _changed_at(old: Asked, new: Asked) -> int | None:
    if old.front != new.front:
        return FRONT
    pairs = zip(old.messages, new.messages, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), None)


def _chain(turns: Iterable[int]) -> list[int]:
    """For each turn a digest of all turns up to it."""
    chain, before = [], 0
    for turn in turns:
        link = before.to_bytes(8, "big") + turn.to_bytes(8, "big")
        before = int.from_bytes(blake2b(link, digest_size=8).digest(), "big")
        chain.append(before)
    return chain

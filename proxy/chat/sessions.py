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

import heapq
import marshal
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any, Literal
from zlib import crc32

from slotwise.proxy.chat.wire import dicts, hint_of, leading_system, texts, tool_names

MAX_MESSAGES = 10_000
"""Messages of one request that are looked at; what lies beyond does not tell who it is."""

_HEAD_CHARS = 4000  # of the system text
_OPENING_CHARS = 200
_SKETCH = 64  # word pairs kept of it
_GIANT_CHARS = 200_000  # a text that is never worked on in one piece: it holds up every thread
_DEPTH = 4  # message, content, part, image: as deep as marks for caching and media stand
_MEDIA = ("image_url", "image", "input_audio", "document", "file", "source")
# What aider puts before, between and behind the turns of its user; the repository map and the
# files are made anew for each message, the examples are the same in every conversation.
_AIDER = (
    "Change get_factorial() to use math.factorial",
    "Refactor hello() into its own file.",
    "I switched to a new code base. Please don't consider the above files",
    "Here are summaries of some files present in my git repo",
    "I am working with you on code in a git repository. Here are summaries",
    "Here are some READ ONLY files, provided for your reference.",
    "I have *added these files to the chat*",
    "I am not sharing any files",
    "I am not sharing the full contents of any files",
    "Don't try and edit any existing code without asking me",
)
_VARYING = re.compile(
    r"\d+(?:st|nd|rd|th)?"
    r"|\b(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}day|mon|tues?|wed|thu(?:rs?)?|fri|sat|sun"
    r"|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|[ap]\.?m)\b"
)
"""Numbers and the words of dates and times."""


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the first turn, made so that a clock or an order does not change it."""

    opening: frozenset[int]  # word pairs of the system text's first lines, which say who speaks
    words: frozenset[int]  # a sample of those of its head
    tools: frozenset[str]  # names

    def likeness(self, other: Head) -> float:
        """How much of the system texts is common: 0 (nothing) to 1 (all, or none has any).

        The opening must be alike as well: agents of one project share pages of notes below it.
        """
        whole = _jaccard(self.words, other.words, _SKETCH)
        return min(whole, _jaccard(self.opening, other.opening, _SKETCH))

    def same_tools(self, other: Head) -> bool:
        """Whether at least half of all their tools are common."""
        return _jaccard(self.tools, other.tools, None) >= 0.5


@dataclass(frozen=True, slots=True)
class RequestDigest:
    """One request, reduced to 64-bit digests."""

    hint: int  # of the id the client sent, and of the field it came in; 0: none
    turns: array[int]  # user and tool turns, canonical; empty: a raw prompt
    said: array[int]  # beside each turn, what the assistant said before it; 0: nothing
    head: Head
    front: int  # tools and separate system field, exactly
    messages: array[int]  # exactly


class TurnReader:
    """Reads requests; remembers the canonical form of about ``remembered`` messages.

    ``read`` may run in several threads at once: each touch of the memory is one dict operation.
    """

    def __init__(self, remembered: int = 40_000) -> None:
        self._generation = max(1, remembered // 2)
        self._young: dict[int, _Said] = {}
        self._old: dict[int, _Said] = {}

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> RequestDigest:
        """``headers`` by lower-case name, ``body`` as parsed; any shape of body is taken."""
        messages = dicts(body.get("messages"))[:MAX_MESSAGES]
        exact = array("Q", (_digest(_plain(message)) for message in messages))
        turns, said = self._turns(messages, exact)
        if not turns and exact:
            turns, said = exact, array("Q", bytes(8 * len(exact)))  # nothing but system text
        hint = hint_of(headers, body)
        return RequestDigest(
            hint=_digest(list(hint)) if hint else 0,
            turns=turns,
            said=said,
            head=_head(body),
            front=_digest([body.get("tools"), body.get("system")]),
            messages=exact,
        )

    def _turns(
        self, messages: list[dict[str, Any]], exact: array[int]
    ) -> tuple[array[int], array[int]]:
        turns, said, answer = array("Q"), array("Q"), 0
        framed = False  # within what the client adds, answers included
        for message, key in zip(messages, exact, strict=True):
            spoken = self._spoken(message, key)
            framed = framed or spoken.frame
            if spoken.answer and not framed:
                answer = _digest([answer, spoken.answer]) if answer else spoken.answer
            for turn in spoken.turns:
                turns.append(turn)
                said.append(answer)
                answer, framed = 0, False
        return turns, said

    def _spoken(self, message: dict[str, Any], key: int) -> _Said:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key) or _read_message(message)
            if len(self._young) >= self._generation:
                self._old, self._young = self._young, {}
            self._young[key] = found
        return found

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


def _head(body: Mapping[str, Any]) -> Head:
    system = leading_system(body, _HEAD_CHARS)
    return Head(_sketch(system[:_OPENING_CHARS]), _sketch(system), frozenset(tool_names(body)))


@dataclass(frozen=True, slots=True)
class _Said:
    turns: tuple[int, ...] = ()
    answer: int = 0
    frame: bool = False  # the client's own: aider's files and examples


def _read_message(message: dict[str, Any]) -> _Said:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        turns = tuple(_user_turns(content))
        return _Said(turns, frame=not turns and _words(content).startswith(_AIDER))
    if role in ("tool", "function"):
        return _Said((_tool_turn(content),))
    if role == "assistant":
        return _Said(answer=_answer(message))
    return _Said()


def _user_turns(content: Any) -> Iterator[int]:
    """A message of Anthropic's shape holds the results of several tools beside the user's text."""
    media = []
    for part in dicts(content):
        if part.get("type") == "tool_result":
            yield _tool_turn(part.get("content"))
        else:
            media += [part[name] for name in _MEDIA if name in part]
    words = _words(content)
    if (words or media) and not words.startswith(_AIDER):
        yield _digest(["user", words, media])


def _words(content: Any) -> str:
    return " ".join(word for word in map(own_words, texts(content)) if word)


def _tool_turn(content: Any) -> int:
    media = [part[name] for part in dicts(content) for name in _MEDIA if name in part]
    return _digest(["tool", _squeeze(" ".join(texts(content))), media])


def own_words(text: str) -> str:
    """What the user typed of a text: without reminders and retrieved context that clients add."""
    text = _without(text, "<system-reminder>", "</system-reminder>")
    if text.startswith("### Task:") and "</context>" in text:  # Open WebUI's retrieval template
        asked = text.rpartition("</context>")[2]
        text = asked.replace("<user_query>", "").replace("</user_query>", "")
    return _squeeze(text)


def _without(text: str, opening: str, closing: str) -> str:
    """The text without the blocks between two marks, in one pass; an open end stays."""
    kept, at = [], 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start)
        if end < 0:
            break
        kept.append(text[at:start])
        at = end + len(closing)
    return "".join([*kept, text[at:]]) if kept else text[at:]


def _answer(message: dict[str, Any]) -> int:
    """Text and tool calls of an answer; never its reasoning, which clients drop, empty or add."""
    content = message.get("content")
    said = [_squeeze(text.rpartition("</think>")[2], gap="") for text in texts(content)]
    uses = (part for part in dicts(content) if part.get("type") == "tool_use")
    said += [f"{use.get('name')}{_digest(use.get('input')):x}" for use in uses]
    for call in dicts(message.get("tool_calls")):
        function = call.get("function")
        if isinstance(function, dict):
            arguments = function.get("arguments")
            plain = _squeeze(arguments, gap="") if isinstance(arguments, str) else arguments
            said.append(f"{function.get('name')}{_digest(plain):x}")
    said = [text for text in said if text]
    return _digest(said) if said else 0


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """One text part reads like a string; clients change the form to mark it for caching."""
    content = message.get("content")
    only = list(texts(content)) if isinstance(content, list) and len(content) == 1 else []
    return {**message, "content": only[0]} if only else message


def _squeeze(text: str, gap: str = " ") -> str:
    """White space made alike, except in a giant text."""
    return gap.join(text.split()) if len(text) <= _GIANT_CHARS else text.strip()


@lru_cache(maxsize=1024)
def _sketch(text: str) -> frozenset[int]:
    """A bounded sample of the word pairs: equal but for numbers and dates is (nearly) equal."""
    words = _VARYING.sub("", text.lower()).split()
    pairs = {crc32(f"{a} {b}".encode("utf-8", "surrogatepass")) for a, b in pairwise(["", *words])}
    return frozenset(heapq.nsmallest(_SKETCH, pairs))


def _jaccard(a: frozenset[Any], b: frozenset[Any], sample: int | None) -> float:
    """Common over all; of two samples of smallest values, over the smallest of all."""
    if a == b:
        return 1.0
    either = a | b if sample is None else heapq.nsmallest(sample, a | b)
    return sum(item in a and item in b for item in either) / len(either)


def _digest(value: Any) -> int:
    """64 bits of JSON data. Marshal's first format: equal data, equal bytes, at C's speed."""
    data = marshal.dumps(_read_part(value, _DEPTH), 0)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _read_part(value: Any, depth: int) -> Any:
    """What a model reads of it: no nulls, no marks for caching (they move with every call).

    Only so deep as those stand. A giant text is replaced by its digest, made slice by slice.
    """
    if isinstance(value, str):
        return value if len(value) <= _GIANT_CHARS else _giant(value)
    if depth == 0:
        return value
    if isinstance(value, list):
        return [_read_part(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {
            # Most are short texts, which are taken as they are.
            name: inner
            if type(inner) is str and len(inner) <= _GIANT_CHARS
            else _read_part(inner, depth - 1)
            for name, inner in value.items()
            if inner is not None and name != "cache_control"
        }
    return value


def _giant(text: str) -> bytes:
    hasher = blake2b(digest_size=16)
    for at in range(0, len(text), _GIANT_CHARS):
        hasher.update(text[at : at + _GIANT_CHARS].encode("utf-8", "surrogatepass"))
    return hasher.digest()


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
    asked: RequestDigest
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

    def find(self, asked: RequestDigest, key: str, now: float) -> Session:
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

    def _match(self, asked: RequestDigest, key: str, chain: list[int]) -> _Known | None:
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

    def _candidates(self, asked: RequestDigest, key: str, chain: list[int]) -> Iterable[_Known]:
        """By hint, by all of its turns (the most first), by the first turn; each one once."""
        found: dict[_Known, None] = {}
        if asked.hint:
            found.update(dict.fromkeys(self._by_hint.latest((key, asked.hint))))
        if chain:
            whole = (known for tip in reversed(chain) for known in self._by_tip.latest((key, tip)))
            found.update(dict.fromkeys(islice(whole, _CANDIDATES)))
            found.update(dict.fromkeys(self._by_first.latest((key, chain[0]))))
        return found

    def _begin(self, asked: RequestDigest, key: str, now: float, chain: list[int]) -> Session:
        self._begun += 1
        seed = f"{self._begun}/{key}/{chain[-1] if chain else asked.hint}"
        id = blake2b(seed.encode("utf-8", "surrogatepass"), digest_size=8, key=self._salt)
        known = _Known(id.hexdigest(), key, asked, 0, born=len(asked.turns), last_used=now)
        self._insert(known, asked, chain)
        self._forget(now)
        return Session(known.id, "new", 1, None)

    def _update(self, known: _Known, asked: RequestDigest, now: float, chain: list[int]) -> None:
        self._remove(known)
        if known.tip not in chain and (not chain or chain[-1] not in _chain(known.asked.turns)):
            known.left = known.tip
        known.turns_seen += asked.turns != known.asked.turns
        known.last_used = now
        self._insert(known, asked, chain)
        self._forget(now)

    def _insert(self, known: _Known, asked: RequestDigest, chain: list[int]) -> None:
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


def shared_turns(old: RequestDigest, new: RequestDigest, born: int, hinted: bool) -> int:
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


def _kin(old: RequestDigest, new: RequestDigest, shared: int) -> bool:
    """Whether what stands before the turns may belong to one conversation."""
    if shared >= _SHARED_ENOUGH:
        return old.head.likeness(new.head) >= _LIKE_LATER
    needed = _LIKE_ALONE if len(new.turns) == 1 else _LIKE_AT_FIRST
    return old.head.same_tools(new.head) and old.head.likeness(new.head) >= needed


def _contradict(old: RequestDigest, new: RequestDigest, parting: int) -> bool:
    """Whether most of the answers between the shared turns are others."""
    pairs = list(zip(old.said[1:parting], new.said[1:parting], strict=True))
    return 2 * sum(a != b for a, b in pairs) > len(pairs)


def _changed_at(old: RequestDigest, new: RequestDigest) -> int | None:
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

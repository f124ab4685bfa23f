"""What of a request tells its conversation: a hint, the turns, the answers, and the head.

Prompts change where no conversation changes: a clock in the system text, a checksum in a billing
line, tools in another order, reasoning dropped from an old answer, reminders that move from one
message to the next. So a request is reduced to digests of what its *user* and its *tools* said,
in a canonical form; what the assistant said between them (reasoning aside) stands beside it as a
second opinion. Deriving the canonical form is remembered by a message's digest, so that a long
history costs one hash over its text and only new messages cost more.
"""

from __future__ import annotations

import heapq
import marshal
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any
from zlib import crc32

from slotwise.proxy.chat.shapes import dicts, hint_of, leading_system, texts, tool_names

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
class Asked:
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

    def read(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> Asked:
        """``headers`` by lower-case name, ``body`` as parsed; any shape of body is taken."""
        messages = dicts(body.get("messages"))[:MAX_MESSAGES]
        exact = array("Q", (_digest(_plain(message)) for message in messages))
        turns, said = self._turns(messages, exact)
        if not turns and exact:
            turns, said = exact, array("Q", bytes(8 * len(exact)))  # nothing but system text
        hint = hint_of(headers, body)
        return Asked(
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

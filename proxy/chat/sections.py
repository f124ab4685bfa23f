"""Which part of a prompt is what: the tools, the system text, each message.

A template may put anything around the messages, so the text itself is asked: each message's content
is looked for in order, and between two of them the border is the special token that ends a turn in
this prompt (whatever it is called; the one that follows the contents). What is not found as it was
sent, because the template rewrites it, falls into a section ``template``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_SHORT_CHARS = 24  # shorter contents may stand anywhere by chance: a special token must be near
_HEADER_CHARS = 64  # between the token that opens a turn and its content
_TRIES = 20
_BEGIN_CHARS = 100
_SAMPLE = 20  # messages that show how turns end
_MOST_MISSES = 8  # contents not found, after which the rest is not looked for
_SYSTEM = ("system", "developer")
_NAMES = {"system": "system", "developer": "system", "assistant": "assistant"}
_NAMES |= {"user": "user", "tool": "tool", "function": "tool"}


class Part(NamedTuple):
    """A section in characters; see ``slotwise.policies.types.Section``."""

    name: str
    message: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a prompt in order, covering it."""

    parts: list[Part]
    first_user_end: int | None  # characters; None: not certain from the text alone


class _Found(NamedTuple):
    message: int
    begin: int
    end: int


# Turns of models whose template writes what their vocabulary does not know as special tokens.
# Each is looked for only where the text in it that is quickly found occurs at all.
_MARKERS = {
    "<|": re.compile(r"<\|[a-z_]{2,24}\|>"),
    "_of_turn>": re.compile(r"</?(?:start|end)_of_turn>"),
    "INST]": re.compile(r"\[/?INST\]"),
    "</s>": re.compile(r"</s>"),
}


def markers(text: str) -> list[tuple[int, int]]:
    """Spans of what looks like the special tokens of a chat template, in order."""
    searches = [search for part, search in _MARKERS.items() if part in text]
    return sorted(match.span() for search in searches for match in search.finditer(text))


class Specials:
    """The special tokens in a text: where they begin and end, in order."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self.begins = [begin for begin, _ in spans]
        self.ends = [end for _, end in spans]

    def next(self, place: int) -> int:
        """Index of the first that begins at ``place`` or behind it."""
        return bisect_left(self.begins, place)

    def near_before(self, place: int) -> bool:
        i = bisect_left(self.ends, place + 1) - 1
        return i >= 0 and place - self.ends[i] <= _HEADER_CHARS

    def right_after(self, text: str, place: int) -> int | None:
        """Index of the one that follows, white space between; None: other text, or none."""
        i = self.next(place)
        if i < len(self.begins) and not text[place : min(self.begins[i], place + 99)].strip():
            return i
        return None


def layout(
    text: str,
    specials: Specials,
    messages: Sequence[Mapping[str, Any]],
    tool_names: Sequence[str] = (),
) -> Layout:
    """Cut a rendered prompt by what its messages hold."""
    found = _contents(text, specials, messages)
    turn_end = _turn_end(text, specials, found, messages)
    parts: list[Part] = []
    others = [f for f in found if f.message or messages[0]["role"] not in _SYSTEM]
    if not others:
        return Layout([Part("template", -1, len(text))], None)
    system = found[0] if found[0] is not others[0] else None
    begin = system.end if system else 0
    borders = _borders(text, specials, turn_end, begin, others[0].begin)
    head_end = borders[-1] if borders else begin
    opening = specials.next(others[0].begin) - 1
    if not borders and tool_names and system is None and opening >= 0:
        head_end = specials.begins[opening]
    parts += _head(text, head_end, system, tool_names)
    first_user = next((i for i, m in enumerate(messages) if m["role"] == "user"), -1)
    first_user_end = None
    for here, after in zip(others, [*others[1:], None], strict=True):
        limit, following = (after.begin, after.message) if after else (len(text), len(messages))
        borders = _borders(text, specials, turn_end, here.end, limit)
        if here.message == first_user and borders:
            first_user_end = borders[-1 if following == here.message + 1 else 0]
        parts += _turns(here, borders, messages[here.message : following])
    parts.append(Part("template", -1, len(text)))
    return Layout(_merged(parts), first_user_end)


def _turns(
    here: _Found, borders: Sequence[int], messages: Sequence[Mapping[str, Any]]
) -> list[Part]:
    """The message that was found and those behind it that were not, by the turns that end."""
    name = _NAMES.get(messages[0]["role"], "template")
    if len(messages) == 1 or not borders:
        return [Part(name, here.message, borders[-1] if borders else here.end)]
    if len(borders) == len(messages):
        names = [_NAMES.get(message["role"], "template") for message in messages]
        numbered = enumerate(zip(names, borders, strict=True), start=here.message)
        return [Part(name, i, end) for i, (name, end) in numbered]
    return [Part(name, here.message, borders[0]), Part("template", -1, borders[-1])]


def _head(text: str, end: int, system: _Found | None, tool_names: Sequence[str]) -> list[Part]:
    """What stands before the first turn: system text and tools, in either order."""
    begin = system.end if system else 0
    behind = any(text.find(name, begin, end) >= 0 for name in tool_names)
    before = any(text.find(name, 0, system.begin if system else 0) >= 0 for name in tool_names)
    if system is None:
        return [Part("tools" if behind else "template", -1, end)]
    if before:
        return [Part("tools", -1, system.begin), Part("system", 0, end)]
    if behind:
        return [Part("system", 0, system.end), Part("tools", -1, end)]
    return [Part("system", 0, end)]


def _merged(parts: list[Part]) -> list[Part]:
    """Without empty ones."""
    kept: list[Part] = []
    last = 0
    for part in parts:
        if part.end > last:
            kept.append(part)
            last = part.end
    return kept


def _contents(text: str, specials: Specials, messages: Sequence[Mapping[str, Any]]) -> list[_Found]:
    found: list[_Found] = []
    place = misses = 0
    for i, message in enumerate(messages):
        span = _message(text, specials, message, place)
        if span is not None:
            place = span[1]
            found.append(_Found(i, *span))
        elif message.get("content"):
            misses += 1
            if misses > _MOST_MISSES:
                break
    return found


def _message(
    text: str, specials: Specials, message: Mapping[str, Any], place: int
) -> tuple[int, int] | None:
    """Where a message's texts stand, from the first to the last; None: not as they were sent."""
    begin = None
    for content in _texts(message.get("content")):
        at = _search(text, specials, content, place)
        if at is None:
            return None
        begin = at[0] if begin is None else begin
        place = at[1]
    return None if begin is None else (begin, place)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content and not content.isspace() else []
    if not isinstance(content, list):
        return []
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _search(text: str, specials: Specials, content: str, place: int) -> tuple[int, int] | None:
    for wanted in _spellings(content):
        if len(wanted) > _SHORT_CHARS:
            at = _long(text, wanted, place)
            if at >= 0:
                return at, at + len(wanted)
            continue
        at = text.find(wanted, place)
        for _ in range(_TRIES):
            if at < 0:
                break
            end = at + len(wanted)
            if specials.near_before(at) and (
                specials.right_after(text, end) is not None
                or (len(wanted) > 3 and text[at - 1 : at] == "\n")
            ):
                return at, end
            at = text.find(wanted, at + 1)
    return None


def _spellings(content: str) -> Iterator[str]:
    """As it was sent; then as templates trim it, made only where it is looked for."""
    yield content
    bare = content.strip()
    if len(bare) < len(content):
        yield bare


def _long(text: str, wanted: str, place: int) -> int:
    """Where a long text stands, by its begin first: that is nearly always the right place."""
    at = text.find(wanted[:_BEGIN_CHARS], place)
    if at < 0 or text.startswith(wanted, at):
        return at
    return text.find(wanted, at + 1)


def _turn_end(
    text: str,
    specials: Specials,
    found: Sequence[_Found],
    messages: Sequence[Mapping[str, Any]],
) -> frozenset[str]:
    """The special tokens that follow the contents: how turns end in this prompt."""
    seen: Counter[tuple[str, str]] = Counter()
    for f in found[:_SAMPLE]:
        role = messages[f.message]["role"]
        i = specials.right_after(text, f.end)
        if i is not None and not messages[f.message].get("tool_calls"):
            seen[role, text[specials.begins[i] : specials.ends[i]]] += 1
    best = {role: token for (role, token), _ in reversed(seen.most_common())}
    if "user" in best:  # a content may end with a special token of its own; users' do so least
        return frozenset((best["user"], best.get("assistant", best["user"])))
    return frozenset(best.values())


def _borders(
    text: str, specials: Specials, turn_end: frozenset[str], begin: int, end: int
) -> list[int]:
    """Behind each end of a turn between two places.

    White space up to the token that opens the next turn goes with the turn before.
    """
    stop = specials.next(end)
    borders = []
    for i in range(specials.next(begin), stop):
        place = specials.ends[i]
        if text[specials.begins[i] : place] in turn_end:
            following = specials.right_after(text, place)
            opened = following is not None and following < stop
            borders.append(specials.begins[i + 1] if opened else place)
    return borders

"""Small changes that make equal prompts of prompts that differ in what no reader needs.

Only system texts before the first turn and the list of tools are ever touched: never a user's or
an assistant's words. Each part has a switch; only ``billing_header`` is on by default, because the
line it levels is for an invoice. Nothing is changed in place: what changes is copied along its
path, all else is shared with the body that came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from slotwise.proxy.chat.wire import BILLING_LINE, dicts, tool_name

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Normalize:
    """Which parts are on."""

    billing_header: bool = True  # the checksum in Claude Code's first system line
    sort_tools: bool = False  # by name: some clients change their order on a reconnect
    clock: bool = False  # times in the system text are cut to the day


PARTS = tuple(f.name for f in fields(Normalize))


def from_mapping(given: Mapping[str, Any], path: str = "normalize") -> tuple[Normalize, list[str]]:
    """Switches from plain data; faults name the YAML path, the value and what was expected."""
    faults: list[str] = []
    accepted: dict[str, bool] = {}
    for name, value in given.items():
        if name not in PARTS:
            faults.append(f"{path}.{name}: unknown key, expected one of {', '.join(PARTS)}")
        elif not isinstance(value, bool):
            faults.append(f"{path}.{name}: expected true or false, got {value!r}")
        else:
            accepted[name] = value
    return Normalize(**accepted), faults


def normalize(body: Body, settings: Normalize) -> tuple[Body, tuple[str, ...]]:
    """The body for the engine and the names of the parts that changed it."""
    parts = {"billing_header": level_billing, "sort_tools": sort_tools, "clock": cut_clock}
    applied = []
    for name, part in parts.items():
        if getattr(settings, name):
            changed = part(body)
            if changed is not body:
                body = changed
                applied.append(name)
    return body, tuple(applied)


# ---------------------------------------------------------------- the billing line

_CHECKSUM = re.compile(r"\bcch=([0-9a-fA-F]+)")


def level_billing(body: Body) -> Body:
    """The checksum of the billing line becomes zeros, where the line is the first system text."""
    first = True

    def level(text: str) -> str:
        nonlocal first
        if not first or not text:
            return text
        first = False
        if not text.startswith(BILLING_LINE):
            return text
        line, newline, rest = text.partition("\n")
        return _CHECKSUM.sub(lambda m: "cch=" + "0" * len(m[1]), line) + newline + rest

    return _system_mapped(body, level)


# ---------------------------------------------------------------- the tools


def sort_tools(body: Body) -> Body:
    """Tools by name; several of one name by their content."""
    tools = body.get("tools")
    if not isinstance(tools, list) or len(dicts(tools)) != len(tools):
        return body
    ordered = sorted(tools, key=tool_name)
    names = [tool_name(tool) for tool in ordered]
    if len(set(names)) < len(names):
        ordered.sort(key=lambda tool: (tool_name(tool), json.dumps(tool, sort_keys=True)))
    return body if ordered == tools else {**body, "tools": ordered}


# ---------------------------------------------------------------- the clock

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE = re.compile(
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|{_MONTH}\.?[ ]{{1,2}}\d{{1,2}}(?:st|nd|rd|th)?(?:,?[ ]\d{{4}})?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?[ -]{_MONTH}\.?(?:,?[ -]\d{{4}})?)"
    r"(?P<joint>T|,?[ ](?:at[ ])?|,|_)\Z"
)
"""A date that ends where a time begins, and what joins them."""
_TIME = re.compile(
    r"(?<![A-Za-z0-9_:./-])(?:[01]?\d|2[0-3]):[0-5]\d(?P<seconds>:[0-5]\d(?:[.,]\d{1,9})?)?"
    r"(?!:?\d)(?P<half>[ ]?[AaPp]\.?[Mm]\b\.?)?"
    r"(?P<zone>[ ]?(?:Z\b|(?:UTC|GMT)(?:[+-]\d{1,2}(?::?\d\d)?)?\b|[A-Z]{2,4}T\b"
    # "09:00-12:00" is a span, so a bare minute takes no negative offset
    r"|(?(seconds)[+-]|[+])(?:0\d|1[0-4]):?\d\d\b))?"
)
_COMPACT = re.compile(r"\b(\d{8})T[0-2]\d[0-5]\d[0-5]\d(?:\.\d{1,9})?Z?\b")
_ISO = re.compile(r"\b(\d{4}-\d\d-\d\d)T(?=\d\d:\d\d)")
_ABOUT_TIME = re.compile(r"\b(?:time|clock|now|it is|it's)\b[^\n]{0,40}\Z", re.IGNORECASE)
_BEFORE_CHARS = 60
_MAX_TIMES = 1000  # of one text


def cut_clock(body: Body) -> Body:
    """Times in the system text are cut to the day: dropped behind a date, else ``--:--``.

    With seconds, a zone or AM/PM it is a time; a bare ``HH:MM`` is one only behind a date, or where
    the text before it speaks of time ("John 3:16" is none). Dates, and zones apart, stay.
    """
    return _system_mapped(body, _cut)


def _cut(text: str) -> str:
    if ":" not in text and "T" not in text:
        return text
    text = _ISO.sub(r"\1 ", _COMPACT.sub(r"\1", text)) if "T" in text else text
    kept: list[str] = []
    at = 0
    for match in islice(_TIME.finditer(text), _MAX_TIMES):
        before = text[max(at, match.start() - _BEFORE_CHARS) : match.start()]
        dated = _DATE.search(before)
        if dated is not None:
            kept.append(text[at : match.start() - len(dated["joint"])])
        elif match["seconds"] or match["half"] or match["zone"] or _ABOUT_TIME.search(before):
            kept += [text[at : match.start()], "--:--"]
        else:
            continue
        at = match.end()
    return "".join([*kept, text[at:]]) if kept else text


# ---------------------------------------------------------------- system texts


def _system_mapped(body: Body, change: Callable[[str], str]) -> Body:
    """The body with ``change`` applied to its system texts before the first turn, in order."""
    system = _content_mapped(body.get("system"), change)
    if system is not body.get("system"):
        body = {**body, "system": system}
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
            break
        content = _content_mapped(message.get("content"), change)
        if content is not message.get("content"):
            messages = [*messages[:i], {**message, "content": content}, *messages[i + 1 :]]
    return body if messages is body["messages"] else {**body, "messages": messages}


def _content_mapped(content: Any, change: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        changed = change(content)
        return content if changed == content else changed
    if not isinstance(content, list):
        return content
    parts = [_part_mapped(part, change) for part in content]
    same = all(a is b for a, b in zip(parts, content, strict=True))
    return content if same else parts


def _part_mapped(part: Any, change: Callable[[str], str]) -> Any:
    if not isinstance(part, dict) or part.get("type", "text") != "text":
        return part
    text = part.get("text")
    if not isinstance(text, str):
        return part
    changed = change(text)
    return part if changed == text else {**part, "text": changed}

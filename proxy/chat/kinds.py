"""What sort of request is this: told by the instructions of known clients, and by tools.

A side job (a title, tags, a commit message) comes between two turns of a conversation, is short,
and never comes back; a summary reads a whole conversation once. Both should not displace what
will be needed again. Only words prove a side job: a short question that is answered whole within a
few tokens may be a person's who speaks to a voice assistant.

Only bounded heads of texts are looked at, so a large body costs no more than a small one. A profile
may add patterns, which are asked before the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple

from slotwise.proxy.chat.wire import dicts, leading_system, texts

Kind = Literal["agent", "chat", "side", "summary", "count", "raw"]

HEAD_CHARS = 400
"""Of the system text and of a user's message: as far as patterns look."""

_NEAR = 8  # messages or parts from an end, among which the request itself is looked for

# Each begins with a plain text; behind it, an expression of what must follow.
_SIDE = (
    # Open WebUI: title, tags, follow-ups, search queries, image prompt, autocompletion, emoji.
    (
        "### Task:",
        r"\s+(?:Generate|Suggest|Analyze the chat history|You are an autocompletion system)",
    ),
    ("Your task is to reflect the speaker's likely facial expression", ""),
    # opencode: its title job has a system prompt and a first user message of its own.
    ("You are a title generator", r"\b"),
    ("Generate a title for this conversation", ""),
    # Claude Code: topic detection, titles, and its check that the model answers.
    ("Analyze if this message indicates a new conversation topic", ""),
    ("Please write a 5-10 word title", ""),
    ("Generate a concise, sentence-case title", ""),
    # Continue
    ("Given the following", r"[^\n]{0,80}please reply with a title for the chat"),
    # aider's commit message
    (
        "You are an expert software engineer that generates concise, one-line Git commit messages",
        "",
    ),
)
_SUMMARY = (
    ("*Briefly* summarize this partial conversation about programming", ""),  # aider
    ("You are a helpful AI assistant tasked with summarizing conversations", ""),  # two clients
    ("Summarize what was done in this conversation", ""),  # opencode
    ("Your task is to create a detailed summary of the conversation so far", ""),  # Claude Code
    ("You are an anchored context summarization assistant", ""),  # opencode
    ("You are performing a CONTEXT CHECKPOINT COMPACTION", ""),  # Codex
)


class Pattern(NamedTuple):
    """``part``: what every match holds, case folded: a search for plain text costs a hundredth of
    one by an expression that ignores case."""

    part: str
    expression: re.Pattern[str]


def _known(begins: Iterable[tuple[str, str]]) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(begin.casefold(), re.compile(re.escape(begin) + rest, re.IGNORECASE))
        for begin, rest in begins
    )


@dataclass(frozen=True, slots=True)
class Patterns:
    """Searched in heads; the profile's own before the known ones."""

    side: tuple[Pattern, ...] = field(default_factory=lambda: _known(_SIDE))
    summary: tuple[Pattern, ...] = field(default_factory=lambda: _known(_SUMMARY))


def from_mapping(given: Mapping[str, Any], path: str = "kinds") -> tuple[Patterns, list[str]]:
    """Patterns from ``{side: [...], summary: [...]}``; a fault names the pattern's path.

    Python's regular expressions, case ignored, anywhere in the first 400 characters of the system
    text or of the only user message (``summary``: the last one). Faulty patterns are left out, so
    that all faults come back at once.
    """
    faults: list[str] = []
    known = {"side": _SIDE, "summary": _SUMMARY}
    extra: dict[str, list[Pattern]] = {name: [] for name in known}
    for name, patterns in given.items():
        where = f"{path}.{name}"
        if name not in known:
            faults.append(f"{where}: unknown key, expected one of {', '.join(known)}")
        elif not isinstance(patterns, list):
            faults.append(f"{where}: expected a list of regular expressions, got {patterns!r}")
        else:
            for i, pattern in enumerate(patterns):
                _add(extra[name], pattern, f"{where}[{i}]", faults)
    built = {name: (*extra[name], *_known(own)) for name, own in known.items()}
    return Patterns(**built), faults


def _add(to: list[Pattern], pattern: Any, where: str, faults: list[str]) -> None:
    if not isinstance(pattern, str) or not pattern:
        faults.append(f"{where}: expected a regular expression, got {pattern!r}")
        return
    try:
        to.append(Pattern("", re.compile(pattern, re.IGNORECASE)))
    except (re.error, OverflowError, RecursionError) as error:
        faults.append(f"{where}: not a regular expression, {error}: {pattern!r}")


def kind_of(body: Mapping[str, Any], patterns: Patterns, path: str = "") -> Kind:
    """The kind of one request; ``path`` is the endpoint's, any shape of body is taken."""
    if path.endswith(("/count_tokens", "/input_tokens")):
        return "count"
    messages = dicts(body.get("messages"))
    if not messages:
        return "raw"
    system = leading_system(body, HEAD_CHARS)[:HEAD_CHARS]
    if _found(patterns.summary, [system, *_user_heads(reversed(messages[-_NEAR:]))]):
        return "summary"
    tools = bool(body.get("tools"))
    if not tools and _found(patterns.side, [system, *_only_user_heads(messages)]):
        return "side"
    return "agent" if tools or any(map(_uses_tools, messages)) else "chat"


def _only_user_heads(messages: list[dict[str, Any]]) -> list[str]:
    """Of what the user begins with, while nobody has answered yet: later words are no job."""
    if any(m.get("role") == "assistant" for m in messages):
        return []
    return _user_heads(messages[:_NEAR])


def _user_heads(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Of each text in the first user message there is."""
    for message in messages:
        if message.get("role") == "user":
            return [text[:HEAD_CHARS] for text in islice(texts(message.get("content")), _NEAR)]
    return []


def _found(patterns: Iterable[Pattern], heads: list[str]) -> bool:
    folded = "\n".join(heads).casefold()
    likely = [pattern.expression for pattern in patterns if pattern.part in folded]
    return bool(likely) and any(one.search(head) for one in likely for head in heads)


def _uses_tools(message: Mapping[str, Any]) -> bool:
    if message.get("role") in ("tool", "function") or message.get("tool_calls"):
        return True
    return any(part.get("type") in ("tool_use", "tool_result") for part in _few(message))


def _few(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return dicts(content[:_NEAR]) if isinstance(content, list) else []

"""Where things stand in a request's body, in the wire shapes of OpenAI and of Anthropic.

Readers only, for bodies that nobody has checked: what has another type than expected is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

BILLING_LINE = "x-anthropic-billing-header:"
"""How Claude Code begins its first system text; a checksum in it changes with every request."""

_HINT_CHARS = 512


def hint_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first id the client gives its conversation, as (where it stands, value)."""
    for source, value in _hints(headers, body):
        if isinstance(value, str) and value.strip():
            return source, value.strip()[:_HINT_CHARS]
    return None


def _hints(headers: Mapping[str, str], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    agent = headers.get("x-claude-code-agent-id", "")
    yield "affinity", headers.get("x-session-affinity") or headers.get("x-session-id")
    claude = headers.get("x-claude-code-session-id")
    yield "claude", claude and f"{claude}/{agent}"
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    session = user.partition("_session_")[2] if isinstance(user, str) else ""
    yield "claude", session and f"{session}/{agent}"
    yield "cache key", body.get("prompt_cache_key") or body.get("promptCacheKey")
    yield "open webui", headers.get("x-openwebui-chat-id")
    yield "codex", headers.get("session-id")


def system_texts(body: Mapping[str, Any]) -> Iterator[str]:
    """The system texts before the first turn, in order: the ``system`` field, then messages."""
    yield from texts(body.get("system"))
    for message in dicts(body.get("messages")):
        if message.get("role") not in ("system", "developer"):
            return
        yield from texts(message.get("content"))


def leading_system(body: Mapping[str, Any], chars: int) -> str:
    """About the first ``chars`` of the system text, the client's billing line aside."""
    found: list[str] = []
    left = chars
    for text in system_texts(body):
        if left <= 0:
            break
        if not found and text.startswith(BILLING_LINE):
            text = text[: left + _HINT_CHARS].partition("\n")[2]
        if text:
            found.append(text[:left])
            left -= len(text)
    return "\n".join(found)


def texts(content: Any) -> Iterator[str]:
    """The texts of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        yield content
        return
    for part in dicts(content):
        text = part.get("text")
        if part.get("type", "text") == "text" and isinstance(text, str):
            yield text


def tool_names(body: Mapping[str, Any]) -> list[str]:
    """Names of the tools offered, in their order; OpenAI's shape and Anthropic's."""
    return [tool_name(tool) for tool in dicts(body.get("tools"))]


def tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing else is one, whatever a client sends."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []

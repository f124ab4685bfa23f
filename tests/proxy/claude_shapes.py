"""Requests as Claude Code sends them, whose checksum, reminders and marks move by themselves.

It speaks ``/v1/messages``; behind a router the same comes as chat/completions.
"""

from __future__ import annotations

import json
from typing import Any

from tests.proxy.client_shapes import Message, Talk, Wire, tools

CLAUDE_TOOLS = ("Bash", "Edit", "Glob", "Grep", "Read", "Task", "Write")
CLAUDE_PROMPT = (
    "You are Claude Code, Anthropic's official CLI for Claude.\nYou are an interactive agent that "
    "helps users with software engineering tasks. Assist with defensive security tasks only. Keep "
    "answers short unless asked for detail; prefer editing existing files.\n"
)
CLAUDE_REMINDER = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n"
    "# claudeMd\nUse tabs. The todo list is {todo}.\n</system-reminder>\n"
)


def billing(cch: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.63.a43; cc_entrypoint=cli; cch={cch};"


def claude_code(
    said: Talk,
    cch: str = "00af1",
    session: str = "0b7e-44",
    agent: str = "",
    prompt: str = CLAUDE_PROMPT,
    reminder_at: int | None = None,
    header: bool = True,
) -> Wire:
    """On ``/v1/messages``. ``reminder_at``: the user message that carries the reminder now."""
    messages = _anthropic(said)
    if reminder_at is not None:
        users = [m for m in messages if m["role"] == "user"]
        reminder = {"type": "text", "text": CLAUDE_REMINDER.format(todo=f"at {reminder_at}")}
        users[reminder_at]["content"].insert(0, reminder)
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}  # moves with each call
    ephemeral = {"type": "ephemeral"}
    body = {
        "model": "claude-sonnet",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": billing(cch)},
            {"type": "text", "text": prompt, "cache_control": ephemeral},
        ],
        "messages": messages,
        "tools": [
            {"name": name, "description": f"{name} does it.", "input_schema": {"type": "object"}}
            for name in CLAUDE_TOOLS
        ],
        "metadata": {"user_id": f"user_9f_account_11-22_session_{session}"},
        "stream": True,
    }
    headers = {"user-agent": "claude-cli/2.1.63 (external, cli)", "x-app": "cli"}
    headers |= {"x-claude-code-session-id": session} if header else {}
    headers |= {"x-claude-code-agent-id": agent} if agent else {}
    return Wire(headers, body, "/v1/messages")


def claude_code_translated(
    said: Talk, cch: str = "00af1", prompt: str = CLAUDE_PROMPT, as_parts: bool = False
) -> Wire:
    """The same after a router made chat/completions of it: one system message, no ids."""
    system: Any = f"{billing(cch)}\n{prompt}"
    if as_parts:
        system = [{"type": "text", "text": text} for text in (billing(cch), prompt)]
    messages = [{"role": "system", "content": system}, *said]
    body = {"model": "local", "messages": messages, "tools": tools(*CLAUDE_TOOLS), "stream": True}
    return Wire({}, body | {"max_tokens": 32000})


def _anthropic(said: Talk) -> list[Message]:
    """OpenAI messages as Anthropic's: tool results are user messages, calls are blocks."""
    messages: list[Message] = []
    for m in said:
        if m["role"] == "tool":
            result = {"type": "tool_result", "tool_use_id": m["tool_call_id"]}
            messages.append({"role": "user", "content": [result | {"content": m["content"]}]})
            continue
        blocks: list[dict[str, Any]] = []
        if m["content"]:
            blocks.append({"type": "text", "text": m["content"]})
        for call in m.get("tool_calls", ()):
            given = json.loads(call["function"]["arguments"])
            use = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
            blocks.append(use | {"input": given})
        messages.append({"role": m["role"], "content": blocks})
    return messages

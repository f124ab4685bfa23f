"""Requests as the real clients send them, cut to what matters: headers, fields, order, noise.

A conversation is written once, as OpenAI messages (:func:`talk`, :func:`used`); each builder puts
it into its client's shape, with that client's system text and ids. Claude Code's are in
``claude_shapes``.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

Message = dict[str, Any]
Talk = list[Message]


class Wire(NamedTuple):
    """What reaches the proxy."""

    headers: dict[str, str]
    body: dict[str, Any]
    path: str = "/v1/chat/completions"


# ---------------------------------------------------------------- conversations


def talk(*texts: str) -> Talk:
    """User and assistant in turn, the user first."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


def used(tool: str, result: str, call: str = "call_1", **arguments: Any) -> Talk:
    """An assistant turn that uses a tool, and the tool's answer."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    asked = [{"id": call, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": asked},
        {"role": "tool", "tool_call_id": call, "content": result},
    ]


def tools(*names: str) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": f"The {name} tool: use it with care. " * 3,
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        }
        for name in names
    ]


# ---------------------------------------------------------------- opencode

OPENCODE_TOOLS = ("bash", "edit", "glob", "grep", "list", "read", "write")
OPENCODE_PROMPT = (
    "You are opencode, an interactive CLI tool that helps users with software engineering tasks. "
    "Use the instructions below and the tools available to you to assist the user. Be concise, "
    "direct, and to the point. Never create files unless they are needed. "
)
OPENCODE_TITLE = (
    "You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>\nGenerate "
    "a brief title that would help the user find this conversation later.\n</task>"
)


def opencode(
    said: Talk,
    session: str = "ses_5f2a",
    date: str = "Tue Feb 03 2026",
    offered: tuple[str, ...] = OPENCODE_TOOLS,
    parent: str = "",
    prompt: str = OPENCODE_PROMPT,
) -> Wire:
    env = f"<env>\n  Working directory: /src/app\n  Platform: linux\n  Today's date: {date}\n</env>"
    body = {
        "model": "local",
        "max_tokens": 32000,
        "messages": [{"role": "system", "content": f"{prompt}\n{env}"}, *said],
        "tools": tools(*offered),
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Wire(
        _opencode_headers(session) | ({"x-parent-session-id": parent} if parent else {}), body
    )


def opencode_title(first: str, session: str = "ses_5f2a") -> Wire:
    said = [
        {"role": "system", "content": OPENCODE_TITLE},
        {"role": "user", "content": "Generate a title for this conversation:\n"},
        {"role": "user", "content": first},
    ]
    body = {"model": "local", "max_tokens": 32000, "messages": said, "stream": True}
    return Wire(_opencode_headers(session), body)


def _opencode_headers(session: str) -> dict[str, str]:
    agent = {"user-agent": "opencode/1.3.0"}
    return agent | {"x-session-affinity": session, "x-session-id": session} if session else agent


# ---------------------------------------------------------------- Open WebUI

OPEN_WEBUI_TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
    "### Guidelines:\n- The title should clearly represent the main theme or subject of the "
    "conversation.\n### Output:\nJSON format\n### Chat History:\n<chat_history>\n"
)
OPEN_WEBUI_TAGS = (
    "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history, along "
    "with 1-3 more specific subtopic tags.\n\n### Chat History:\n<chat_history>\n"
)
OPEN_WEBUI_RAG = (
    "### Task:\nRespond to the user query using the provided context, incorporating inline "
    "citations in the format [id].\n\n<context>\n<source id='1'>{context}</source>\n</context>\n\n"
)


def open_webui(said: Talk, chat: str = "", system: str = "", context: str = "") -> Wire:
    """``context``: retrieved text, which stands before the last question and is not kept."""
    said = list(said)
    if context:
        asked = OPEN_WEBUI_RAG.format(context=context) + said[-1]["content"]
        said[-1] = {**said[-1], "content": asked}
    head = [{"role": "system", "content": system}] if system else []
    return Wire(_chat_id(chat), {"model": "local", "messages": [*head, *said], "stream": True})


def open_webui_title(said: Talk, chat: str = "") -> Wire:
    return _open_webui_task(OPEN_WEBUI_TITLE, said[-2:], chat, max_completion_tokens=1000)


def open_webui_tags(said: Talk, chat: str = "") -> Wire:
    return _open_webui_task(OPEN_WEBUI_TAGS, said[-6:], chat)


def _open_webui_task(task: str, said: Talk, chat: str, **fields: Any) -> Wire:
    lines = "\n".join(f"{m['role'].upper()}: {m['content']}" for m in said)
    asked = [{"role": "user", "content": f"{task}{lines}\n</chat_history>"}]
    return Wire(_chat_id(chat), {"model": "local", "messages": asked, "stream": False, **fields})


def _chat_id(chat: str) -> dict[str, str]:
    return {"x-openwebui-chat-id": chat, "x-openwebui-user-id": "u1"} if chat else {}


# ---------------------------------------------------------------- aider

AIDER_PROMPT = (
    "Act as an expert software developer.\nAlways use best practices when coding.\nRespect and use "
    "existing conventions, libraries, etc that are already present in the code base.\n"
)


def aider(done: Talk, asked: str, repo_map: str, files: str = "") -> Wire:
    """System, examples, repository map, what was said, the files, the question."""
    examples = talk(
        "Change get_factorial() to use math.factorial",
        "To make this change we need to modify mathweb/flask/app.py",
        "I switched to a new code base. Please don't consider the above files or try to edit them "
        "any longer.",
        "Ok.",
    )
    summaries = (
        "Here are summaries of some files present in my git repository.\nDo not propose changes "
        f"to these files, treat them as *read-only*.\n\n{repo_map}"
    )
    mapped = talk(summaries, "Ok, I won't try and edit those files without asking first.")
    shown = talk(
        f"I have *added these files to the chat* so you can go ahead and edit them.\n\n{files}",
        "Ok, any changes I propose will be to those files.",
    )
    system = [{"role": "system", "content": AIDER_PROMPT}]
    messages = [*system, *examples, *mapped, *done, *(shown if files else []), *talk(asked)]
    return Wire({}, {"model": "local", "messages": messages, "temperature": 0, "stream": True})


def aider_commit(diff: str) -> Wire:
    system = (
        "You are an expert software engineer that generates concise, one-line Git commit messages "
        "based on the provided diffs.\nReview the provided context and diffs."
    )
    said = [{"role": "system", "content": system}, {"role": "user", "content": diff}]
    return Wire({}, {"model": "local", "messages": said, "temperature": 0, "stream": False})


# ---------------------------------------------------------------- others


def continue_title(answer: str) -> Wire:
    asked = (
        "Given the following... please reply with a title for the chat that is 3-4 words in "
        f"length, all words used should be directly related to the content.\n\n{answer}"
    )
    body = {"model": "local", "messages": talk(asked), "max_tokens": 16, "stream": True}
    return Wire({}, body)


def continue_autocomplete(prompt: str) -> Wire:
    body = {"prompt": prompt, "stream": True, "n_predict": 4096, "stop": ["<|endoftext|>"]}
    return Wire({}, body, "/completion")


def cline(said: Talk, date: str = "7/15/2026") -> Wire:
    system = (
        "You are Cline, an AI coding agent. Your primary goal is to assist users with various "
        f"coding tasks.\n<env>\n1. Platform: darwin\n2. Date: {date}\n</env>"
    )
    body = {
        "model": "local",
        "messages": [{"role": "system", "content": system}, *said],
        "tools": tools("read_files", "run_commands", "editor"),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Wire({}, body)


def codex(said: Talk, session: str = "0199-aa") -> Wire:
    system = {"role": "developer", "content": "You are Codex, a coding agent based on GPT-5."}
    body = {
        "model": "local",
        "messages": [system, *said],
        "tools": tools("shell", "apply_patch"),
        "prompt_cache_key": session,
        "stream": True,
    }
    return Wire({"session-id": session}, body)

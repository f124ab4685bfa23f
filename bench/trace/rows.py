"""Calls as token rows: what an engine would read, so that reuse can be counted without one.

The rendering is ChatML, the template of the tiny test model. A message is closed by a special
token, so every rendered message tokenizes by itself, and the prompt is the messages' ids put
together: text that was seen before costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import orjson
from tokenizers import Tokenizer

from slotwise.bench.trace.trace import Call, Message
from slotwise.policies.prefix import Tokens, pack


@dataclass(frozen=True, slots=True)
class Row:
    """One request in tokens. ``full`` is what the engine holds behind it: prompt and answer."""

    session: str
    prompt: Tokens
    full: Tokens
    first_user_end: int  # tokens up to and including the first user turn
    turns: int  # 1 + assistant turns in the prompt
    max_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    def row(self) -> Row:
        """Itself: it is made already."""
        return self


class RowSource(Protocol):
    """A row that is made when it is asked for: thousands of long prompts do not fit in memory."""

    @property
    def prompt_tokens(self) -> int:
        """Of the row, without making it."""

    def row(self) -> Row:
        """Make it; the same each time."""


class Renderer:
    """Renders and tokenizes calls; not thread-safe (one memo of messages)."""

    def __init__(self, tokenizer: Path) -> None:
        """Load a ``tokenizer.json`` that knows ChatML's special tokens."""
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._encode = lru_cache(maxsize=100_000)(self._encode_text)

    def rows(self, calls: Iterable[Call], answers: bool) -> list[Row]:
        """The calls as rows, in their order.

        ``answers``: the engine holds the recorded answer behind each prompt, as in a chat that
        goes on. Without it nothing generated is counted, as in a replay of recorded histories,
        where the engine's own answers appear in no later prompt.
        """
        return [self._row(call, answers) for call in calls]

    def _row(self, call: Call, answers: bool) -> Row:
        ids: list[int] = []
        if call.tools:
            ids += self._encode(_tools(call.tools))
        first_user_end = 0
        for message in call.messages:
            ids += self._encode(_rendered(message))
            if not first_user_end and message.get("role") == "user":
                first_user_end = len(ids)
        ids += self._encode("<|im_start|>assistant\n")
        tail = self._encode(_body(call.answer()))[:-1] if answers else ()  # the last is not in KV
        return Row(
            session=call.session,
            prompt=pack(ids),
            full=pack((*ids, *tail)),
            first_user_end=first_user_end,
            turns=1 + sum(m.get("role") == "assistant" for m in call.messages),
            max_tokens=call.max_tokens,
        )

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def rows_of(prompts: Sequence[Tokens], sessions: Sequence[str]) -> list[Row]:
    """Bare rows of prompts that an engine tokenized; nothing generated is counted."""
    return [
        Row(session, prompt, prompt, 0, 1, 1)
        for prompt, session in zip(prompts, sessions, strict=True)
    ]


def total(rows: Iterable[Row]) -> int:
    """Prompt tokens of all rows."""
    return sum(len(row.prompt) for row in rows)


def _tools(tools: list[dict[str, Any]]) -> str:
    return f"<|im_start|>system\n{orjson.dumps(tools).decode()}<|im_end|>\n"


def _rendered(message: Message) -> str:
    return f"<|im_start|>{message['role']}\n{_body(message)}<|im_end|>\n"


def _body(message: Message) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = orjson.dumps(content).decode()
    if calls := message.get("tool_calls"):
        content += orjson.dumps(calls).decode()
    return content

"""Calls as token rows: what an engine would read, so that reuse can be counted without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from slotwise.policies.prefix import Tokens


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


def rows_of(prompts: Sequence[Tokens], sessions: Sequence[str]) -> list[Row]:
    """Bare rows of prompts that an engine tokenized; nothing generated is counted."""
    return [
        Row(session, prompt, prompt, 0, 1, 1)
        for prompt, session in zip(prompts, sessions, strict=True)
    ]


def total(rows: Iterable[Row]) -> int:
    """Prompt tokens of all rows."""
    return sum(len(row.prompt) for row in rows)

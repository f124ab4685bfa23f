"""Calls as a block trace: Mooncake's lines, with the session and the pause before each call.

A line holds ``timestamp`` (ms since the start), ``input_length``, ``output_length`` and
``hash_ids``: for every 512 tokens of the prompt, the last ones included, a number that stands for
these tokens *and all before them*. Two prompts share as many ids as they share whole blocks. The
extension is ``session_id`` and, from a session's second call on, ``delay``: ms from the answer
before to this call. No text can be read out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from slotwise.bench.block_trace import MOONCAKE_BLOCK_TOKENS
from slotwise.policies.prefix import Tokens

_BLOCK_BYTES = 4 * MOONCAKE_BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Entry:
    """One call as it was made."""

    session: str
    started_s: float  # since the start
    delay_s: float  # since the answer before; 0 for a session's first
    prompt: Tokens
    output_tokens: int


def lines(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """The entries in the order they were made in, as the lines of a trace."""
    numbers: dict[tuple[int, bytes], int] = {}
    known: set[str] = set()
    for entry in sorted(entries, key=lambda entry: entry.started_s):
        line: dict[str, Any] = {
            "session_id": entry.session,
            "timestamp": round(entry.started_s * 1000),
            "input_length": len(entry.prompt),
            "output_length": entry.output_tokens,
            "hash_ids": _numbered(entry.prompt, numbers),
        }
        if entry.session in known:
            line["delay"] = round(entry.delay_s * 1000)
        known.add(entry.session)
        yield line


def _numbered(prompt: Tokens, numbers: dict[tuple[int, bytes], int]) -> list[int]:
    """Of each block the number of it behind the block before; known ones keep theirs."""
    ids: list[int] = []
    before = -1
    for start in range(0, len(prompt.packed), _BLOCK_BYTES):
        block = (before, prompt.packed[start : start + _BLOCK_BYTES])
        before = numbers.setdefault(block, len(numbers))
        ids.append(before)
    return ids

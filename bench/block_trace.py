"""Traces without text: prompts as chained block ids, and arrivals of which only lengths are known.

``claude_code.blocks.jsonl``: a line a call, with blocks of 64 tokens whose ids are local to the
session. ``mooncake_*.jsonl``: a line a request, with blocks of 512 tokens whose ids are global; in
the extended form a line also names its ``session_id`` and the client's ``delay`` before it (ms).
``azure*.csv``: TIMESTAMP, ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from slotwise.bench.trace import TraceError

CLAUDE_BLOCK_TOKENS = 64
MOONCAKE_BLOCK_TOKENS = 512
_LONGEST_LINE_BYTES = 1 << 20  # of which the kind of a file is told


@dataclass(frozen=True, slots=True)
class BlockCall:
    """One recorded call. The last block of a prompt may be missing or not full."""

    session: str
    agent: str  # main, or a sub-agent's name
    t: float  # s since the trace's first call
    think_s: float  # the client's delay before it
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    head_tokens: int  # tools and system text; 0: not known
    tool_calls: bool = False  # the answer asked for tools


def is_block_trace(path: Path) -> bool:
    """Whether this file holds no text, by its name or its first line."""
    return is_local(path) or path.name.endswith(".csv") or '"hash_ids"' in _first_line(path)


def is_local(path: Path) -> bool:
    """Whether a block's id means something in its own session only."""
    return path.name.endswith(".blocks.jsonl")


def knows_sessions(path: Path) -> bool:
    """Whether the calls of a trace without text name their conversations."""
    return is_local(path) or '"session_id"' in _first_line(path)


def block_tokens(path: Path) -> int:
    """Tokens of one block."""
    return CLAUDE_BLOCK_TOKENS if is_local(path) else MOONCAKE_BLOCK_TOKENS


def _first_line(path: Path) -> str:
    if path.name.endswith(".csv"):
        return ""
    with path.open("rb") as lines:
        return lines.readline(_LONGEST_LINE_BYTES).decode(errors="replace")


def read_blocks(path: Path) -> Iterator[BlockCall]:
    """The calls of a trace without text, in file order; raises :class:`TraceError`."""
    if path.name.endswith(".csv"):
        yield from _arrivals(path)
        return
    one = _claude if is_local(path) else _mooncake
    heads: dict[tuple[str, str], int] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                call = one(orjson.loads(line), number, heads)
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(path, number, f"{type(error).__name__}: {error}") from None
            if call.prompt_tokens < 1 or call.output_tokens < 0:
                raise TraceError(path, number, "expected at least one prompt token")
            yield call


def expand(ranges: str) -> list[int]:
    """``"1-3,7"`` as ``[1, 2, 3, 7]``; raises ``ValueError``."""
    ids: list[int] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        ids.extend(range(int(first), int(last or first) + 1))
    return ids


def _claude(record: dict[str, Any], _number: int, heads: dict[tuple[str, str], int]) -> BlockCall:
    who = record["session"], record["agent"]
    if "tool_tokens" in record:
        heads[who] = (record["tool_tokens"] or 0) + (record.get("system_tokens") or 0)
    return BlockCall(
        session=who[0],
        agent=who[1],
        t=record["t"],
        think_s=max(0.0, record["think_time"]),
        prompt_tokens=record["in"],
        output_tokens=record["out"],
        blocks=array("I", expand(record["blocks"])),
        head_tokens=heads.get(who, 0),
        tool_calls=record.get("stop") == "tool_use",
    )


def _mooncake(record: dict[str, Any], number: int, _heads: object) -> BlockCall:
    return BlockCall(
        session=record.get("session_id", f"r{number}"),
        agent="main",
        t=record.get("timestamp", 0) / 1000,
        think_s=max(0, record.get("delay", 0)) / 1000,
        prompt_tokens=record["input_length"],
        output_tokens=record["output_length"],
        blocks=array("Q", record["hash_ids"]),
        head_tokens=0,
    )


def _arrivals(path: Path) -> Iterator[BlockCall]:
    start: datetime | None = None
    with path.open(newline="") as lines:
        for number, record in enumerate(csv.DictReader(lines), 2):
            try:
                at = datetime.fromisoformat(record["TIMESTAMP"][:26])
                prompt = int(record["ContextTokens"])
                output = int(record["GeneratedTokens"])
            except (ValueError, KeyError, TypeError) as error:
                raise TraceError(path, number, f"{type(error).__name__}: {error}") from None
            start = start or at
            t = (at - start).total_seconds()
            yield BlockCall(f"r{number}", "main", t, 0.0, prompt, output, [], 0)

"""Traces without text: prompts as chained block ids, arrivals of which only lengths are known."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from slotwise.bench.trace.trace import TraceError
from slotwise.policies.prefix import Tokens

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

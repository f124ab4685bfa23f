"""Recorded LLM calls, read from trace files: one typed :class:`Call` per call, in file order.

Two text formats are read. In ``NAME.jsonl`` every line is a whole call. In ``NAME.packed.jsonl``
lines are delta-coded: ``keep: n`` says that the first n messages are those of the session's
previous line, and ``tools`` stands only where it changes. Block traces and arrival-only traces
hold no text; they are other kinds of record and get readers of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

TRACES_VARIABLE = "SLOTWISE_TRACES"
Message = dict[str, Any]  # one OpenAI chat message


class TraceError(ValueError):
    """A trace that cannot be read; the text names the file, the line and what is wrong."""

    def __init__(self, path: Path, line: int | None, what: str) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {what}")


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call to an LLM."""

    session: str
    turn: int
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    max_tokens: int
    completion: str
    reply: Message | None  # the whole answer, where it had tool calls
    t: float | None  # s since the file's first call, where the source had timestamps

    def answer(self) -> Message:
        """The recorded answer as an OpenAI message."""
        return self.reply or {"role": "assistant", "content": self.completion}


def traces_dir() -> Path:
    """Where traces are: ``SLOTWISE_TRACES``, else ``../shared/traces`` beside the checkout."""
    named = os.environ.get(TRACES_VARIABLE)
    return Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "traces"


def find(name: str) -> Path:
    """The path of a trace given as a path or as a name (with or without its ending).

    Raises :class:`TraceError` that says where was looked.
    """
    folder = traces_dir()
    for candidate in (Path(name), folder / name, folder / f"{name}.jsonl"):
        if candidate.is_file():
            return candidate
    raise TraceError(Path(name), None, f"no such trace, neither here nor in {folder}")


def read(name: str) -> list[Call]:
    """All calls of one trace; raises :class:`TraceError`."""
    return list(read_calls(find(name)))


def read_calls(path: Path) -> Iterator[Call]:
    """Yield whole calls from either text form; raises :class:`TraceError`."""
    histories: dict[str, list[Message]] = {}
    tools: dict[str, list[dict[str, Any]] | None] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            record = _record(path, number, line)
            session = _typed(path, number, record, "session", str)
            messages = _typed(path, number, record, "messages", list)
            if "keep" in record:
                keep = _typed(path, number, record, "keep", int)
                known = histories.get(session, [])
                if not 0 <= keep <= len(known):
                    what = f"keep: expected 0 to {len(known)} (messages so far), got {keep}"
                    raise TraceError(path, number, what)
                messages = known[:keep] + messages
                tools[session] = record.get("tools", tools.get(session))
            else:
                tools[session] = record.get("tools")
            if not messages:
                raise TraceError(path, number, "messages: expected at least one")
            histories[session] = messages
            yield Call(
                session=session,
                turn=_typed(path, number, record, "turn", int),
                messages=messages,
                tools=tools[session] or None,
                max_tokens=_typed(path, number, record, "max_tokens", int),
                completion=record.get("completion") or "",
                reply=record.get("reply"),
                t=record.get("t"),
            )


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(path, number, f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise TraceError(path, number, f"expected an object, got {type(record).__name__}")
    return record


def _typed(path: Path, number: int, record: dict[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        shown = "nothing" if name not in record else repr(value)[:60]
        raise TraceError(path, number, f"{name}: expected {kind.__name__}, got {shown}")
    return value

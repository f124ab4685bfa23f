"""Reading recorded calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from slotwise.bench.trace import trace


def written(folder: Path, name: str, *records: dict[str, Any]) -> Path:
    path = folder / name
    path.write_bytes(b"\n".join(orjson.dumps(record) for record in records))
    return path


def record(**changes: Any) -> dict[str, Any]:
    return {
        "session": "s",
        "turn": 0,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 5,
        "completion": "hi",
    } | changes


def test_a_packed_trace_yields_the_same_calls_as_the_whole_form(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    first = record(tools=tools)
    answer = {"role": "assistant", "content": "hi"}
    more = {"role": "user", "content": "and?"}
    second = record(turn=1, tools=tools, messages=[*first["messages"], answer, more])
    third = record(turn=2, messages=[*first["messages"], more])
    whole = written(tmp_path, "whole.jsonl", first, second, third)
    packed = written(
        tmp_path,
        "a.packed.jsonl",
        first | {"keep": 0},
        record(turn=1, messages=[answer, more], keep=1),
        record(turn=2, messages=[more], keep=1, tools=None),
    )
    assert list(trace.read_calls(packed)) == list(trace.read_calls(whole))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "expected an object, got list"),
        (orjson.dumps(record(session=3)), "session: expected str, got 3"),
        (orjson.dumps(record(messages=[])), "messages: expected at least one"),
        (orjson.dumps(record(max_tokens=None)), "max_tokens: expected int, got None"),
        (orjson.dumps(record(keep=2)), "keep: expected 0 to 1"),
    ],
)
def test_a_fault_names_file_and_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(orjson.dumps(record()) + b"\n" + line + b"\n")
    with pytest.raises(trace.TraceError) as raised:
        list(trace.read_calls(path))
    assert f"{path}:2: {complaint}" in str(raised.value)


def test_traces_are_found_by_name_in_the_named_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "some.packed.jsonl", record(keep=0))
    monkeypatch.setenv(trace.TRACES_VARIABLE, str(tmp_path))
    assert trace.find("some.packed") == path
    with pytest.raises(trace.TraceError, match=f"no such trace, .*{tmp_path}"):
        trace.find("other")


def test_the_recorded_traces_read_whole() -> None:
    if not trace.traces_dir().is_dir():
        pytest.skip(f"no traces in {trace.traces_dir()} (SLOTWISE_TRACES)")
    calls = trace.read("tau_airline")
    packed = trace.read("miniswe_all.packed")
    assert (len(calls), len({call.session for call in calls})) == (132, 12)
    assert (len(packed), len({call.session for call in packed})) == (242, 12)
    assert all(call.tools for call in calls)

"""The request log's lines, its bounds, and what a bad disk does to it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.policies.attribution import Cause
from slotwise.proxy.history.record import Known
from slotwise.proxy.telemetry.request_log import RequestLog
from tests.proxy.history.test_explain import changed, record


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_holds_numbers_and_names_and_no_text(tmp_path: Path) -> None:
    request_log = RequestLog(tmp_path / "requests.jsonl")
    request_log.write(changed(known=Known("curl", 0.5, 0.2, 0.3, "stop")))
    request_log.close()
    assert read(tmp_path / "requests.jsonl") == [
        {
            "time": 1030.0,
            "id": "req-1",
            "profile": "p",
            "session": "s",
            "kind": "agent",
            "slot": "e/1",
            "rule": "home",
            "why": "shares 9000 of 9001 tokens served there",
            "expected_cached": 9000,
            "prompt_tokens": 10_240,
            "tokens": {"cached": 214, "changed": 9812, "new": 214},
            "changed": "system",
            "wait_s": 10.0,
            "wait_reason": "home_busy",
            "regret_s": {"busy": 10.0},
            "ttft_s": 0.5,
            "prefill_s": 0.2,
            "decode_s": 0.3,
            "took_s": 20.0,
            "out_tokens": 7,
            "finish": "stop",
            "client": "curl",
            "key": "ann",
        }
    ]


def test_a_request_log_goes_on_where_it_was(tmp_path: Path) -> None:
    for id in ("a", "b"):
        request_log = RequestLog(tmp_path / "requests.jsonl")
        request_log.write(changed(id=id))
        request_log.close()
        request_log.close()
    assert [line["id"] for line in read(tmp_path / "requests.jsonl")] == ["a", "b"]


def test_its_files_are_bounded_and_only_the_owner_reads_them(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").touch(0o644)
    request_log = RequestLog(tmp_path / "requests.jsonl", max_bytes=2000, files=3)
    for k in range(100):
        request_log.write(changed(id=f"r{k}"))
    request_log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        "requests.jsonl",
        "requests.jsonl.1",
        "requests.jsonl.2",
    ]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    newest = [line["id"] for file in reversed(files) for line in read(file)]
    assert newest == [f"r{k}" for k in range(100 - len(newest), 100)]


def test_a_disk_that_fails_is_said_once_and_harms_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    request_log = RequestLog(tmp_path / "requests.jsonl")
    assert request_log._file.stream is not None
    with Path("/dev/full").open("a") as full, caplog.at_level(logging.WARNING):
        os.dup2(full.fileno(), request_log._file.stream.fileno())  # every write to it fails
        for _ in range(5):
            request_log.write(changed())
        request_log.close()
    assert len([r for r in caplog.records if "lines are lost" in r.message]) == 1


def test_a_folder_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RequestLog(tmp_path / "none" / "requests.jsonl")


def test_a_name_that_is_no_text_costs_its_line_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request_log = RequestLog(tmp_path / "requests.jsonl")
    request_log.write(replace(record((Cause.NEW, 1)), known=Known(client="\ud800")))
    request_log.write(changed(id="b"))
    request_log.close()
    assert [line["id"] for line in read(tmp_path / "requests.jsonl")] == ["b"]
    assert "no line for request req-1" in caplog.text

"""A child is drained, ended within a bound, gone with its parent, and never mistaken."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slotwise.launcher.process import process
from tests.launcher import children


def _spawn(directory: Path, text: str, *arguments: str) -> process.Child:
    path = children.script(directory, "child.py", text)
    return process.spawn(
        [sys.executable, str(path), *arguments],
        dict(os.environ),
        directory,
        process.RotatingLog(directory / "log", max_bytes=1_000_000),
        directory / "pid",
    )


async def _appears(path: Path, limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not path.exists():
            await asyncio.sleep(0.01)


def test_a_child_that_prints_megabytes_goes_on_and_its_log_stays_small(tmp_path: Path) -> None:
    async def scenario() -> None:
        child = _spawn(tmp_path, children.TALKER, str(tmp_path / "answer"))
        await _appears(tmp_path / "answer")
        assert await child.stop()

    asyncio.run(scenario())
    sizes = [path.stat().st_size for path in tmp_path.glob("log*")]
    assert len(sizes) == 2
    assert sum(sizes) <= 2_000_000
    longest = max(len(line) for line in (tmp_path / "log").read_bytes().splitlines())
    assert longest <= process.MAX_LINE_BYTES + 32


def test_a_child_that_ignores_sigterm_is_killed_within_the_limits(tmp_path: Path) -> None:
    async def scenario() -> int:
        child = _spawn(tmp_path, children.STUBBORN, str(tmp_path / "ready"))
        await _appears(tmp_path / "ready")
        assert await child.stop(term_limit_s=0.2, second_term_limit_s=0.2)
        return child.exit.result()

    began = time.monotonic()
    assert asyncio.run(scenario()) == -signal.SIGKILL
    assert time.monotonic() - began < 10
    assert not (tmp_path / "pid").exists()


def test_an_exit_is_seen_and_reaped_with_its_code_and_last_words(tmp_path: Path) -> None:
    async def scenario() -> process.Child:
        child = _spawn(tmp_path, "print('bye'); raise SystemExit(7)")
        await asyncio.wait_for(child.exit, 20)
        return child

    child = asyncio.run(scenario())
    assert child.exit.result() == 7
    assert child.log.recent() == ["bye"]
    assert not psutil.pid_exists(child.pid)


def test_what_a_child_started_does_not_outlive_it(tmp_path: Path) -> None:
    text = (
        "import pathlib, subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path(sys.argv[1]).write_text(str(p.pid))\n"
    )

    async def scenario() -> None:
        child = _spawn(tmp_path, text, str(tmp_path / "grandchild"))
        await asyncio.wait_for(child.exit, 20)

    asyncio.run(scenario())
    grandchild = int((tmp_path / "grandchild").read_text())
    children.until(lambda: not children.runs(grandchild))


def test_a_child_dies_within_two_seconds_of_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", children.PARENT, str(tmp_path)])
    try:
        children.until(lambda: (tmp_path / "told").exists())
        pid = int((tmp_path / "told").read_text())
        assert children.runs(pid)
    finally:
        parent.kill()
        parent.wait(10)
    children.until(lambda: not children.runs(pid), limit_s=2)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait(10)


def test_a_pid_file_that_names_an_unrelated_process_is_not_acted_on(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "pid"
    process.write(path, sleeper.pid, ["llama-server", "-m", "model.gguf"])
    assert process.end_leftover(path) is None
    assert sleeper.poll() is None
    assert not path.exists()


def test_a_pid_that_was_used_again_is_not_acted_on(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "pid"
    line = psutil.Process(sleeper.pid).cmdline()
    process.write(path, sleeper.pid, line)
    path.write_text(path.read_text().replace('"started": ', '"started": 1'))
    assert process.end_leftover(path) is None
    assert sleeper.poll() is None


def test_a_leftover_that_matches_in_everything_is_ended(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "pid"
    process.write(path, sleeper.pid, psutil.Process(sleeper.pid).cmdline())
    assert process.end_leftover(path) == sleeper.pid
    assert not children.runs(sleeper.pid)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"pid": "x"}', '{"pid": -1}'])
def test_a_damaged_pid_file_is_removed_and_nothing_else(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pid"
    path.write_text(text)
    assert process.end_leftover(path) is None
    assert not path.exists()


def test_a_long_line_in_pieces_is_cut_once(tmp_path: Path) -> None:
    log = process.RotatingLog(tmp_path / "log", max_line_bytes=10)
    for piece in (b"0123456", b"789abcdef", b"ghi", b"jkl\nshort\n"):
        log.feed(piece)
    log.close()
    assert (tmp_path / "log").read_text() == "0123456789 ... (line cut)\nshort\n"


def test_each_line_is_shown_whole_to_who_watches(tmp_path: Path) -> None:
    lines: list[str] = []
    log = process.RotatingLog(tmp_path / "log", seen=lines.append)
    for piece in (b"slot 1 | selected slot", b" by LRU\nnext\n\nla", b"st"):
        log.feed(piece)
    log.close()
    assert lines == ["slot 1 | selected slot by LRU", "next", "last"]


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = process.RotatingLog(tmp_path / "file" / "log")
    log.feed(b"one\ntwo\n")
    log.close()
    assert log.recent() == ["one", "two"]

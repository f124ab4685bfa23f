"""What a killed benchmark left behind is removed at the next start, and nothing else is."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from slotwise.bench.run import engines
from tests.support import Process

BENCHMARK = """
import sys, tempfile, time
from slotwise.bench.run import engines
tempfile.tempdir = sys.argv[1]
with engines.scratch_folder() as folder:
    (folder / "log").touch()
    print("works in", folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """What a benchmark left that was killed at its work."""
    with Process([sys.executable, "-c", BENCHMARK, tmp_path]) as benchmark:
        folder = Path(benchmark.wait_for_line("works in "))
        engines.sweep()
        assert folder.is_dir(), "its owner runs"
        benchmark.popen.kill()
        benchmark.popen.wait(10)
    assert (folder / "log").exists()
    return folder


def test_what_a_killed_benchmark_left_goes_at_the_next_start_and_nothing_else(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [left.with_name(name) for name in ("slotwise-bench-abc", "slotwise-bench-12", "x")]
    for other in others:
        other.mkdir()
    link, file = left.with_name(left.name + "-link"), left.with_name(left.name + "-file")
    link.symlink_to(others[0])
    file.touch()
    monkeypatch.setattr(engines, "_sweep_once", engines.sweep)
    with engines.scratch_folder() as mine:
        assert mine.name.startswith(f"slotwise-bench-{os.getpid()}-")
        assert sorted(tmp_path.iterdir()) == sorted([mine, link, file, *others])
    assert not mine.exists()


def test_what_is_anothers_stays(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
    engines.sweep()
    assert left.exists()


def test_no_more_is_swept_at_once_than_the_bound(
    tmp_path: Path, left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_MOST_SWEPT", 3)
    for n in range(4):
        left.with_name(f"{left.name}{n}").mkdir()
    engines.sweep()
    assert len(list(tmp_path.iterdir())) == 2

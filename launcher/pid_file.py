"""Which process a slotwise that is gone may have left behind, and ending exactly that one.

A pid alone proves nothing, the kernel uses it again. The file holds the start time and the
command line as well, and only a process that matches all three is acted on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import psutil

END_LIMIT_S = 5.0
_START_TIME_TOLERANCE_S = 0.05


def write(path: Path, pid: int, argv: Sequence[str]) -> None:
    """Records a child that was just started."""
    record = {"pid": pid, "started": _started(pid), "argv": list(argv)}
    aside = path.with_name(path.name + ".new")
    aside.write_text(json.dumps(record), "utf-8")
    os.replace(aside, path)


def remove(path: Path) -> None:
    """The child was reaped."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def end_leftover(path: Path) -> int | None:
    """Ends the recorded process if it still runs and is the same; returns its pid if so.

    Blocks for at most twice END_LIMIT_S. The file is removed in every case.
    """
    leftover = running(path)
    if leftover is not None:
        for end in (leftover.terminate, leftover.kill):
            with contextlib.suppress(psutil.Error):
                end()  # psutil compares the start time once more
            with contextlib.suppress(psutil.Error):
                leftover.wait(END_LIMIT_S)
                break
    remove(path)
    return leftover.pid if leftover is not None else None


def running(path: Path) -> psutil.Process | None:
    """The process that the file names, if it runs and pid, start time and command line match."""
    try:
        record = json.loads(path.read_text("utf-8"))
        pid, started, argv = record["pid"], record["started"], record["argv"]
        process = psutil.Process(pid)
        same_start = abs(process.create_time() - started) < _START_TIME_TOLERANCE_S
        # A script is run by its interpreter, which stands before it on the command line.
        same_line = process.cmdline()[-len(argv) :] == argv
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if same_start and same_line else None


def _started(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0

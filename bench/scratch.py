"""Folders that a measurement needs for its time, and those that one left behind which was killed.

Each is named after the process it belongs to, so that the next measurement can tell whose owner is
gone. What is of another user, of a process that runs, or named otherwise is not touched.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

import psutil

PREFIX = "slotwise-bench-"
_MOST_SWEPT = 100  # at one start; the next takes the others


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder, removed at the end with all that is in it."""
    _sweep_once()
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as name:
        yield Path(name)


def sweep() -> None:
    """Remove what processes that are gone left behind; what cannot be removed stays."""
    found = Path(tempfile.gettempdir()).glob(f"{PREFIX}*")
    for left in islice(filter(_is_left_behind, found), _MOST_SWEPT):
        shutil.rmtree(left, ignore_errors=True)


_sweep_once = cache(sweep)


def _is_left_behind(path: Path) -> bool:
    pid, dash, _ = path.name.removeprefix(PREFIX).partition("-")
    if not (dash and pid.isascii() and pid.isdecimal() and len(pid) <= 9):
        return False
    try:
        about = path.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return is_ours and not psutil.pid_exists(int(pid))

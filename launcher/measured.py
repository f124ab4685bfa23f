"""What an engine took at its last starts, kept beside its log, and what it may still take now.

The engine's own log is the best source, where its build shows sizes; else the resident size of
the process, which sees nothing of a GPU; with a GPU it is how far MemAvailable fell, and that only
while nothing else was starting. A size counts for the very launch line and files it was measured
with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from slotwise.launcher import pid_file
from slotwise.launcher.plan import PROCESS, VOCABULARY, Measured, Plan
from slotwise.launcher.residency import growth_to_come

FILE_NAME = "memory.json"
LOGGED, PROCESS_SIZE, FELL = "the engine's log", "size of the process", "fall of MemAvailable"
KEPT_LINES = 8
_MOST_LOG_BYTES = 4 * 2**20
_MOST_FILE_BYTES = 2**20
_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size =\s*([\d.]+) MiB")
_COMPLETE = {"model", "compute"}  # a log without these does not show sizes


@dataclass(frozen=True, slots=True)
class Start:
    """One start that became ready. ``own_bytes``: of the process, without the files it maps, and
    ``growth_bytes``: what may come on top, both for what comes after it."""

    line: str
    pid: int
    when: str
    at_load_bytes: int
    how: str
    own_bytes: int
    growth_bytes: int

    def measured(self) -> Measured:
        return Measured(self.at_load_bytes, self.when, self.how, self.how == LOGGED)


def line_key(argv: Sequence[str], files: Sequence[Path]) -> str:
    """Names a launch line together with the state of its files; the port must not be in it."""
    states = []
    for path in files:
        try:
            found = path.stat()
            states.append([str(path), found.st_size, found.st_mtime_ns])
        except OSError:
            states.append([str(path)])
    text = json.dumps([list(argv), states])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def starts(directory: Path) -> list[Start]:
    """The kept starts of an engine, the newest last; none where the file is missing or broken."""
    try:
        with (directory / FILE_NAME).open("rb") as file:
            data = json.loads(file.read(_MOST_FILE_BYTES))
        return [_start(entry) for entry in data["starts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def last(directory: Path, line: str) -> Start | None:
    """The last start of this line."""
    return next((start for start in reversed(starts(directory)) if start.line == line), None)


def keep(directory: Path, start: Start) -> None:
    """Adds a start, in place of an older one of its line; raises OSError."""
    others = [kept for kept in starts(directory) if kept.line != start.line]
    entries = [_entry(kept) for kept in [*others, start][-KEPT_LINES:]]
    aside = directory / (FILE_NAME + ".new")
    aside.write_text(json.dumps({"starts": entries}, indent=1) + "\n", "utf-8")
    os.replace(aside, directory / FILE_NAME)


def growth_of_running(directory: Path, peak_bytes: int = 0) -> int | None:
    """What the engine that runs from this directory may still take; None: none runs.

    ``peak_bytes``: of its plan, for one that was not measured yet, as while it loads.
    """
    running = pid_file.running(directory / "engine.pid")
    if running is None:
        return None
    resident, own = _sizes(running)
    start = next((one for one in starts(directory) if one.pid == running.pid), None)
    if start is None:
        return growth_to_come(peak_bytes, resident)
    return growth_to_come(start.growth_bytes, max(0, own - start.own_bytes))


class Meter:
    """Measures one start: ``begin`` before the process is made, ``ended`` once it is ready."""

    def __init__(self, directory: Path, line: str, plan: Plan, on_gpu: bool) -> None:
        self._directory = directory
        self._line = line
        self._growth_bytes = plan.growth_bytes
        # A fall that is smaller is none of a load: a mapped model is page cache, managed memory
        # is taken when it is touched.
        self._least_bytes = plan.computed_load_bytes // 2
        self._unlogged_bytes = sum(
            part.size_bytes for part in plan.parts if part.name in (VOCABULARY, PROCESS)
        )
        self._on_gpu = on_gpu
        self._available_bytes: int | None = None
        self._log_offset = 0

    def begin(self, available_bytes: int | None) -> None:
        """``available_bytes``: MemAvailable, None while something else starts too."""
        self._available_bytes = available_bytes
        self._log_offset = _size(self._directory / "engine.log")

    def disturbed(self) -> None:
        """Something else began to start: how far MemAvailable falls says nothing any more."""
        self._available_bytes = None

    def ended(self, available_bytes: int | None) -> Start | None:
        """The start, kept; None where nothing could be measured. Raises OSError."""
        running = pid_file.running(self._directory / "engine.pid")
        if running is None:
            return None
        resident, own = _sizes(running)
        at_load, how = self._at_load(resident, available_bytes)
        if at_load <= 0:
            return None
        when = time.strftime("%Y-%m-%d %H:%M")
        start = Start(self._line, running.pid, when, at_load, how, own, self._growth_bytes)
        keep(self._directory, start)
        return start

    def _at_load(self, resident_bytes: int, available_bytes: int | None) -> tuple[int, str]:
        logged = logged_bytes(_tail(self._directory / "engine.log", self._log_offset))
        if logged:
            return logged + self._unlogged_bytes, LOGGED
        if not self._on_gpu:
            return resident_bytes, PROCESS_SIZE
        if self._available_bytes is None or available_bytes is None:
            return 0, ""
        fell = self._available_bytes - available_bytes
        return (fell, FELL) if fell >= self._least_bytes else (0, "")


def logged_bytes(text: str) -> int:
    """The sum of the buffers that a log of one start names; 0 where it does not show them all."""
    found = _BUFFER.findall(text)
    if not {kind for kind, _ in found} >= _COMPLETE:
        return 0
    return round(sum(float(mib) for _, mib in found) * 2**20)


def _sizes(process: psutil.Process) -> tuple[int, int]:
    """All that is resident, and that without files; pages that others map as well in full, since
    they may not be there the next time. Zeros where it has just ended."""
    try:
        info = process.memory_info()
    except psutil.Error:
        return 0, 0
    return int(info.rss), int(info.rss - info.shared)


def _tail(path: Path, offset: int) -> str:
    """The log from ``offset`` on; all of it where it was begun anew since."""
    try:
        with path.open("rb") as file:
            file.seek(offset if _size(path) >= offset else 0)
            return file.read(_MOST_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _start(entry: dict[str, Any]) -> Start:
    return Start(
        line=str(entry["line"]),
        pid=int(entry["pid"]),
        when=str(entry["when"]),
        at_load_bytes=int(entry["at_load_bytes"]),
        how=str(entry["how"]),
        own_bytes=int(entry["own_bytes"]),
        growth_bytes=int(entry["growth_bytes"]),
    )


def _entry(start: Start) -> dict[str, Any]:
    return {name: getattr(start, name) for name in Start.__slots__}

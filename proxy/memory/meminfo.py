"""Reads how much memory there is: MemAvailable, a lower limit of our own cgroup, and pressure.

One figure is right where the GPU shares the host's memory: MemAvailable. MemFree and CUDA's free
figure count the page cache as used; RSS sees nothing of what a GPU holds; NVML says N/A. So those
are never read, and there is no GPU tool to miss.

Nothing here raises. A file that is gone, garbled, or whose content has not changed for long tells
nothing, and the reading says why. The kernel's own files (under /proc and /sys) are made anew at
each read, so they are always fresh; any other file must go on changing, or be touched.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

ZONEINFO = Path("/proc/zoneinfo")
# One for each CPU and zone, under ``pagesets``; in pages.
_COUNT = re.compile(rb"^\s+count:\s+(\d+)$", re.MULTILINE)
_MOST_ZONE_BYTES = 2**20  # a machine of 128 CPUs fills a tenth of it


def read_bytes(path: Path = ZONEINFO, page_bytes: int = resource.getpagesize()) -> int:
    """What lies on the lists of all CPUs now; takes about 0.1 ms for a few CPUs. 0 where the file
    is not there, may not be read, or knows no such lists."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_ZONE_BYTES)
    except OSError:
        return 0
    return sum(map(int, _COUNT.findall(content))) * page_bytes


_PSS = re.compile(rb"^Pss_(Anon|Shmem|File):\s+(\d+) kB$", re.MULTILINE)
_RSS = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


def own_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Memory that is the process's own, shared pages in full: a look at counters, always cheap.

    None: there is no such process, or it may not be looked at.
    """
    try:
        found = _RSS.findall((proc / str(pid) / "status").read_bytes())
    except OSError:
        return None
    return sum(map(int, found)) * 1024 if found else None


def pss_bytes(pid: int, proc: Path = Path("/proc")) -> dict[str, int] | None:
    """Its share of memory by kind: anon, shmem, file. The kernel walks all its pages for this:
    of a big process it takes a while. None: as above."""
    try:
        found = _PSS.findall((proc / str(pid) / "smaps_rollup").read_bytes())
    except OSError:
        return None
    return {kind.decode().lower(): int(kib) * 1024 for kind, kib in found} if found else None


def family_pss_bytes(pid: int, apart: Collection[int] = ()) -> dict[str, int]:
    """The same of a process and all that it started, but for ``apart`` and what those started."""
    total: Counter[str] = Counter(pss_bytes(pid) or {})
    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return dict(total)
    for child in children:
        if child.pid not in apart:
            total.update(family_pss_bytes(child.pid, apart))
    return dict(total)


_LINE = re.compile(rb"^(MemTotal|MemAvailable|AnonPages|Shmem):\s+(\d+) kB$", re.MULTILINE)
_NEEDED, _HELD = {b"MemTotal", b"MemAvailable"}, {b"AnonPages", b"Shmem"}
_FULL = re.compile(rb"^full avg10=(\d+(?:\.\d+)?)\b", re.MULTILINE)
_MOST_BYTES = 65536
_NO_LIMIT = 2**60  # bytes; version 1 writes a number of this size for none
_PRESSURE = Path("/proc/pressure/memory")
_MADE_ANEW = ("/proc/", "/sys/")


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. ``available_bytes`` None: it cannot be told, ``problem`` says why."""

    available_bytes: int | None
    total_bytes: int
    stalled: float | None = None  # percent of the last 10 s, see PSI; None: not told here
    problem: str = ""
    limit: str = ""  # the cgroup whose limit was lower, else empty
    # Both are the machine's, so not told of a group that is limited. Nothing is admitted by them.
    free_lists_bytes: int = 0  # see proxy/memory/meminfo.py
    processes_bytes: int | None = None  # the pages of all processes, but for those of files

    @property
    def used_bytes(self) -> int:
        """Not available, and not on the kernel's lists of free pages; 0 where it is not told."""
        if self.available_bytes is None:
            return 0
        return self.total_bytes - self.available_bytes - self.free_lists_bytes


class MemInfo:
    """Where this machine's memory is read. ``cgroup``: ``auto``, ``off``, or a directory;
    ``zoneinfo`` None: the kernel's, where ``path`` is the kernel's as well."""

    def __init__(
        self,
        path: Path = Path("/proc/meminfo"),
        cgroup: str = "auto",
        *,
        stale_s: float = 2.0,
        pressure: Path = _PRESSURE,
        zoneinfo: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._groups = _groups(cgroup)
        self._pressure = pressure
        self._stale_s = stale_s
        self._clock = clock
        self._is_kernels = os.path.realpath(path).startswith(_MADE_ANEW)
        self._zoneinfo = zoneinfo or (ZONEINFO if self._is_kernels else None)
        self._seen: tuple[int, bytes] | None = None
        self._changed_at = clock()
        self._total = 0

    def read(self) -> Reading:
        """What it is now; takes well under a millisecond."""
        try:
            reported = self._lines()
        except (OSError, ValueError) as error:
            return Reading(None, self._total, problem=str(error))
        available, total = reported[b"MemAvailable"], reported[b"MemTotal"]
        self._total = total
        limit = ""
        for group in self._groups:
            bounded = group.read()
            if bounded is not None and bounded[0] <= total:
                # Of a limited group neither more than its limit nor than the host has left.
                total, available = bounded[0], min(available, bounded[1])
                limit = str(group.directory)
        self._total = total
        available = max(0, min(available, total))
        if limit:
            return Reading(available, total, self._stalled(), limit=limit)
        on_lists = read_bytes(self._zoneinfo) if self._zoneinfo else 0
        held = reported[b"AnonPages"] + reported[b"Shmem"] if reported.keys() >= _HELD else None
        return Reading(available, total, self._stalled(), "", "", on_lists, held)

    def _lines(self) -> dict[bytes, int]:
        with self._path.open("rb") as file:
            content = file.read(_MOST_BYTES)
            signature = (os.fstat(file.fileno()).st_mtime_ns, content)
        now = self._clock()
        if signature != self._seen or self._is_kernels:
            self._seen, self._changed_at = signature, now
        reported = {name: int(kib) * 1024 for name, kib in _LINE.findall(content)}
        if not reported.keys() >= _NEEDED or not 0 < reported[b"MemTotal"] < _NO_LIMIT:
            raise ValueError(f"{self._path} has no MemAvailable and MemTotal")
        if now - self._changed_at > self._stale_s:
            raise ValueError(f"{self._path} has not changed for {now - self._changed_at:.1f} s")
        return reported

    def _stalled(self) -> float | None:
        try:
            found = _FULL.search(self._pressure.read_bytes())
        except OSError:
            return None
        return float(found[1]) if found else None

    def sources(self) -> dict[str, object]:
        """What is read, for the status page."""
        inside = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
        limits = [str(group.directory) for group in self._groups if group.read() is not None]
        scope = "this machine"
        if inside:
            scope = "the host, of which this container sees all"
            scope += "" if limits else "; no cgroup limit is visible"
        return {
            "meminfo": str(self._path),
            "scope": scope,
            "cgroup_limits": limits,
            "pressure": str(self._pressure) if self._stalled() is not None else None,
            "gpu_tools": "none: on a machine with shared memory MemAvailable has it all",
        }


# ---------------------------------------------------------------- cgroups


@dataclass(frozen=True, slots=True)
class Group:
    """One memory cgroup, of version 1 or 2."""

    directory: Path
    limit: str
    usage: str
    cache: bytes  # the line of memory.stat with what can be dropped

    def read(self) -> tuple[int, int] | None:
        """Limit and what is left of it, in bytes; None: no limit, or none that can be read."""
        try:
            limit = int((self.directory / self.limit).read_bytes())  # ``max`` is no number
            if limit >= _NO_LIMIT:
                return None
            used = int((self.directory / self.usage).read_bytes())
            stat = (self.directory / "memory.stat").read_bytes()
        except (OSError, ValueError):
            return None
        found = re.search(rb"^" + self.cache + rb" (\d+)$", stat, re.MULTILINE)
        cache = int(found[1]) if found else 0
        return limit, limit - max(0, used - cache)


def group_at(directory: Path) -> Group | None:
    """The cgroup of this directory, by the files it has."""
    for limit, usage, cache in (
        ("memory.max", "memory.current", b"inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", b"total_inactive_file"),
    ):
        if (directory / limit).is_file():
            return Group(directory, limit, usage, cache)
    return None


def _groups(given: str) -> list[Group]:
    if given == "off":
        return []
    if given != "auto":
        found = group_at(Path(given))
        return [found] if found else []
    return own_groups()


def own_groups(
    mounted: Path = Path("/sys/fs/cgroup"), ours: Path = Path("/proc/self/cgroup")
) -> list[Group]:
    """The groups this process is in, the innermost first; a limit may stand at any level."""
    try:
        lines = ours.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found: list[Group] = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root = mounted
        elif "memory" in controllers.split(","):
            root = mounted / "memory"
        else:
            continue
        below = root / path.lstrip("/")
        # In a container the path may be the host's, and only its root be there.
        for directory in (below, *below.parents):
            if directory == root or root in directory.parents:
                group = group_at(directory)
                found += [group] if group else []
    return found

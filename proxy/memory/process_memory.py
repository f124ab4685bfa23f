"""What processes take of the machine's memory, as far as the kernel tells of a process.

Of a process that uses a GPU it does not tell all: what a driver allocates is in no process's
figures. That part is measured as what was taken beyond all processes' own pages while the engine
loaded. Pages of mapped files (the model's weights, where they are mapped) are page cache, which
MemAvailable counts as available: they are no part of what is used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import psutil

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

"""Whether the memory bar's ``other`` is what others held before.

    python -m slotwise.bench.memory_other

Profiles are started one after the other, with nothing asked of them. Before each start it is
measured what the machine's memory is used for: MemTotal - MemAvailable, less what lies on the
kernel's lists of free pages. Then slotwise says in its status who holds what. Nobody else came or
went, so ``other`` must be what was held before, within a tenth; and the parts must add up to what
is used by then.

Both are read here anew, not with slotwise's own code. Processes that do come or go meanwhile are
seen by the pages of all processes less those of slotwise and what it started; their growth is
taken off, and said. Figures are medians of several looks.
"""

from __future__ import annotations

import mmap
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from slotwise.bench import engines, scratch
from slotwise.bench.command_line import count, parser_of

MIB = 2**20
PROFILES = ("tiny", "demo")
MOST_OFF, MOST_GAP = 0.10, 0.01
MOST_STARTS = 100  # half a minute each
LOOKS, LOOK_EVERY_S = 12, 0.5
SETTLED_S, SETTLED_BYTES, SETTLE_LIMIT_S = 7.0, 2 * MIB, 60.0  # parts are measured every 5 s
_COUNT = re.compile(r"^\s+count:\s+(\d+)$", re.MULTILINE)
_PSS = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Machine:
    """One look at the machine; bytes."""

    used: int  # MemTotal - MemAvailable
    on_lists: int  # of the kernel, free
    processes: int  # the pages of all of them, but for those of files

    @property
    def held(self) -> int:
        """What somebody has."""
        return self.used - self.on_lists


@dataclass(frozen=True, slots=True)
class Start:
    """One start; bytes. ``came``: what processes that are none of ours took since before it;
    ``alone``: ``other`` without them, which both differ from look to look where others are busy."""

    profile: str
    before: Machine
    parts: dict[str, int]
    came: int
    alone: int
    gap: float = 0.0  # the largest share by which the parts missed what was used
    least: int = 0  # the smallest part of all looks

    @property
    def ratio(self) -> float:
        """``other``, less what came, over what was held before; the promise is 1."""
        return 1 + self.off / self.before.held

    @property
    def off(self) -> int:
        """What of ``other`` nobody explains, in bytes."""
        return self.alone - self.before.held

    @property
    def ratio_without_lists(self) -> float:
        """The same with free pages counted as used, before and after."""
        return (self.alone + self.parts["free_lists"]) / self.before.used

    def faults(self) -> list[str]:
        """Which promises were broken, in words; none: all hold."""
        found = []
        if abs(self.ratio - 1) > MOST_OFF:
            found.append(f"other is {self.ratio:.2f} of what was held before")
        if self.gap > MOST_GAP:
            found.append(f"the parts miss what is used by {self.gap:.1%}")
        if self.least < 0:
            found.append("a part is negative")
        return found

    def line(self) -> str:
        """The start in words, sizes in MiB."""
        parts = " ".join(f"{name} {n_bytes / MIB:.0f}" for name, n_bytes in self.parts.items())
        return (
            f"{self.profile:<5} before: held {self.before.held / MIB:.0f} free_lists "
            f"{self.before.on_lists / MIB:.0f} | with it: {parts} | others came by "
            f"{self.came / MIB:+.0f} | other / before {self.ratio:.3f}, {self.off / MIB:+.0f} MiB "
            f"(free pages as used: {self.ratio_without_lists:.2f})"
            + "".join(f" | FAULT: {fault}" for fault in self.faults())
        )


def machine() -> Machine:
    """How it is now."""
    lines = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    told = {name: int(value.split()[0]) * 1024 for name, value in lines}
    try:
        lists = _COUNT.findall(Path("/proc/zoneinfo").read_text())
    except OSError:
        lists = []
    return Machine(
        told["MemTotal"] - told["MemAvailable"],
        sum(map(int, lists)) * mmap.PAGESIZE,
        told["AnonPages"] + told["Shmem"],
    )


def measure(profile: str) -> Start:
    """Start it, look, end it; raises ``bench.engines.ServerError`` where it does not start."""
    before = _median([machine() for _ in _looks()])
    with scratch.folder() as folder:
        command = [sys.executable, "-m", "slotwise.launcher.cli", "serve", profile]
        command += ["--port", str(engines.free_port()), "--state-dir", str(folder)]
        with engines.running(command) as server, httpx.Client(base_url=server.url) as client:
            _settled(client, profile)
            seen = [_look(client, server.pid, before) for _ in _looks()]
    parts = {name: _middle([one[0][name] for one in seen]) for name in seen[0][0]}
    came = _middle([one[1] for one in seen])
    alone = _middle([one[0]["other"] - one[1] for one in seen])
    gap, least = max(one[2] for one in seen), min(min(one[0].values()) for one in seen)
    return Start(profile, before, parts, came, alone, gap, least)


def _look(client: httpx.Client, pid: int, before: Machine) -> tuple[dict[str, int], int, float]:
    """Who holds what, what others came by, and by how much the parts miss what is used."""
    memory, now = _memory(client), machine()
    parts: dict[str, int] = memory["parts"]
    used = memory["total_bytes"] - memory["available_bytes"]
    came = now.processes - _family_bytes(pid) - before.processes
    return parts, came, abs(sum(parts.values()) - used) / used


def _memory(client: httpx.Client) -> Any:
    return client.get("/slotwise/status", timeout=10).json()["memory"]


def _settled(client: httpx.Client, profile: str) -> None:
    """Return once its engine is among the parts and none of ours grows; the start goes on behind
    the ready line. Raises ``ServerError`` after SETTLE_LIMIT_S."""
    until = time.monotonic() + SETTLE_LIMIT_S
    held, since = 0, time.monotonic()
    while time.monotonic() < until:
        parts = _memory(client)["parts"]
        ours = sum(n for name, n in parts.items() if name not in ("other", "free_lists"))
        if not parts.get(profile) or abs(ours - held) > SETTLED_BYTES:
            held, since = ours, time.monotonic()
        elif time.monotonic() - since > SETTLED_S:
            return
        time.sleep(LOOK_EVERY_S)
    raise engines.ServerError(f"{profile} still grows after {SETTLE_LIMIT_S:g} s")


def _family_bytes(pid: int) -> int:
    """The pages of a process and of all that it started, but for those of files."""
    process = psutil.Process(pid)
    total = 0
    for one in (process, *process.children(recursive=True)):
        try:
            told = Path(f"/proc/{one.pid}/smaps_rollup").read_text()
        except OSError:  # it has just ended
            continue
        total += sum(map(int, _PSS.findall(told))) * 1024
    return total


def _looks() -> Iterator[int]:
    for number in range(LOOKS):
        yield number
        time.sleep(LOOK_EVERY_S)


def _median(looks: Sequence[Machine]) -> Machine:
    """The one in the middle, by what is held."""
    return sorted(looks, key=lambda look: look.held)[len(looks) // 2]


def _middle(values: Sequence[int]) -> int:
    return round(statistics.median(values))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; status 1 where a promise was broken or a server did not start."""
    parser = parser_of("slotwise.bench.memory_other", __doc__)
    parser.add_argument("--starts", type=count, default=3, help="of each profile (%(default)s)")
    parser.add_argument("--profiles", nargs="+", default=PROFILES, choices=PROFILES)
    given = parser.parse_args(arguments)
    if not 1 <= given.starts <= MOST_STARTS:
        parser.error(f"--starts: expected 1 to {MOST_STARTS}, got {given.starts}")
    faults = 0
    for profile in given.profiles:
        for _ in range(given.starts):
            try:
                start = measure(profile)
            except (engines.ServerError, httpx.HTTPError) as error:
                print(f"memory_other: {error}", file=sys.stderr)
                return 1
            print(start.line(), flush=True)
            faults += len(start.faults())
    print("every start held" if not faults else f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

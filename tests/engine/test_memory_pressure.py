"""Real memory, really short: another process takes it while eight clients stream."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from slotwise.policies.admission import Limits
from slotwise.policies.params import from_mapping
from slotwise.proxy.core.events import Dispatch, MemorySampled
from slotwise.proxy.core.memory import Member, MemoryRules
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.memory.meminfo import MemInfo
from slotwise.proxy.telemetry.journal import read
from tests.support import Slotwise, wait_until

GIB = 2**30
LEAST_GIB = 6.0  # on a smaller machine 2 GiB would be felt by others
CLIENTS = 8
POLICY = {"max_running": 4}
HARD_FLOOR_GIB = 0.5
# Takes 256 MiB for every line it is sent, and ends with its input, whatever becomes of the test.
HOG = """
import sys
held = []
for line in sys.stdin:
    held.append(b"x" * (256 * 2**20))
    print(len(held), flush=True)
"""


@contextmanager
def hog() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def take(process: subprocess.Popen[str], pieces: int) -> None:
    """So many pieces more, and they are taken."""
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(pieces):
        process.stdin.write("more\n")
        process.stdin.flush()
        assert process.stdout.readline()


class Client(threading.Thread):
    """Streams one chat after the other until it is told to stop; keeps what it saw."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__(daemon=True)
        self.url, self.number = url, number
        self.stop = threading.Event()
        self.answers = 0
        self.comments: set[str] = set()
        self.problems: list[str] = []

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._ask()
            except httpx.HTTPError as error:
                self.problems.append(repr(error))
                return

    def _ask(self) -> None:
        text = f"client {self.number} asks question {self.answers}"
        body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 32}
        url = f"{self.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=90) as response:
            lines = [self._seen(line) for line in response.iter_lines() if line]
        if response.status_code != httpx.codes.OK or lines[-1] != "data: [DONE]":
            self.problems.append(f"{response.status_code} {lines[-1:]}")
        self.answers += 1

    def _seen(self, line: str) -> str:
        if line.startswith(": waiting: memory"):
            self.comments.add(line)
        return line


@pytest.mark.slow
@pytest.mark.timeout(300)  # each wait in it has its own bound
def test_below_the_floor_nothing_starts_nobody_is_lost_and_all_are_served_after(
    tmp_path: Path,
) -> None:
    available = MemInfo().read().available_bytes or 0
    if available < LEAST_GIB * GIB:
        pytest.skip(f"{available / GIB:.1f} GiB available, {LEAST_GIB:g} needed")
    floor = available - round(1.5 * GIB)
    journal = tmp_path / "journal"
    files = ("--state-dir", tmp_path / "state", "--journal", journal)
    with Slotwise(_profile(tmp_path, floor), *files) as s, hog() as other:
        clients = [Client(s.url, n) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        wait_until(lambda: all(c.answers for c in clients), 30, "an answer for each")
        take(other, 8)
        while _available(s.url) > floor - GIB // 8:  # others gave some back meanwhile
            take(other, 1)
        wait_until(lambda: _waiting(s.url) == CLIENTS, 30, "all eight wait for memory")
        wait_until(lambda: all(_told(s.url)), 10, "why is in the status")
        served = [c.answers for c in clients]
        wait_until(lambda: all(c.comments for c in clients), 40, "each is told why, in a comment")
        assert [c.answers for c in clients] == served
        other.kill()
        wait_until(
            lambda: all(c.answers > n + 1 for c, n in zip(clients, served, strict=True)),
            60,
            "all are served after the release",
        )
        for client in clients:
            client.stop.set()
        for client in clients:
            client.join(30)
    assert [c.problems for c in clients] == [[]] * CLIENTS
    for client in clients:
        assert all("memory is almost full (MemAvailable" in line for line in client.comments)
    _nothing_started_below(journal, floor)


def _profile(folder: Path, floor: int) -> Path:
    path = folder / "main.yaml"
    server = {"binary": "embedded", "model": "embedded:tiny", "parallel": 4, "ctx_size": 8192}
    memory = {"floor_gib": floor / GIB, "hard_floor_gib": HARD_FLOOR_GIB, "sample_s": 0.1}
    tuned = {**server, "threads": 1}
    whole = {"name": "main", "server": tuned, "memory": memory, "policy": POLICY}
    path.write_text(json.dumps(whole))
    return path


def _available(url: str) -> int:
    found: int = httpx.get(f"{url}/slotwise/status").json()["memory"]["available_bytes"]
    return found


def _told(url: str) -> list[str]:
    waiting = httpx.get(f"{url}/slotwise/status").json()["profiles"]["main"]["waiting"]
    return [w["text"] if w["reason"] == "memory" else "" for w in waiting]


def _waiting(url: str) -> int:
    return sum(1 for text in _told(url) if text)


def _nothing_started_below(journal: Path, floor: int) -> None:
    """By the scheduler's own journal: each dispatch with the sample before it. Replayed, it decides
    the same."""
    available, below, dispatched = None, 0, 0
    rules = MemoryRules(Limits(floor / GIB, HARD_FLOOR_GIB), (Member("main"),))
    again = Scheduler({"main": from_mapping(POLICY)[0]}, rules)
    for now, event, actions in read(journal):
        assert again.handle(event, now) == actions
        if isinstance(event, MemorySampled):
            available = event.available_bytes
            below += available is not None and available < floor
        for action in actions:
            if isinstance(action, Dispatch):
                dispatched += 1
                assert available is not None
                assert available >= floor
    assert below >= 10
    assert dispatched >= 3 * CLIENTS

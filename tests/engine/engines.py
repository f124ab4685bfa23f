"""Starts real engines for tests: the embedded one, and a llama-server where one is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

EMBEDDED = (sys.executable, "-m", "slotwise.launcher.process.embedded")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


def commands() -> dict[str, tuple[str, ...]]:
    """Every engine at hand, by name."""
    found: dict[str, tuple[str, ...]] = {"embedded": EMBEDDED}
    binary = shutil.which("llama-server")
    if binary:
        found["llama-server"] = (binary,)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class RunningEngine:
    """One engine process, healthy; its log is a file."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **kwargs)

    def post(self, path: str, body: dict[str, Any], **kwargs: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **kwargs)

    @contextmanager
    def stream(self, path: str, body: dict[str, Any]) -> Iterator[httpx.Response]:
        with httpx.stream("POST", self.url + path, json=body, timeout=60) as response:
            yield response

    def stop(self) -> int:
        """SIGTERM, a second one, then SIGKILL; returns the exit code."""
        for end in (self.process.terminate, self.process.terminate, self.process.kill):
            if self.process.poll() is None:
                end()
            try:
                return self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                continue
        return self.process.wait(STOP_LIMIT_S)


def start(command: tuple[str, ...], model: Path, log: Path, *flags: str) -> RunningEngine:
    """A healthy engine on a port of its own; raises AssertionError with its log otherwise."""
    port = free_port()
    line = [*command, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), *flags]
    with log.open("wb") as sink:
        process = subprocess.Popen(line, stdout=sink, stderr=sink)
    engine = RunningEngine(process, f"http://127.0.0.1:{port}", log)
    bound = time.monotonic() + START_LIMIT_S
    while time.monotonic() < bound and process.poll() is None:
        try:
            if engine.get("/health").status_code == 200:
                return engine
        except httpx.TransportError:
            pass
        time.sleep(0.02)
    engine.stop()
    raise AssertionError(f"{line} did not get healthy:\n{log.read_text(errors='replace')[-3000:]}")

"""What tests share: bounded waiting, traces, processes ended by their pid, the stub engine.

Nothing here sleeps as proof: a test waits for a condition, and fails with what it waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import psutil
import pytest

from tests.stub_config import Config

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 30.0
STOP_LIMIT_S = 10.0
_POLL_S = 0.01
T = TypeVar("T")

# ---------------------------------------------------------------- waiting


def wait_until(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "") -> T:
    """The first true value of ``condition``; an ``AssertionError`` after ``timeout_s``."""
    bound = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < bound, f"not within {timeout_s} s: {what or _source(condition)}"
        time.sleep(_POLL_S)
    return value


async def wait_until_async(
    condition: Callable[[], T | Awaitable[T]], timeout_s: float = 10.0, what: str = ""
) -> T:
    """The same inside an event loop; the condition may be a coroutine function."""
    bound = time.monotonic() + timeout_s
    while True:
        found = condition()
        value: Any = await found if inspect.isawaitable(found) else found
        if value:
            return value  # type: ignore[no-any-return]
        assert time.monotonic() < bound, f"not within {timeout_s} s: {what or _source(condition)}"
        await asyncio.sleep(_POLL_S)


def _source(condition: Callable[[], Any]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)


# ---------------------------------------------------------------- traces


def traces_dir() -> Path:
    """Where recorded conversations lie: ``SLOTWISE_TRACES``, else ``../shared/traces``."""
    given = os.environ.get("SLOTWISE_TRACES")
    return Path(given) if given else ROOT.parent / "shared" / "traces"


def trace(name: str) -> Path:
    """The path of one trace; skips the test, with the missing file's name, if it is not there."""
    path = traces_dir() / name
    if not path.is_file():
        pytest.skip(f"trace {path} is not there (SLOTWISE_TRACES names the folder)")
    return path


# ---------------------------------------------------------------- processes


class Process:
    """A child process; its output goes to a file, so that it never blocks on a full pipe."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self.command = [str(part) for part in command]
        self._log = tempfile.NamedTemporaryFile(prefix="slotwise-test-", suffix=".log")  # noqa: SIM115
        self.popen = subprocess.Popen(
            self.command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def wait_for_line(self, start: str, timeout_s: float = START_LIMIT_S) -> str:
        """The rest of the first output line that begins with ``start``."""

        def found() -> str | None:
            lines = [line for line in self.output.splitlines() if line.startswith(start)]
            assert lines or self.popen.poll() is None, f"{self.command} ended:\n{self.output}"
            return lines[0] if lines else None

        line = wait_until(found, timeout_s, f"a line {start!r} of {self.command}")
        assert line is not None
        return line.removeprefix(start).strip()

    def stop(self, timeout_s: float = STOP_LIMIT_S) -> int:
        """TERM, then KILL after ``timeout_s``; returns the exit status. May be called twice."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait(STOP_LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._log.close()


def open_fds(pid: int | None = None) -> int:
    """Open file descriptors of a process; of this one without a pid."""
    return psutil.Process(pid).num_fds()


# ---------------------------------------------------------------- the stub engine


class StubServer(Process):
    """A stub engine process. Settings are fields of ``tests.stub_config.Config``:
    ``StubServer(slots=2, prefill_tps=1000.0)``; later ones go to :meth:`configure`."""

    def __init__(self, *flags: str, **settings: Any) -> None:
        super().__init__([*_STUB, *flags, *_as_flags(settings)])
        try:
            self.url = self.wait_for_line("listening on ")
        except BaseException:
            self.__exit__()
            raise
        self._client = httpx.Client(base_url=self.url, timeout=30)

    def configure(self, **settings: Any) -> None:
        """Change its behaviour now."""
        self._client.post("/stub/config", json=settings).raise_for_status()

    def log(self) -> dict[str, Any]:
        """What it saw, see ``tests/stub_server.py``."""
        told: dict[str, Any] = self._client.get("/stub/log").raise_for_status().json()
        return told

    def requests(self) -> list[dict[str, Any]]:
        """Every generating request it was sent, in order of arrival."""
        return list(self.log()["requests"])

    def clear(self) -> None:
        """Forget what it saw; the slots keep what they hold."""
        self._client.post("/stub/clear").raise_for_status()

    def empty(self) -> None:
        """Empty every slot; needs ``slot_save_path``, as with llama-server."""
        for id_slot in range(len(self._client.get("/stub/slots").json())):
            self._client.post(f"/slots/{id_slot}?action=erase").raise_for_status()

    def as_new(self, **settings: Any) -> Self:
        """Its defaults but for ``settings``, once it is idle; every slot empty, nothing seen.

        So one process can serve many tests: starting one takes longer than most of them.
        """
        wanted = asdict(Config()) | settings
        self.configure(**wanted | {"slot_save_path": "/unused"})
        wait_until(lambda: not self.busy(), what="idle slots of a shared stub")
        self.empty()
        self.configure(slot_save_path=wanted["slot_save_path"])
        self.clear()
        return self

    def busy(self) -> list[int]:
        """The slots at work, asked past the log."""
        return [s["id"] for s in self._client.get("/stub/slots").json() if s["is_processing"]]

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        super().__exit__()


_STUB = (sys.executable, "-m", "tests.stub_server")


def _as_flags(settings: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag}={value}")
    return flags


def stub_binary(folder: Path, **settings: Any) -> Path:
    """A program that starts the stub with these settings, for a profile's ``server.binary``.

    It takes llama-server's command line; what the stub has no use for is ignored.
    """
    path = folder / "stub-llama-server"
    line = shlex.join([*_STUB, *_as_flags(settings)])
    path.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {line} "$@"\n')
    path.chmod(0o755)
    return path


# ---------------------------------------------------------------- the command


def attach_profile(folder: Path, url: str, name: str = "p", **policy: Any) -> Path:
    """A profile for the stub at ``url`` with its defaults; ``policy``: sections of the rules."""
    path = folder / f"{name}.yaml"
    server = {"attach": url, "parallel": 4, "kv_unified": False, "cache_ram_mib": 0}
    # JSON is YAML
    path.write_text(json.dumps({"name": name, "server": server, "policy": policy}))
    return path


class Slotwise(Process):
    """``slotwise serve`` as its own process, ready and on a port of its own."""

    def __init__(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        line = [sys.executable, "-m", "slotwise.launcher.cli.command", "serve"]
        super().__init__([*line, *map(str, arguments), "--port", "0"], env)
        try:
            self.url = self.wait_for_line("slotwise ready on ")
        except BaseException:
            self.__exit__()
            raise

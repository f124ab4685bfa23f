"""One child process: own group, dies with us, output always drained, ended within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import psutil

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def dying_with_us() -> Callable[[], None]:
    """For ``preexec_fn`` of the child started next; one system call: safe beside threads."""
    parent = os.getpid()

    def in_the_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return in_the_child


MAX_BYTES = 8 * 2**20
MAX_LINE_BYTES = 8192
_CUT = b" ... (line cut)\n"
_RECENT_LINES = 400  # a debugger's backtrace may follow an engine's own last words


class RotatingLog:
    """Takes bytes as they come; writes whole lines to ``path``, the older ones in ``path``.1."""

    def __init__(
        self,
        path: Path,
        max_bytes: int = MAX_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        seen: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``seen`` is told each line, in the thread that feeds; it must not raise."""
        self.path = path
        self._seen = seen
        self._max_bytes, self._max_line_bytes = max_bytes, max_line_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._line = bytearray()
        self._cutting = False  # inside a line that is too long: its rest is dropped
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)

    def recent(self) -> list[str]:
        """The last lines, for an error message."""
        return list(self._recent)

    def feed(self, data: bytes) -> None:
        """Takes a chunk of output; a chunk need not end with a line."""
        for piece in data.splitlines(keepends=True):
            ended = piece.endswith((b"\n", b"\r"))
            if not self._cutting:
                room = self._max_line_bytes - len(self._line)
                self._line += piece[:room]
                if len(piece) > room:
                    self._cutting = True
                    self._write(bytes(self._line) + _CUT)
                elif ended:
                    self._write(bytes(self._line))
            if ended:
                self._line.clear()
                self._cutting = False

    def close(self) -> None:
        """Writes the last line even if it has no end."""
        if self._line and not self._cutting:
            self._write(bytes(self._line) + b"\n")
        self._line.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _write(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if text:
            self._recent.append(text)
            self._seen(text)
        try:
            if self._file is None or self._size + len(line) > self._max_bytes:
                self._rotate()
            assert self._file is not None
            self._file.write(line)
            self._size += len(line)
        except OSError:  # a full disk: the child goes on, its log does not
            self._file = None

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self._max_bytes // 2:
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))
            size = 0
        # Unbuffered: the log of an engine that was killed must be complete.
        self._file = self.path.open("ab", buffering=0)
        self._size = size


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


TERM_LIMIT_S = 5.0
SECOND_TERM_LIMIT_S = 3.0
KILL_LIMIT_S = 5.0
DRAIN_LIMIT_S = 0.2  # the event loop waits meanwhile
_CHUNK_BYTES = 65536


class Child:
    """A running child; ``exit`` is its exit code once it is reaped."""

    def __init__(self, process: subprocess.Popen[bytes], log: RotatingLog, pids: Path) -> None:
        loop = asyncio.get_running_loop()
        self.pid = process.pid
        self.log = log
        self.exit: asyncio.Future[int] = loop.create_future()
        self._process = process
        self._pid_file = pids
        self._pidfd = os.pidfd_open(process.pid)
        assert process.stdout is not None
        self._drain = threading.Thread(
            target=_drain, args=(process.stdout, log), name=f"drain-{self.pid}", daemon=True
        )
        self._drain.start()
        loop.add_reader(self._pidfd, self._reap)

    def signal(self, number: signal.Signals) -> None:
        """Signals the child's group; nothing happens once it is reaped."""
        if not self.exit.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(
        self,
        term_limit_s: float = TERM_LIMIT_S,
        second_term_limit_s: float = SECOND_TERM_LIMIT_S,
        kill_limit_s: float = KILL_LIMIT_S,
    ) -> bool:
        """Ends it; False if even SIGKILL did not within its limit (a process stuck in a driver)."""
        for number, limit_s in (
            (signal.SIGTERM, term_limit_s),
            (signal.SIGTERM, second_term_limit_s),
            (signal.SIGKILL, kill_limit_s),
        ):
            self.signal(number)
            await asyncio.wait({self.exit}, timeout=limit_s)
            if self.exit.done():
                return True
        return False

    def _reap(self) -> None:
        """Called by the loop when the child has ended, while its pid is still held as a zombie."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what it started itself must not outlive it
        code = self._process.wait()
        remove(self._pid_file)
        self._drain.join(DRAIN_LIMIT_S)  # its last words, before anyone is told
        self.exit.set_result(code)


def spawn(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: RotatingLog, pids: Path
) -> Child:
    """Starts a child; raises OSError where the program cannot be run."""
    process = subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=dying_with_us(),
    )
    try:
        write(pids, process.pid, argv)
    except OSError:  # a child that no later start could find again must not run
        process.kill()
        process.wait(KILL_LIMIT_S)
        raise
    return Child(process, log, pids)


def _drain(pipe: BinaryIO, log: RotatingLog) -> None:
    """Reads until the last writer is gone, whatever becomes of the log."""
    with pipe:
        while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
            log.feed(chunk)
    log.close()


def describe_exit(code: int) -> str:
    """An exit code as a reader knows it."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"exited with code {code}"

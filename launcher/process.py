"""One child process: own group, dies with us, output always drained, ended within a bound.

* It leads a session of its own, so that Ctrl-C in the terminal reaches slotwise alone, which then
  ends the engine in the right order.
* The kernel kills it should slotwise die. That is bound to the *thread* that starts it, hence
  spawn() runs in the event loop's thread and never in a pool.
* It is ended by SIGTERM, a second SIGTERM (llama-server waits for open connections on the first
  and leaves on the second), then SIGKILL to the whole group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from slotwise.launcher import pid_file
from slotwise.launcher.log_file import RotatingLog
from slotwise.launcher.parent_death import dying_with_us

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

    def __repr__(self) -> str:
        state = self.exit.result() if self.exit.done() else "running"
        return f"<Child {self.pid} {state}>"

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
        pid_file.remove(self._pid_file)
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
        pid_file.write(pids, process.pid, argv)
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

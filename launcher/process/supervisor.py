"""Keeps engines running: start, ready, watch, and again after a growing delay."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import secrets
import shlex
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

import httpx

from slotwise.launcher.process import process
from slotwise.launcher.process.process import RotatingLog


class LossCause(StrEnum):
    """Why an engine is lost, in a word: a label of a metric."""

    NOT_STARTED = "not_started"
    NOT_READY = "not_ready"
    REFUSED = "refused"
    EXITED = "exited"
    SILENT = "silent"
    HUNG = "hung"
    UNLOADED = "unloaded"  # it gave way, or starts again smaller, for want of memory


@dataclass(frozen=True, slots=True)
class EngineLoss:
    """The cause, and the whole story in one line."""

    cause: LossCause
    text: str


class EngineEvents(Protocol):
    """Between ``on_ready`` and ``on_lost`` an engine is in use; lost is told before a new start."""

    def on_starting(self, engine: str, text: str) -> None:
        """It is on its way; ``text`` says how far."""

    def on_ready(self, engine: str, url: str, api_key: str) -> Awaitable[None]:
        """It serves. Awaited; an exception counts as a failure of the engine."""

    def on_lost(self, engine: str, loss: EngineLoss) -> None:
        """It no longer serves, or did not start."""

    def on_log_line(self, engine: str, line: str) -> None:
        """It wrote this. Called in another thread; must not raise."""


FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
REPLY_LIMIT_S = 10.0


def client(url: str, api_key: str) -> httpx.AsyncClient:
    """A client for one engine. No proxy from the environment stands between us and loopback."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=REPLY_LIMIT_S, trust_env=False)


async def healthy(engine: httpx.AsyncClient) -> tuple[bool, str]:
    """Whether ``/health`` says 200, and in words what it said; never raises for the engine."""
    status, _ = await _get(engine, "/health")
    if status == 503:
        return False, "loading the model"
    return status == 200, _words("/health", status)


async def serving(engine: httpx.AsyncClient) -> tuple[bool, str]:
    """Whether it is healthy and ``/slots`` replies, and in words what it said."""
    well, text = await healthy(engine)
    if not well:
        return False, text
    status, slots = await _get(engine, "/slots")
    if status == 200 and not isinstance(slots, list):
        return False, "/slots does not answer with a list"
    return status == 200, _words("/slots", status)


async def _get(engine: httpx.AsyncClient, path: str) -> tuple[int | str, object]:
    """Status and JSON, or in words why there is no answer."""
    try:
        response = await engine.get(path)
        return response.status_code, response.json()
    except httpx.TimeoutException:
        return f"no answer within {REPLY_LIMIT_S:g} s", None
    except httpx.HTTPError:
        return "not listening", None
    except ValueError:
        return response.status_code, None


def _words(path: str, status: int | str) -> str:
    return status if isinstance(status, str) else f"{path} answers with status {status}"


async def until_ready(url: str, api_key: str, told: Callable[[str], None]) -> None:
    """Returns once the engine is ready; ``told`` hears each change. The caller sets the bound."""
    pause_s, last = FIRST_PAUSE_S, ""
    async with client(url, api_key) as engine:
        while True:
            ready, text = await serving(engine)
            if ready:
                return
            if text != last:
                told(text)
                last = text
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)


FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
STABLE_AFTER_S = 60.0


@dataclass(slots=True)
class Backoff:
    """The delay before an engine is started again: it doubles with each failure in a row.

    There is always a next try: the model file may come back, memory may get free. The count starts
    over once an engine has served for a while; one that dies on its first request each time is
    ready often and never stable.
    """

    failures: int = 0

    def after(self, served_s: float) -> float:
        """Seconds until the next start of an engine that was lost after serving for so long."""
        self.failures = 1 if served_s >= STABLE_AFTER_S else self.failures + 1
        # The exponent is bounded too: 2.0 ** 2000 is an error, not a long delay.
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self.failures - 1, 16))


log = logging.getLogger(__name__)
_CRASH = re.compile(r"GGML_ASSERT|GGML_ABORT|CUDA error|ggml_\w+: |out of memory|bad_alloc")
_NEAR_ITS_END = 20  # lines of its log
STARTING = "starting"  # what is told right before a process is made
STOP_LIMIT_S = process.TERM_LIMIT_S + process.SECOND_TERM_LIMIT_S + process.KILL_LIMIT_S + 2


class InUseError(RuntimeError):
    """Another slotwise runs an engine of this name from this state directory."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How one engine is started; ``directory`` is its own part of the state directory."""

    name: str
    argv: Callable[[int], Sequence[str]]  # the command line for a port
    env: Callable[[str], dict[str, str]]  # the environment for an API key
    directory: Path
    start_timeout_s: float = 600.0


@dataclass(slots=True)
class _Engine:
    spec: EngineSpec
    lock: TextIO
    ready_at: float | None = None  # when the running process became ready
    child: process.Child | None = None
    restart: asyncio.Future[EngineLoss] | None = None
    task: asyncio.Task[None] | None = None


class Supervisor:
    """All engines of one slotwise. ``now`` is a monotonic clock in seconds."""

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        listener: EngineEvents,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the engines' directories; raises InUseError, OSError."""
        self._listener = listener
        self._now = now
        self._engines: dict[str, _Engine] = {}
        try:
            for spec in specs:
                self._engines[spec.name] = _Engine(spec, _locked(spec))
        except (InUseError, OSError):
            self._unlock()
            raise

    def start(self) -> None:
        """Begins to keep every engine running."""
        for name in self._engines:
            self.load(name)

    def load(self, name: str) -> None:
        """Begins to keep one engine running; nothing where that is so."""
        engine = self._engines[name]
        if engine.task is None or engine.task.done():
            engine.task = asyncio.create_task(self._keep(engine), name=f"engine {name}")

    async def unload(self, name: str, why: str) -> bool:
        """Ends one engine, which stays ended until :meth:`load`. False: it was not kept running.

        Told as lost before it is ended, so that nobody uses it meanwhile."""
        engine = self._engines[name]
        task = engine.task
        if task is None or task.done():
            return False
        self._listener.on_lost(name, EngineLoss(LossCause.UNLOADED, why))
        task.cancel()
        await asyncio.wait({task}, timeout=STOP_LIMIT_S)
        return task.done()

    def pid(self, name: str) -> int | None:
        """The process of an engine; None: it has none."""
        engine = self._engines.get(name)
        return engine.child.pid if engine and engine.child is not None else None

    def restart(self, name: str, reason: str, cause: LossCause = LossCause.HUNG) -> None:
        """Ends an engine that hangs and starts it again; nothing while it is not ready."""
        engine = self._engines.get(name)
        if engine and engine.restart is not None and not engine.restart.done():
            engine.restart.set_result(EngineLoss(cause, f"restarted: {reason}"))

    async def stop(self) -> None:
        """Ends every engine, within STOP_LIMIT_S."""
        tasks = [engine.task for engine in self._engines.values() if engine.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_LIMIT_S)
        self._unlock()

    async def _keep(self, engine: _Engine) -> None:
        """Runs the engine; ends only by cancellation."""
        spec, backoff = engine.spec, Backoff()
        try:
            leftover = await asyncio.to_thread(process.end_leftover, _pids(spec))
            if leftover is not None:
                log.warning("%s: ended pid %d, left behind by an earlier run", spec.name, leftover)
            while True:
                engine.ready_at = None
                loss = await self._one_process(engine)
                served_s = self._now() - engine.ready_at if engine.ready_at is not None else 0.0
                self._listener.on_lost(spec.name, loss)
                await self._end(engine)
                wait_s = backoff.after(served_s)
                log.warning("%s: %s; starts again in %g s", spec.name, loss.text, wait_s)
                text = f"starts again in {wait_s:g} s: {loss.text}"
                self._listener.on_starting(spec.name, text)
                await asyncio.sleep(wait_s)
        finally:
            await self._end(engine)

    async def _one_process(self, engine: _Engine) -> EngineLoss:
        """From the start of a process to why it is over."""
        spec = engine.spec
        port, key = _free_port(), secrets.token_urlsafe(24)
        url = f"http://127.0.0.1:{port}"
        self._listener.on_starting(spec.name, STARTING)
        seen = partial(self._listener.on_log_line, spec.name)
        sink = RotatingLog(spec.directory / "engine.log", seen=seen)
        line = list(spec.argv(port))
        log.info("%s: %s", spec.name, shlex.join(line))
        try:
            child = process.spawn(line, spec.env(key), spec.directory, sink, _pids(spec))
        except OSError as error:
            return EngineLoss(LossCause.NOT_STARTED, f"could not be started: {error}")
        engine.child = child
        log.info("%s: pid %d on %s, log in %s", spec.name, child.pid, url, sink.path)
        failure = await self._until_ready(spec, child, url, key)
        if failure is not None:
            return failure
        engine.ready_at = self._now()
        engine.restart = asyncio.get_running_loop().create_future()
        return await self._while_ready(engine, child, url, key)

    async def _until_ready(
        self, spec: EngineSpec, child: process.Child, url: str, key: str
    ) -> EngineLoss | None:
        """None once it is ready, else why it will not be."""
        started = self._now()

        def told(text: str) -> None:
            waited_s = self._now() - started
            self._listener.on_starting(spec.name, f"{text} ({waited_s:.0f} s)")

        ready = asyncio.create_task(until_ready(url, key, told))
        try:
            either: set[asyncio.Future[Any]] = {ready, child.exit}
            await asyncio.wait(
                either, timeout=spec.start_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if child.exit.done():
            return EngineLoss(LossCause.NOT_STARTED, _last_words(child, "while it started"))
        if ready.done() and not ready.cancelled():
            return None
        text = f"not ready within start_timeout_s, {spec.start_timeout_s:g} s"
        return EngineLoss(LossCause.NOT_READY, text)

    async def _while_ready(
        self, engine: _Engine, child: process.Child, url: str, key: str
    ) -> EngineLoss:
        """Returns the reason once the engine is gone, refused, or to be restarted."""
        assert engine.restart is not None
        accepted = asyncio.ensure_future(self._listener.on_ready(engine.spec.name, url, key))
        waiting: set[asyncio.Future[Any]] = {accepted, child.exit, engine.restart}
        try:
            while True:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if child.exit.done():
                    return EngineLoss(
                        LossCause.EXITED, _last_words(child, "while it served", _CRASH)
                    )
                if engine.restart.done():
                    return engine.restart.result()
                error = accepted.exception()
                if error is not None:
                    log.error("%s: could not be taken into use", engine.spec.name, exc_info=error)
                    return EngineLoss(LossCause.REFUSED, f"could not be taken into use: {error}")
                waiting.discard(accepted)
        finally:
            accepted.cancel()
            engine.restart = None

    async def _end(self, engine: _Engine) -> None:
        """Ends the process, to the end: a cancellation meanwhile waits until it is done."""
        child, engine.child = engine.child, None
        if child is None or child.exit.done():
            return
        ending = asyncio.create_task(child.stop())
        try:
            ended = await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise
        if not ended:
            log.error("%s: pid %d does not end, even by SIGKILL", engine.spec.name, child.pid)

    def _unlock(self) -> None:
        for engine in self._engines.values():
            engine.lock.close()


def _pids(spec: EngineSpec) -> Path:
    return spec.directory / "engine.pid"


def _locked(spec: EngineSpec) -> TextIO:
    """The engine's directory, made and taken; the kernel lets go of it when we die."""
    spec.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (spec.directory / "slots").mkdir(exist_ok=True, mode=0o700)
    lock = (spec.directory / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read(32).strip() or "unknown"
        lock.close()
        raise InUseError(
            f"another slotwise (pid {owner}) runs {spec.name} from {spec.directory}; "
            "give one of them another --state-dir"
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _free_port() -> int:
    """A port that is free now. Should another take it first, the engine exits and is retried."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _last_words(child: process.Child, when: str, only: re.Pattern[str] | None = None) -> str:
    """How the process ended, with the last line it said that looks like a reason.

    ``only``: no line that does not match this. An engine that serves also logs what it refuses,
    with the client's words in it, and this text goes to the status page and to other clients.
    """
    lines = child.log.recent()
    if only is not None:
        told = [line for line in lines[-_NEAR_ITS_END:] if only.search(line)]
    else:
        told = [line for line in lines if _CRASH.search(line)]
        told = told or [line for line in lines if "error" in line.lower() or " E " in line] or lines
    words = f": {told[-1][:300]}" if told else ""
    return f"{process.describe_exit(child.exit.result())} {when}{words}"


PAUSE_S = 2.0  # between looks; also what an engine under load is spared
MISSED_LOOKS = 3  # this many in a row, and it is lost: one slow answer is not an outage


class Attachment:
    """One foreign engine. It can be watched and probed, never started or ended."""

    def __init__(
        self, name: str, url: str, api_key: str, listener: EngineEvents, pause_s: float = PAUSE_S
    ) -> None:
        self.name = name
        self._url, self._api_key = url.rstrip("/"), api_key
        self._listener = listener
        self._pause_s = pause_s
        self._restart = asyncio.Event()
        self._reason = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._task = asyncio.create_task(self._watch(), name=f"attach {self.name}")

    def restart(self, reason: str) -> None:
        """It hangs: taken out of use, and probed anew as soon as it answers."""
        self._reason = reason
        self._restart.set()

    async def stop(self) -> None:
        """Ends the watch; the engine goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _watch(self) -> None:
        while True:
            self._listener.on_starting(self.name, f"waiting for {self._url}")
            await until_ready(self._url, self._api_key, self._told)
            self._restart.clear()
            try:
                await self._listener.on_ready(self.name, self._url, self._api_key)
                loss = await self._lost()
            except Exception as error:
                log.error("%s: could not be taken into use", self.name, exc_info=error)
                loss = EngineLoss(LossCause.REFUSED, f"could not be taken into use: {error}")
            log.warning("%s: %s", self.name, loss.text)
            self._listener.on_lost(self.name, loss)
            await asyncio.sleep(self._pause_s)

    def _told(self, text: str) -> None:
        self._listener.on_starting(self.name, f"{self._url}: {text}")

    async def _lost(self) -> EngineLoss:
        """Returns why it is no longer in use."""
        missed = 0
        async with client(self._url, self._api_key) as engine:
            while missed < MISSED_LOOKS:
                try:
                    await asyncio.wait_for(self._restart.wait(), self._pause_s)
                    return EngineLoss(LossCause.HUNG, f"taken out of use: {self._reason}")
                except TimeoutError:
                    is_healthy, text = await healthy(engine)
                missed = 0 if is_healthy else missed + 1
        return EngineLoss(LossCause.SILENT, f"{self._url}: {text}")

"""The ``slotwise`` command: profiles, engines and the proxy, put together and taken apart.

Order of a start: everything that can be wrong with the arguments and profiles is said first, all
of it; then the address is taken, so that ``/health`` answers at once; then the engines start.
Order of an end: no new connections, running requests get a while, the upstream connections are
closed, and only then the engines are ended: llama-server waits for open connections on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
import uvloop

from slotwise.launcher import wiring
from slotwise.launcher.cli import command_line, configs, status
from slotwise.launcher.cli import explain as ask_why
from slotwise.launcher.cli.command_line import EXIT_FAULT, EXIT_USAGE
from slotwise.launcher.cli.configs import ConfigsError
from slotwise.launcher.engines import Engines
from slotwise.launcher.plan import memory_plan
from slotwise.launcher.plan.fitting import Fit
from slotwise.launcher.plan.starts import Meters, PlanError, Planned
from slotwise.launcher.profile.launch import UsageError
from slotwise.launcher.profile.profile import Profile, ProfileError, SectionCheck, load_all
from slotwise.policies import params
from slotwise.proxy.api import cors, http_protocol
from slotwise.proxy.api.app import create_app
from slotwise.proxy.chat import kinds, normalize
from slotwise.proxy.history import explain
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.telemetry import journal
from slotwise.proxy.telemetry.journal import Journal
from slotwise.proxy.telemetry.request_log import RequestLog

_MOST_FILES = 65_536
COLLECT_AFTER_OBJECTS = 20_000
"""A request leaves a few hundred objects in lists and tables, next to none of them in cycles."""


def raise_fd_limit() -> None:
    """Each stream takes two connections; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))


def spare_the_collector() -> None:
    """What is loaded now stays until the end, so no collection looks at it again. And one request
    in five would wait for a collection, 0.2 ms, by Python's own setting: it may come later."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)


log = logging.getLogger("slotwise")
DRAIN_LIMIT_S = 10  # how long running requests may go on after the first signal
SAME_SIGNAL_S = 0.5  # make, shells and service managers pass one signal on twice
CLOSE_LIMIT_S = 5  # then they are told, and this is for the telling


# What says the faults of each section that belongs to the proxy.
CHECKS: dict[str, SectionCheck] = {
    "policy": lambda given: params.from_mapping(given)[1],
    "normalize": lambda given: normalize.from_mapping(given)[1],
    "kinds": lambda given: kinds.from_mapping(given)[1],
    "explain": lambda given: explain.from_mapping(given)[1],
}


# Commands that ask a running slotwise.
ASKING = {"explain": ask_why.run, "status": status.run_status, "top": status.run_top}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in command_line.MEASURING:
            return _measure(words)
        given = command_line.parser().parse_args(words)
        if given.command in ASKING:
            return ASKING[given.command](given)
        if given.command == "configs":
            return configs.run(given)
        profiles = load_all(given.profiles, CHECKS)
        if given.command in ("check", "plan"):
            return _told(given, profiles)
        return _serve(given, profiles)
    except (ProfileError, PlanError, UsageError, ConfigsError) as error:
        for line in str(error).splitlines():
            print(f"slotwise: {line}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever read our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAULT
    except Exception as error:
        log.debug("unexpected", exc_info=True)
        told = f"{type(error).__name__}: {error}"
        print(f"slotwise: internal error: {told} (--log-level debug tells more)", file=sys.stderr)
        return EXIT_FAULT


def _measure(words: list[str]) -> int:
    """A command of the ``bench`` extra, which a server does without."""
    parser = argparse.ArgumentParser(prog="slotwise")
    commands = parser.add_subparsers(dest="command")
    try:
        if words[0] == "replay":
            from slotwise.bench.run import replay

            replay.add_parser(commands)
            return replay.run(parser.parse_args(words), journal.read)
        if words[0] == "bench":
            from slotwise.bench.suite import suite

            suite.add_parser(commands)
            return suite.run(parser.parse_args(words))
        from slotwise.bench.sim import simulate

        simulate.add_parser(commands)
        return simulate.run(parser.parse_args(words))
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"{words[0]} needs the package {missing.name}, which is not installed: "
            "pip install 'slotwise[bench]'"
        ) from None


def _told(given: Namespace, profiles: Sequence[Profile]) -> int:
    """What ``check`` and ``plan`` print; status 1 where it does not fit the memory."""
    state_dir = given.state_dir or command_line.default_state_dir()
    outcome = memory_plan.outcome(profiles, state_dir, wiring.machine_of(profiles))
    texts = [outcome.text]
    if given.command == "check":
        texts = [command_line.describe(served) for served in profiles] + texts
    print("\n\n".join(texts))
    return EXIT_FAULT if outcome.fit is Fit.TOO_BIG else 0


def _serve(given: Namespace, profiles: Sequence[Profile]) -> int:
    logging.basicConfig(
        level=given.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(message)s",
    )
    for chatty in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))
    raise_fd_limit()
    keys = _keys(profiles)
    origins = _origins(given.cors_origin, bool(keys))
    listening = _listen(given.host, given.port, bool(keys))
    state_dir = given.state_dir or command_line.default_state_dir()
    try:
        written = Journal(given.journal) if given.journal else None
    except OSError as error:
        raise UsageError(f"--journal {given.journal}: {error.strerror}") from error
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        request_log = RequestLog(state_dir / "requests.jsonl")
    except OSError as error:
        raise UsageError(f"--state-dir {state_dir}: {error.strerror}") from error
    outcome = memory_plan.outcome(profiles, state_dir, wiring.machine_of(profiles))
    if outcome.fit is Fit.TOO_BIG and not given.ignore_plan:
        print(f"{outcome.text}\n\nslotwise: not started (--ignore-plan does)", file=sys.stderr)
        return EXIT_FAULT
    is_calm = outcome.fit in (Fit.FITS, Fit.APART)
    log.log(logging.INFO if is_calm else logging.WARNING, "memory: %s", outcome.summary)
    by_name = {one.profile.name: one for one in outcome.planned}
    kept = [explain.from_mapping(p.sections["explain"])[0].keep_mib for p in profiles]
    driver = Driver(
        [wiring.served(profile, by_name.get(profile.name)) for profile in profiles],
        journal=written,
        **wiring.memory(profiles, by_name),
        request_log=request_log,
        keep_bytes=sum(kept) * 2**20,
    )
    meminfo = wiring.meminfo(profiles)
    meters = Meters(outcome.planned, lambda: meminfo.read().available_bytes)
    spare_the_collector()
    return uvloop.run(
        _serve_until_signal(driver, profiles, keys, origins, listening, state_dir, meters, by_name)
    )


async def _serve_until_signal(
    driver: Driver,
    profiles: Sequence[Profile],
    keys: dict[str, str],
    origins: Sequence[str],
    listening: socket.socket,
    state_dir: Path,
    meters: Meters,
    by_name: Mapping[str, Planned],
) -> int:
    engines = Engines(driver, profiles, state_dir, command_line.url_of(listening), meters, by_name)
    driver.engines.on_hung = engines.restart
    app = create_app(driver, keys, cors_origins=origins)
    config = uvicorn.Config(
        app,
        http=http_protocol.Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,  # the client's address is who asks: nobody else may name it
        server_header=False,
        timeout_graceful_shutdown=DRAIN_LIMIT_S + CLOSE_LIMIT_S,
    )
    server = _Server(config, driver, app.live.close)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end, number)
    driver.memory.pid_of = engines.pid
    engines.start()  # first: the main models before the first sample lets small ones load
    driver.memory.start()
    try:
        await server.serve([listening])
    finally:
        await server.close_upstream(0)
        await engines.stop()
    return 0


class _Server(uvicorn.Server):
    """uvicorn, with the signals in our hands: it would raise them again at its end."""

    def __init__(
        self, config: uvicorn.Config, driver: Driver, close_pages: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._driver = driver
        self._close_pages = close_pages
        self._ending: asyncio.Task[None] | None = None
        self._first_signal_at: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self, number: signal.Signals) -> None:
        """The first signal lets running requests end for a while, the second does not."""
        first_at, now = self._first_signal_at, time.monotonic()
        self._first_signal_at = now if first_at is None else first_at
        if first_at is not None and now - first_at < SAME_SIGNAL_S:
            return
        self.force_exit = self.should_exit
        self.should_exit = True
        self._close_pages()
        wait = "again: ends at once" if self.force_exit else f"requests get {DRAIN_LIMIT_S} s"
        log.info("%s: %s", number.name, wait)
        if self._ending is None:
            self._ending = asyncio.create_task(self.close_upstream(DRAIN_LIMIT_S))

    async def close_upstream(self, after_s: float) -> None:
        """Lets go of the engines; whoever still waits or reads gets an error and an end."""
        await asyncio.sleep(after_s)
        await self._driver.close()


def _keys(profiles: Sequence[Profile]) -> dict[str, str]:
    """The keys of all profiles; each opens all of them."""
    keys: dict[str, str] = {}
    for profile in profiles:
        for name, key in profile.api_keys.items():
            if keys.setdefault(name, key) != key:
                raise UsageError(f"{profile.path}: api_keys_file: another key is called {name!r}")
    return keys


def _origins(given: Sequence[str], has_keys: bool) -> list[str]:
    """Whose web pages may use the models; raises UsageError."""
    try:
        origins = [cors.origin_of(text) for text in given]
    except ValueError as error:
        raise UsageError(f"--cors-origin: {error}") from error
    if cors.ANY in origins and not has_keys:
        raise UsageError(
            f"--cors-origin {cors.ANY}: expected an api_keys_file in the profile: without keys "
            "every web page that is opened on this machine could use the models"
        )
    return origins


def _listen(host: str, port: int, has_keys: bool) -> socket.socket:
    """A socket that is bound and listens; raises UsageError."""
    try:
        if not has_keys and not command_line.is_loopback(host):
            raise UsageError(
                f"--host {host}: expected a loopback address like 127.0.0.1, "
                "or an api_keys_file in the profile"
            )
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    except OSError as error:
        told = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"cannot listen on {host} port {port}: {told}") from error
    # Accepted connections inherit it. asyncio sets it only on sockets made with the protocol's
    # number; without it the first token waits 40 ms for the client's delayed acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


if __name__ == "__main__":
    sys.exit(main())

"""The ``slotwise`` command: the one place where profiles, engines and the proxy meet.

Order of a start: everything that can be wrong with the arguments and profiles is said first, all
of it; then the address is taken, so that ``/health`` answers at once; then the engines start.
Order of an end: no new connections, running requests get a while, the upstream connections are
closed, and only then the engines are ended: llama-server waits for open connections on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from launcher import argv, cache_size, command_line, gguf_header, memory_plan, residents, status
from launcher import explain as ask_why
from launcher.attach import Attachment
from launcher.command_line import EXIT_FAULT, EXIT_USAGE
from launcher.fitting import Fit
from launcher.listener import Cause, Loss
from launcher.machine import Machine
from launcher.meters import Meters
from launcher.planned import PlanError, Planned
from launcher.profile import Profile, ProfileError, SectionCheck, load_all
from launcher.residency import Headroom
from launcher.residents import Residents
from launcher.roles import Patience, Role, Roles
from launcher.settings import AttachedServer, LaunchedServer
from launcher.supervisor import STARTING, EngineSpec, InUseError, Supervisor
from policies import params
from policies.admission import Growth, Limits
from proxy import cors, explain, journal, kinds, normalize
from proxy.app import create_app
from proxy.driver import Driver, ServedProfile
from proxy.encoders import Source
from proxy.events import Level, Reclaim
from proxy.fim import InfillFlags
from proxy.journal import Journal
from proxy.ledger import Ledger
from proxy.meminfo import MemInfo
from proxy.memory import MemoryWatch
from proxy.memory_gate import MemoryRules
from proxy.process_memory import own_bytes
from proxy.reclaiming import Member

log = logging.getLogger("slotwise")
DRAIN_LIMIT_S = 10  # how long running requests may go on after the first signal
SAME_SIGNAL_S = 0.5  # make, shells and service managers pass one signal on twice
LEAST_CACHE_MIB = 512  # a RAM cache below this is given up rather than halved
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


class UsageError(Exception):
    """Something the user can put right; one line, exit status 2."""


class RefusedError(RuntimeError):
    """The proxy did not take an engine into use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words and words[0] in command_line.MEASURING:
            return _measure(words)
        given = command_line.parser().parse_args(words)
        if given.command in ASKING:
            return ASKING[given.command](given)
        profiles = load_all(given.profiles, CHECKS)
        if given.command in ("check", "plan"):
            return _told(given, profiles)
        return _serve(given, profiles)
    except (ProfileError, PlanError, UsageError) as error:
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
            from bench import replay

            replay.add_parser(commands)
            return replay.run(parser.parse_args(words), journal.read)
        if words[0] == "bench":
            from bench import suite

            suite.add_parser(commands)
            return suite.run(parser.parse_args(words))
        from bench import simulate

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
    outcome = memory_plan.outcome(profiles, state_dir, _machine(profiles))
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
    _raise_fd_limit()
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
        ledger = Ledger(state_dir / "requests.jsonl")
    except OSError as error:
        raise UsageError(f"--state-dir {state_dir}: {error.strerror}") from error
    outcome = memory_plan.outcome(profiles, state_dir, _machine(profiles))
    if outcome.fit is Fit.TOO_BIG and not given.ignore_plan:
        print(f"{outcome.text}\n\nslotwise: not started (--ignore-plan does)", file=sys.stderr)
        return EXIT_FAULT
    is_calm = outcome.fit in (Fit.FITS, Fit.APART)
    log.log(logging.INFO if is_calm else logging.WARNING, "memory: %s", outcome.summary)
    by_name = {one.profile.name: one for one in outcome.planned}
    kept = [explain.from_mapping(p.sections["explain"])[0].keep_mib for p in profiles]
    driver = Driver(
        [_served(profile, by_name.get(profile.name)) for profile in profiles],
        journal=written,
        **_memory(profiles, by_name),
        ledger=ledger,
        keep_bytes=sum(kept) * 2**20,
    )
    meminfo = _meminfo(profiles)
    meters = Meters(outcome.planned, lambda: meminfo.read().available_bytes)
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
    engines = _Engines(driver, profiles, state_dir, _url(listening), meters, by_name)
    driver.on_engine_hung = engines.restart
    app = create_app(driver, keys, cors_origins=origins)
    config = uvicorn.Config(
        app,
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


class _Engines:
    """All engines, started by us or attached, and the driver that is told about them.

    An engine has the name of its profile: one engine each.
    """

    def __init__(
        self,
        driver: Driver,
        profiles: Sequence[Profile],
        state_dir: Path,
        url: str,
        meters: Meters,
        by_name: Mapping[str, Planned],
    ) -> None:
        self._driver = driver
        self._meters = meters
        self._url = url
        self._awaited = {profile.name for profile in profiles}
        self._attached: dict[str, Attachment] = {}
        self._launched: dict[str, LaunchedServer] = {}
        specs: list[EngineSpec] = []
        for profile in profiles:
            server = profile.server
            if isinstance(server, AttachedServer):
                self._attached[profile.name] = Attachment(
                    profile.name, server.attach, profile.engine_key, self
                )
            else:
                self._launched[profile.name] = server
                specs.append(_spec(profile, self._launched, state_dir))
        try:
            self._supervisor = Supervisor(specs, self)
        except InUseError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"--state-dir {state_dir}: {error}") from error
        self._residents: Residents | None = None
        if driver.memory.watch is not None:
            journal = residents.Journal(state_dir / residents.JOURNAL)
            patience = Patience.of(profiles[0].memory.reload_s)
            launched = [_role(p, by_name) for p in profiles if p.name in self._launched]
            members = Roles(launched, time.monotonic(), patience)
            self._residents = Residents(
                members, self._supervisor, journal, self._gone, driver.memory.show_roles
            )
            self._connect(self._residents)

    def _connect(self, models: Residents) -> None:
        """What the proxy sees of memory goes to whoever loads models, and what it wants back."""
        memory = self._driver.memory
        memory.wanted = models.wanted
        memory.size_known = models.roles.measured
        memory.sampled = self._sampled
        memory.reclaimer.unload = self._reclaim
        if memory.watch is not None:
            memory.watch.loading_bytes = lambda: models.loading_bytes(own_bytes)

    def _sampled(self, reclaiming: bool) -> None:
        if self._residents is not None:
            figures = self._driver.memory.for_newcomers()
            calm = not reclaiming and not self._driver.scheduler.waits_for_memory()
            self._residents.sampled(Headroom(*figures) if figures else None, calm)

    async def _reclaim(self, wanted: Reclaim) -> str:
        assert self._residents is not None
        if wanted.level is not Level.RAM_CACHE:
            return await self._residents.unload(wanted.target, wanted.why)
        limit_mib = self._smaller_cache(wanted.target)
        why = f"with a RAM cache of {limit_mib} MiB: {wanted.why}"
        restart = partial(self._supervisor.restart, wanted.target, why, Cause.UNLOADED)
        return await self._residents.smaller(wanted.target, restart)

    def _smaller_cache(self, engine: str) -> int:
        """Half of it at the next start; what is hardly worth its restarts goes at once."""
        server = self._launched[engine]
        half = max(0, server.cache_ram_mib) // 2
        limit_mib = half if half >= LEAST_CACHE_MIB else 0
        self._launched[engine] = server.model_copy(update={"cache_ram_mib": limit_mib})
        return limit_mib

    def _gone(self, name: str, retry_after_s: int) -> None:
        self._driver.profile_unloaded(name, retry_after_s)
        self._comes_no_more(name)

    def start(self) -> None:
        if self._residents is not None:
            self._residents.start()
        else:
            self._supervisor.start()
        for attached in self._attached.values():
            attached.start()

    async def stop(self) -> None:
        await asyncio.gather(
            self._supervisor.stop(), *(attached.stop() for attached in self._attached.values())
        )

    def restart(self, engine: str, reason: str) -> None:
        if engine in self._attached:
            self._attached[engine].restart(reason)
        else:
            self._supervisor.restart(engine, reason)

    def pid(self, engine: str) -> int | None:
        """Of the process of an engine that slotwise started."""
        return self._supervisor.pid(engine)

    def on_starting(self, engine: str, text: str) -> None:
        log.info("%s: %s", engine, text)
        if text == STARTING:
            self._meters.starting(engine)
        self._driver.engine_starting(engine, engine, text)

    async def on_ready(self, engine: str, url: str, api_key: str) -> None:
        if not await self._driver.engine_up(engine, engine, url, api_key or None):
            raise RefusedError("it did not answer when it was asked what it is")
        log.info("%s: ready", engine)
        self._meters.ready(engine)
        if self._residents is not None:
            self._residents.ready(engine)
        self._comes_no_more(engine)

    def _comes_no_more(self, engine: str) -> None:
        """It is there, or will not be for a while: the start is over when that is so of all."""
        self._awaited.discard(engine)
        if not self._awaited and self._url:
            print(f"slotwise ready on {self._url}", flush=True)
            log.info("the lanes are shown at %s/slotwise/", self._url)
            self._url = ""  # said once, however often an engine comes back

    def on_lost(self, engine: str, loss: Loss) -> None:
        self._meters.lost(engine)
        self._driver.engine_down(engine, loss.cause.value, loss.text)


def _spec(profile: Profile, servers: Mapping[str, LaunchedServer], state_dir: Path) -> EngineSpec:
    """``servers``: by name, looked at anew at each start."""
    server = servers[profile.name]
    directory = command_line.engine_dir(state_dir, profile.name)
    files = command_line.launch_files(profile, directory)
    return EngineSpec(
        name=profile.name,
        argv=lambda port: argv.launch_argv(servers[profile.name], profile.names, files, port),
        env=lambda key: argv.launch_env(server, os.environ, key, directory),
        directory=directory,
        start_timeout_s=server.start_timeout_s,
    )


def _role(profile: Profile, by_name: Mapping[str, Planned]) -> Role:
    """A small model by its claim; a main one by what it takes at load by its plan."""
    if profile.role is None:
        planned = by_name.get(profile.name)
        return Role(profile.name, planned.plan.load_bytes if planned is not None else 0)
    role = profile.role
    return Role(
        profile.name,
        round(role.claim_gib * 2**30),
        role.order or 1,
        on_demand=role.on_demand,
        never=role.unload == "never",
    )


def _served(profile: Profile, planned: Planned | None) -> ServedProfile:
    windows, peak_gib = profile.server.windows, profile.memory.peak_gib
    return ServedProfile(
        name=profile.name,
        aliases=profile.aliases,
        params=params.from_mapping(profile.sections["policy"])[0],
        tokenizer=_tokenizer_of(profile),
        normalize=normalize.from_mapping(profile.sections["normalize"])[0],
        kinds=kinds.from_mapping(profile.sections["kinds"])[0],
        cache_ram_mib=profile.server.cache_ram_mib,
        kv_unified=profile.server.kv_unified,
        windows=tuple(windows) if windows is not None else None,
        growth=_growth(profile, planned),
        peak_bytes=round(peak_gib * 2**30) if peak_gib is not None else None,
    )


def _growth(profile: Profile, planned: Planned | None) -> Growth:
    """What an engine can still take once it has loaded; its keys and values are not among it."""
    cache_ram_bytes = max(0, profile.server.cache_ram_mib) * 2**20
    if planned is None or planned.engine.model.shape is None:
        return Growth(cache_ram_bytes=cache_ram_bytes)
    shape, context = planned.engine.model.shape, planned.engine.context
    return Growth(
        checkpoint_bytes=cache_size.checkpoint_bytes(shape, context),
        checkpoints=planned.engine.checkpoints,
        cache_ram_bytes=cache_ram_bytes,
        kv_bytes_per_token=cache_size.token_bytes(shape, context),
    )


def _limits(profiles: Sequence[Profile]) -> Limits:
    """One machine, so by one profile's word."""
    section = profiles[0].memory
    return Limits(
        section.floor_gib,
        section.hard_floor_gib,
        section.margin_gib,
        section.stale_s,
        section.hard_samples,
    )


def _meminfo(profiles: Sequence[Profile]) -> MemInfo:
    section = profiles[0].memory
    return MemInfo(Path(section.meminfo), section.cgroup, stale_s=section.stale_s)


def _machine(profiles: Sequence[Profile]) -> Machine:
    """What there is to plan with, now."""
    told = _meminfo(profiles).read()
    return Machine(
        total_bytes=told.total_bytes,
        available_bytes=told.available_bytes or 0,
        floor_bytes=_limits(profiles).floor_bytes(told.total_bytes),
        source=f"limit of {told.limit}" if told.limit else profiles[0].memory.meminfo,
        problem=told.problem,
    )


def _memory(profiles: Sequence[Profile], by_name: Mapping[str, Planned]) -> dict[str, Any]:
    """How the driver watches the machine's memory."""
    section = profiles[0].memory
    if not section.enabled:
        return {}
    limits = _limits(profiles)
    roles = [_role(p, by_name) for p in profiles if isinstance(p.server, LaunchedServer)]
    members = tuple(Member(role.name, role.order, role.never) for role in roles)
    return {
        "memory": MemoryRules(limits, members),
        "watch": MemoryWatch(_meminfo(profiles), section.sample_s),
    }


def _tokenizer_of(profile: Profile) -> Source:
    """What a local tokenizer can be made from; nothing of an attached server's model is known."""
    model = profile.model
    vocabulary = partial(gguf_header.read_vocabulary, model) if model is not None else None
    flags = InfillFlags()
    if isinstance(profile.server, LaunchedServer):
        flags = InfillFlags(**argv.infill_flags(profile.server))
    return Source(vocabulary=vocabulary, tokenizer_json=profile.tokenizer, infill=flags)


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


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _raise_fd_limit() -> None:
    """Each stream takes two connections; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))


if __name__ == "__main__":
    sys.exit(main())

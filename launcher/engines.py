"""The engines that run, and the proxy that is told about them: where launcher and proxy meet.

Like the command itself this may import every package. It hands on what one side says to the
other: an engine is on its way, ready, lost; memory is short, a small model has to give way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from slotwise.launcher import wiring
from slotwise.launcher.plan.fitting import LoadHeadroom
from slotwise.launcher.plan.starts import Meters, Planned
from slotwise.launcher.process.supervisor import (
    STARTING,
    Attachment,
    EngineLoss,
    EngineSpec,
    InUseError,
    LossCause,
    Supervisor,
)
from slotwise.launcher.profile.launch import UsageError, engine_dir, launch_env, launch_line
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import AttachedServer, LaunchedServer
from slotwise.launcher.roles import residents
from slotwise.launcher.roles.residents import Residents
from slotwise.launcher.roles.roles import Patience, Roles
from slotwise.proxy.core.events import Level, Reclaim
from slotwise.proxy.serving.driver import Driver

log = logging.getLogger("slotwise")
LRU_LINE = "selected slot by LRU"  # it chose itself, and not by what the slots hold
LEAST_CACHE_MIB = 512  # a RAM cache below this is given up rather than halved


class RefusedError(RuntimeError):
    """The proxy did not take an engine into use."""


class Engines:
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
        self._launched: dict[str, Profile] = {}
        specs: list[EngineSpec] = []
        for profile in profiles:
            server = profile.server
            if isinstance(server, AttachedServer):
                self._attached[profile.name] = Attachment(
                    profile.name, server.attach, profile.engine_key, self
                )
            else:
                self._launched[profile.name] = profile
                specs.append(_spec(profile, self._launched, state_dir))
        try:
            self._supervisor = Supervisor(specs, self)
        except InUseError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"--state-dir {state_dir}: {error}") from error
        self._residents: Residents | None = None
        if driver.memory.watch is not None:
            journal = residents.RoleLog(state_dir / residents.JOURNAL)
            patience = Patience.of(profiles[0].memory.reload_s)
            launched = [wiring.role(p, by_name) for p in profiles if p.name in self._launched]
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
            taken = memory.watch.taken_bytes
            memory.watch.loading_bytes = lambda: models.loading_bytes(taken)

    def _sampled(self, reclaiming: bool) -> None:
        if self._residents is not None:
            figures = self._driver.memory.for_newcomers()
            calm = not reclaiming and not self._driver.scheduler.waits_for_memory()
            self._residents.sampled(LoadHeadroom(*figures) if figures else None, calm)

    async def _reclaim(self, wanted: Reclaim) -> str:
        assert self._residents is not None
        if wanted.level is not Level.RAM_CACHE:
            return await self._residents.unload(wanted.target, wanted.why)
        limit_mib = self._smaller_cache(wanted.target)
        why = f"with a RAM cache of {limit_mib} MiB: {wanted.why}"
        restart = partial(self._supervisor.restart, wanted.target, why, LossCause.UNLOADED)
        return await self._residents.smaller(wanted.target, restart)

    def _smaller_cache(self, engine: str) -> int:
        """Half of it at the next start; what is hardly worth its restarts goes at once."""
        profile = self._launched[engine]
        half = max(0, profile.server.cache_ram_mib) // 2
        limit_mib = half if half >= LEAST_CACHE_MIB else 0
        smaller = profile.server.model_copy(update={"cache_ram_mib": limit_mib})
        self._launched[engine] = replace(profile, server=smaller)
        return limit_mib

    def _gone(self, name: str, retry_after_s: int) -> None:
        self._driver.engines.unloaded(name, retry_after_s)
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
        self._driver.engines.starting(engine, engine, text)

    async def on_ready(self, engine: str, url: str, api_key: str) -> None:
        if not await self._driver.engines.up(engine, engine, url, api_key or None):
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

    def on_log_line(self, engine: str, line: str) -> None:
        if LRU_LINE in line:
            self._driver.metrics.engine_chose_by_lru(engine)

    def on_lost(self, engine: str, loss: EngineLoss) -> None:
        self._meters.lost(engine)
        if self._residents is not None:
            self._residents.lost(engine)
        self._driver.engines.down(engine, loss.cause.value, loss.text)


def _spec(profile: Profile, launched: Mapping[str, Profile], state_dir: Path) -> EngineSpec:
    """``launched``: by name, read anew at each start."""
    name, server = profile.name, profile.server
    assert isinstance(server, LaunchedServer)
    directory = engine_dir(state_dir, name)
    return EngineSpec(
        name=name,
        argv=lambda port: launch_line(launched[name], directory, port),
        env=lambda key: launch_env(server, os.environ, key, directory),
        directory=directory,
        start_timeout_s=server.start_timeout_s,
    )

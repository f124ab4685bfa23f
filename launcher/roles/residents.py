"""Loads and unloads the models that :mod:`launcher.roles.roles` decides on, and keeps the journal.

``residency.jsonl`` in the state directory has one line per decision: when, who, the figures, the
verdict in words. It is only appended to; at its limit the older half of its life is one file back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from slotwise.launcher.plan.fitting import Headroom
from slotwise.launcher.roles.roles import Decision, Roles, State

log = logging.getLogger(__name__)

JOURNAL = "residency.jsonl"
_MOST_BYTES = 8 * 2**20
_SAID_AGAIN_S = 60.0  # a refusal that is asked for again and again is written once a minute
_END_LIMIT_S = 20.0
_POLL_S = 0.1


class Engines(Protocol):
    """What starts and ends processes: the supervisor."""

    def load(self, name: str) -> None: ...

    async def unload(self, name: str, why: str) -> bool: ...

    def pid(self, name: str) -> int | None: ...


class Journal:
    """Writes the decisions; never raises: what cannot be written is logged once."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._broken = False

    def write(self, decision: Decision) -> None:
        """One line."""
        entry: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "name": decision.name,
            "action": decision.action,
            "verdict": decision.text,
            "claim_bytes": decision.claim_bytes,
        }
        room = decision.headroom
        if room is not None:
            entry |= {
                "available_bytes": room.available_bytes,
                "floor_bytes": room.floor_bytes,
                "growth_bytes": room.growth_bytes,
                "margin_bytes": room.margin_bytes,
            }
        try:
            if self._path.exists() and self._path.stat().st_size > self._most_bytes:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            if not self._broken:
                log.warning("%s: %s", self._path, error)
            self._broken = True


class Residents:
    """All models of one slotwise that it starts.

    ``gone``: called with a name and the seconds after which to ask again, when a model is not
    there for want of memory; ``shown``: with the state of every small model, when one changes.
    """

    def __init__(
        self,
        roles: Roles,
        engines: Engines,
        journal: Journal,
        gone: Callable[[str, int], None],
        shown: Callable[[dict[str, str]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roles = roles
        self._engines = engines
        self._journal = journal
        self._gone = gone
        self._shown = shown
        self._now = now
        self._headroom: Headroom | None = None
        self._refused_at: dict[str, float] = {}

    def start(self) -> None:
        """Loads the main models; the small ones follow with the samples, in order."""
        for decision in self.roles.start(self._now()):
            self._do(decision)
        for name, state in self.roles.states().items():
            if state is State.OFF:
                self._gone(name, self.roles.retry_after_s(name, self._now()))

    def ready(self, name: str) -> None:
        """An engine serves; also one that is none of ours."""
        if name in self.roles.states():
            self.roles.ready(name, self._now())
            self._show()

    def loading_bytes(self, taken: Callable[[str, int | None], int]) -> int:
        """What models that load are still to take; ``taken``: by a name and its process so far.
        One whose process is gone, until it is tried again, takes nothing from anybody."""
        left = 0
        for name, claim_bytes in self.roles.loading().items():
            pid = self._engines.pid(name)
            if pid is not None:
                left += max(0, claim_bytes - taken(name, pid))
        return left

    def lost(self, name: str) -> None:
        """An engine is gone that was not unloaded: it is started again, and loads."""
        if name in self.roles.states():
            self.roles.lost(name, self._now())
            self._show()

    def sampled(self, headroom: Headroom | None, calm: bool) -> None:
        """A sample; begins what is due."""
        self._headroom = headroom
        for decision in self.roles.sampled(self._now(), headroom, calm):
            self._do(decision)

    def wanted(self, name: str) -> bool:
        """Somebody asks for a model that is not loaded. True: it is on its way."""
        decision = self.roles.wanted(name, self._now(), self._headroom)
        if decision is not None:
            self._do(decision)
        return self.roles.states().get(name) in (State.LOADING, State.LOADED)

    async def unload(self, name: str, why: str) -> str:
        """Ends a model for others' sake; why it was not, or an empty text."""
        decision = self.roles.unload(name, self._now(), why)
        if decision is None:
            return "it is not loaded"
        self._journal.write(decision)
        log.warning("%s: unloaded: %s", name, decision.text)
        # Told before it ends: whoever comes meanwhile is sent away, not kept waiting.
        self._gone(name, self.roles.retry_after_s(name, self._now()))
        self._show()
        if not await self._engines.unload(name, f"unloaded: {why}"):
            return "it did not end in time"
        return ""

    async def smaller(self, name: str, restart: Callable[[], None]) -> str:
        """Waits until the process that ``restart`` ends is gone."""
        before = self._engines.pid(name)
        restart()
        bound = self._now() + _END_LIMIT_S
        while self._engines.pid(name) == before:
            if self._now() > bound:
                return "it did not end in time"
            await asyncio.sleep(_POLL_S)
        return ""

    def _do(self, decision: Decision) -> None:
        now = self._now()
        if decision.action == "load":
            log.info("%s: loaded: %s", decision.name, decision.text)
            self._journal.write(decision)
            self._engines.load(decision.name)
            self._show()
            return
        if now - self._refused_at.get(decision.name, float("-inf")) >= _SAID_AGAIN_S:
            self._refused_at[decision.name] = now
            log.warning("%s: %s", decision.name, decision.text)
            self._journal.write(decision)
        self._gone(decision.name, self.roles.retry_after_s(decision.name, now))
        self._show()

    def _show(self) -> None:
        self._shown({name: state.value for name, state in self.roles.small().items()})

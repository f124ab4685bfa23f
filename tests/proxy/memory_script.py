"""Short scripts for the memory gate: a scheduler of one engine and one small model, and samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slotwise.policies.admission import GIB, MIB, Growth, Limits
from slotwise.policies.params import Params
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineLost,
    EngineReady,
    Event,
    Level,
    MemorySampled,
    ProfileUnloaded,
    Reclaim,
    Reclaimed,
    ReclaimEnded,
    RequestArrived,
)
from slotwise.proxy.core.memory import Member, MemoryRules
from slotwise.proxy.core.scheduler import Scheduler
from tests.proxy.script import params, text

CHECKPOINTS = Growth(checkpoint_bytes=100 * MIB, scratch_bytes=0)
PLAIN = Growth(scratch_bytes=0)


class World:
    """A scheduler whose every event is kept, with a clock that the test moves."""

    def __init__(
        self,
        growth: Growth | None = None,
        *,
        slots: int = 4,
        limits: Limits | None = None,
        small: Iterable[Member] = (),
        profile: Params | None = None,
    ) -> None:
        self.rules = MemoryRules(limits or Limits(), (Member("p"), *small))
        self.params = {"p": profile or params()}
        self.params |= {member.profile: params() for member in small}
        self.scheduler = Scheduler(self.params, self.rules)
        self.entries: list[tuple[float, Event, list[Action]]] = []
        self.now = 0.0
        self.feed(EngineReady("e", "p", (100_000,) * slots, None, True, growth or Growth()))
        for member in small:
            name = member.profile
            self.feed(EngineReady(name, name, (100_000,), None, True, Growth(scratch_bytes=0)))

    def feed(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event, self.now)
        self.entries.append((self.now, event, actions))
        return actions

    def sample(
        self, available_gib: float | None, after_s: float = 0.5, **more: Any
    ) -> list[Action]:
        """The next sample; of a machine with 128 GiB."""
        self.now += after_s
        available = None if available_gib is None else round(available_gib * GIB)
        return self.feed(MemorySampled(available, 128 * GIB, **more))

    def arrive(self, id: str, n: int = 1000, profile: str = "p", stream: bool = True) -> list[str]:
        """A prompt of n tokens of its own; returns who was dispatched by that."""
        ids = text((id, n))
        request = Request(id, profile, ids, n, 1, None, stream, "k")
        return dispatched(self.feed(RequestArrived(request)))

    def reclaim_ended(self, actions: list[Action], failed: str = "") -> list[Action]:
        """Whoever does it is done with the one Reclaim among these."""
        (reclaim,) = [a for a in actions if isinstance(a, Reclaim)]
        return self.feed(ReclaimEnded(reclaim.level, reclaim.target, failed))

    def take_back(self) -> list[tuple[str, str]]:
        """Do what was asked for last, as the launcher would; returns it."""
        asked = [a for a in self.entries[-1][2] if isinstance(a, Reclaim)]
        for reclaim in asked:
            if reclaim.level in (Level.ROLE, Level.STOP):
                profile = "p" if reclaim.target == "e" else reclaim.target
                self.feed(EngineLost(reclaim.target, "unloaded"))
                self.feed(ProfileUnloaded(profile, 60))
            self.feed(ReclaimEnded(reclaim.level, reclaim.target))
        return reclaims(list(asked))

    def why(self, id: str) -> str:
        """Why this one waits, with its reason; empty: it does not."""
        waiting = self.scheduler.waiting_for(id, self.now)
        return f"{waiting.reason}: {waiting.why}" if waiting else ""

    def all(self, kind: type) -> list[Any]:
        return [a for _, _, actions in self.entries for a in actions if isinstance(a, kind)]


def dispatched(actions: list[Action]) -> list[str]:
    return [a.id for a in actions if isinstance(a, Dispatch)]


def reclaims(actions: list[Action]) -> list[tuple[str, str]]:
    """(level, target) of each Reclaim."""
    return [(a.level.value, a.target) for a in actions if isinstance(a, Reclaim)]


def results(actions: list[Action]) -> list[tuple[str, str]]:
    """(level, result) of each Reclaimed."""
    return [(a.level.value, a.result) for a in actions if isinstance(a, Reclaimed)]

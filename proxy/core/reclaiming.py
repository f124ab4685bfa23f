"""What can be taken back, least first: the candidates of each level, best one first.

Nothing here measures: what a level gives back is seen by the next sample, and a level that gave
too little is left alone for a while (``memory_gate.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slotwise.policies.admission import MIB
from slotwise.policies.types import SlotId
from slotwise.proxy.core.actions import Level, Reclaim
from slotwise.proxy.core.book import Profile
from slotwise.proxy.core.mirror import SlotMirror, SlotState
from slotwise.proxy.core.reserves import Reserves

TOO_LITTLE_BYTES = 64 * MIB
ASKED_FOR = (Level.CHECKPOINTS, Level.ROLE)  # what a request that does not fit may ask for


@dataclass(frozen=True, slots=True)
class Member:
    """A profile whose engine slotwise started, and so may end. ``order``: the first is started
    first and ended last; the main models have 0."""

    profile: str
    order: int = 0
    never: bool = False  # a small model that is not unloaded beside others


@dataclass(slots=True)
class Holdings:
    """Who holds memory now."""

    profiles: Mapping[str, Profile]
    members: tuple[Member, ...]
    loading: Mapping[str, str]  # engine -> its profile
    reserves: Reserves

    def reclaims(
        self, levels: Iterable[Level], wanted_bytes: int, below: int | None, why: str
    ) -> Iterator[Reclaim]:
        """Candidates, least harm first. ``wanted_bytes``: as much as is needed of what can be
        taken in parts. ``below``: only small models after this one in order, and only at rest."""
        for level in levels:
            match level:
                case Level.CHECKPOINTS:
                    yield from self._checkpoints(wanted_bytes, why, below is not None)
                case Level.ROLE:
                    yield from self._roles(below, why)
                case Level.RAM_CACHE:
                    yield from self._ram_caches(why)
                case Level.STOP:
                    yield from self._stops(why)

    def slots_of(self, reclaim: Reclaim) -> list[SlotMirror]:
        """The slots that it empties."""
        engines = {e.name: e for p in self.profiles.values() for e in p.engines.values()}
        return [engines[reclaim.target].mirrors[id_slot] for id_slot in reclaim.slots]

    def _checkpoints(self, wanted_bytes: int, why: str, spare_homes: bool) -> Iterator[Reclaim]:
        """Oldest first; what somebody waits to continue comes last, or not at all."""
        for profile in self.profiles.values():
            homes = _awaited_homes(profile)
            for engine in profile.engines.values():
                idle = [
                    (m.id in homes, m.content.last_used, m.id)
                    for m in engine.mirrors
                    if m.state is SlotState.IDLE
                    and self.reserves.checkpoint_bytes(m.id)
                    and not (spare_homes and m.id in homes)
                ]
                slots: list[int] = []
                given = 0
                for _, _, slot in sorted(idle):
                    if given < wanted_bytes:
                        slots.append(slot.id_slot)
                        given += self.reserves.checkpoint_bytes(slot)
                if slots and engine.pins:
                    yield Reclaim(Level.CHECKPOINTS, engine.name, tuple(slots), why)

    def _roles(self, below: int | None, why: str) -> Iterator[Reclaim]:
        for member in self._last_first():
            if not member.order or member.never or (below is not None and member.order <= below):
                continue
            for engine in self._engines(member):
                if below is None or not self.profiles[member.profile].running:
                    yield Reclaim(Level.ROLE, engine, why=why)

    def _ram_caches(self, why: str) -> Iterator[Reclaim]:
        for member in self._last_first():
            profile = self.profiles[member.profile]
            for engine in profile.engines:
                at_rest = not any(r.engine.name == engine for r in profile.running.values())
                if at_rest and self.reserves.cache_bytes(engine) >= TOO_LITTLE_BYTES:
                    yield Reclaim(Level.RAM_CACHE, engine, why=why)

    def _stops(self, why: str) -> Iterator[Reclaim]:
        """One that loads holds nothing yet, one at rest disturbs nobody."""

        def harm(member: Member) -> int:
            if member.profile in self.loading.values():
                return 0
            return 2 if self.profiles[member.profile].running else 1

        for member in sorted(self._last_first(), key=harm):
            for engine in self._engines(member):
                yield Reclaim(Level.STOP, engine, why=why)

    def _last_first(self) -> list[Member]:
        ranked = sorted(enumerate(self.members), key=lambda m: (m[1].order, m[0]), reverse=True)
        return [member for _, member in ranked]

    def _engines(self, member: Member) -> list[str]:
        loading = [e for e, profile in self.loading.items() if profile == member.profile]
        return [*self.profiles[member.profile].engines, *loading]


def _awaited_homes(profile: Profile) -> set[SlotId]:
    """The slots whose conversations wait for their next turn."""
    return {
        mirror.id
        for waiter in profile.waiters.values()
        for mirror, match in zip(profile.mirrors, waiter.view.matches, strict=False)
        if match.is_home
    }

"""Admission by the machine's memory, and what is taken back of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slotwise.policies.admission import MIB, Headroom, Limits, gib, memory_shortage
from slotwise.policies.types import Hold, Place, Reason, SlotId, Verdict
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    EngineLoading,
    EngineReady,
    Level,
    MemorySampled,
    ProfileUnloaded,
    Reclaim,
    Reclaimed,
    ReclaimEnded,
    Refuse,
)
from slotwise.proxy.core.mirror import SlotMirror, SlotState
from slotwise.proxy.core.reservations import Placing, Reserves
from slotwise.proxy.core.state import Profile
from slotwise.proxy.core.waiting import Waiter

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


SKIPPED_S = 600.0  # a level that gave back too little is left alone for so long


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """How one machine's memory is watched."""

    limits: Limits = field(default_factory=Limits)
    members: tuple[Member, ...] = ()


@dataclass(slots=True)
class _Pending:
    reclaim: Reclaim
    before_bytes: int
    ended: ReclaimEnded | None = None


class MemoryGate:
    """All that the scheduler knows of the machine's memory. ``rules`` None: nothing is watched."""

    def __init__(self, rules: MemoryRules | None) -> None:
        self.rules = rules
        self.reserves = Reserves()
        self.loading: dict[str, str] = {}  # engine -> its profile
        self.unloaded: dict[str, int] = {}  # profile -> when to ask again, s
        self._sample: MemorySampled | None = None
        self._sampled_at = float("-inf")
        self._read_at: float | None = None
        self._low = 0  # samples in a row below the hard floor
        self._pending: _Pending | None = None
        self._skipped: dict[tuple[Level, str], float] = {}  # until when
        self._short_bytes: int | None = None  # what the first waiting request lacks
        self._short_order = 0
        self._overtaken = False  # it has been overtaken for long enough

    # ------------------------------------------------------------ engines

    def engine_loading(self, event: EngineLoading) -> None:
        """Its process was started: who asks for it may wait again."""
        self.loading[event.engine] = event.profile
        self.unloaded.pop(event.profile, None)

    def engine_ready(self, event: EngineReady) -> None:
        self.loading.pop(event.engine, None)
        self.unloaded.pop(event.profile, None)
        slots = len(event.windows)
        self.reserves.engine_ready(event.engine, event.profile, event.growth, slots)

    def unload(self, event: ProfileUnloaded, profile: Profile, now: float) -> list[Action]:
        """Nobody waits for an engine that gave way: who does is told when to ask again."""
        self.unloaded[profile.name] = event.retry_after_s
        for engine in [e for e, p in self.loading.items() if p == profile.name]:
            del self.loading[engine]
        out: list[Action] = []
        for waiter in list(profile.waiters.values()):
            id = waiter.view.request.id
            profile.drop_waiter(id, now)
            waited_s = now - waiter.view.arrived
            out.append(self.not_loaded(profile.name, id, waited_s, waiter.reason))
        profile.line = []
        return out

    def not_loaded(
        self, profile: str, id: str, waited_s: float = 0.0, reason: Reason = Reason.MEMORY
    ) -> Refuse:
        """The answer to a request for a model that gave way."""
        return Refuse(
            id,
            503,
            "unloaded_for_memory",
            f"{profile} is not loaded: the machine's memory is almost full",
            self.unloaded[profile],
            wait_reason=reason,
            waited_s=waited_s,
        )

    # ------------------------------------------------------------ samples

    def sampled(
        self, event: MemorySampled, profiles: Mapping[str, Profile], now: float
    ) -> list[Action]:
        """Take a sample; says what a level gave back, and what has to go now."""
        self._sample, self._sampled_at = event, now
        self.reserves.sampled(event.grown)
        available = event.available_bytes
        if self.rules is None or available is None:
            self._low = 0
            return []
        self._read_at = now
        limits = self.rules.limits
        hard = limits.hard_floor_bytes(event.total_bytes)
        self._low = self._low + 1 if available < hard else 0
        out = self._measured(available, now)
        if self._low >= limits.hard_samples:
            why = f"MemAvailable {gib(available)} GiB, hard floor {gib(hard)}, {self._low} samples"
            out += self._take_back(tuple(Level), hard - available, None, why, profiles, now)
        return out

    def _measured(self, available: int, now: float) -> list[Action]:
        pending = self._pending
        if pending is None or pending.ended is None:
            return []
        self._pending = None
        level, target = pending.reclaim.level, pending.reclaim.target
        gave = available - pending.before_bytes
        result = "done"
        if pending.ended.failed or gave < TOO_LITTLE_BYTES:
            result = "failed" if pending.ended.failed else "too_little"
            self._skipped[level, target] = now + SKIPPED_S
        why = pending.ended.failed or pending.reclaim.why
        return [Reclaimed(level, target, result, pending.before_bytes, available, why)]

    def reclaim_ended(self, event: ReclaimEnded) -> list[Action]:
        """The level did what it could; the next sample shows what that was."""
        pending = self._pending
        if pending is None or pending.ended is not None:
            return []
        if (pending.reclaim.level, pending.reclaim.target) != (event.level, event.target):
            return []
        pending.ended = event
        # Slots that were emptied are idle again when the engine shows them so.
        return [AskSlots(event.target)] if pending.reclaim.slots else []

    def _take_back(
        self,
        levels: tuple[Level, ...],
        wanted_bytes: int,
        below: int | None,
        why: str,
        profiles: Mapping[str, Profile],
        now: float,
    ) -> list[Action]:
        if self._pending is not None or self.rules is None:
            return []
        holdings = Holdings(profiles, self.rules.members, self.loading, self.reserves)
        for reclaim in holdings.reclaims(levels, wanted_bytes, below, why):
            if now < self._skipped.get((reclaim.level, reclaim.target), now):
                continue
            self._pending = _Pending(reclaim, self.available or 0)
            for slot in holdings.slots_of(reclaim):
                # It is about to be emptied: it holds nothing, and takes nobody until it is.
                slot.suspect(now)
                self.reserves.emptied(slot.id)
            return [reclaim]
        return []

    # ------------------------------------------------------------ requests

    def fits(self, profile: Profile, waiter: Waiter, place: Place, now: float) -> Verdict:
        """The placement, or a hold where the machine's memory has no room for it."""
        if self.rules is None:
            return place
        need = self.reserves.need(placing(profile, waiter, place)).total
        room = self.room(now)
        if room is None:
            return Hold(Reason.MEMORY, self._unknown(now))
        short = memory_shortage(need, room)
        if short is None and not self._overtaken:
            return place
        if self._short_bytes is None:
            self._short_bytes, self._short_order = need - room.free, self._order(profile.name)
            # What runs makes room when it ends; what comes behind must not take that for ever.
            waited_s = now - waiter.view.arrived
            longest_s = profile.params.max_wait_s
            self._overtaken = bool(profile.running) and waited_s >= longest_s
        return Hold(Reason.MEMORY, short or "somebody before you waits for memory")

    def ask(self, profiles: Mapping[str, Profile], now: float) -> list[Action]:
        """What the first request that did not fit asks to be taken back, before it waits."""
        short, self._short_bytes, self._overtaken = self._short_bytes, None, False
        if short is None:
            return []
        why = "for a request that does not fit"
        return self._take_back(ASKED_FOR, short, self._short_order, why, profiles, now)

    def room(self, now: float) -> Headroom | None:
        """What may be admitted against. None: the figure is missing or old."""
        sample, rules = self._sample, self.rules
        if rules is None or sample is None or sample.available_bytes is None:
            return None
        limits = rules.limits
        if now - self._sampled_at > limits.stale_s:
            return None
        return Headroom(
            available=sample.available_bytes,
            floor=limits.floor_bytes(sample.total_bytes),
            reserved=self.reserves.promised(),
            loading=sample.loading_bytes,
            margin=round(limits.margin_gib * 2**30),
            stalled=sample.stalled,
        )

    def _unknown(self, now: float) -> str:
        if self._sample is None:
            return "how much memory there is was not read yet"
        if self._sample.available_bytes is None:
            return f"how much memory there is cannot be told: {self._sample.text}"
        age_s = now - self._sampled_at
        return f"how much memory there is was read {age_s:.1f} s ago, which is too long"

    def _order(self, profile: str) -> int:
        members = self.rules.members if self.rules else ()
        return next((m.order for m in members if m.profile == profile), 0)

    # ------------------------------------------------------------ what can be asked

    @property
    def calm(self) -> bool:
        """Whether the last sample is forgotten with the next: it was read, and is not counted."""
        return self.available is not None and self._low == 0

    @property
    def available(self) -> int | None:
        return self._sample.available_bytes if self._sample else None

    def is_emptying(self, slot: SlotId) -> bool:
        """Whether this slot is to be erased: what it held then is not there, whoever asks."""
        pending = self._pending
        if pending is None or pending.ended is not None:
            return False
        return slot.engine == pending.reclaim.target and slot.id_slot in pending.reclaim.slots

    @property
    def reclaiming(self) -> Reclaim | None:
        """What is being taken back now."""
        return self._pending.reclaim if self._pending else None

    def snapshot(self, now: float) -> dict[str, object]:
        """The figures of the moment in bytes and seconds, for status and series."""
        sample = self._sample
        limits = self.rules.limits if self.rules else Limits()
        total = sample.total_bytes if sample else 0
        return {
            "enabled": self.rules is not None,
            "available_bytes": self.available,
            "total_bytes": total,
            "floor_bytes": limits.floor_bytes(total),
            "hard_floor_bytes": limits.hard_floor_bytes(total),
            "reserved_bytes": self.reserves.promised(),
            "loading_bytes": sample.loading_bytes if sample else 0,
            "stalled_percent": sample.stalled if sample else 0.0,
            "sample_age_s": None if self._read_at is None else round(now - self._read_at, 3),
            "low_samples": self._low,
            "reclaiming": self.reclaiming.level.value if self.reclaiming else None,
            "skipped": {
                f"{level} {target}": round(until - now, 1)
                for (level, target), until in self._skipped.items()
                if until > now
            },
            "unloaded": sorted(self.unloaded),
        }


def placing(profile: Profile, waiter: Waiter, place: Place) -> Placing:
    """What this placement would change on its slot."""
    request = waiter.view.request
    if place.slot < 0:
        engine = profile.unpinned_engine()
        return Placing(request, SlotId(engine.name if engine else "", place.slot), 0)
    mirror = profile.mirrors[place.slot]
    stays = waiter.view.matches[place.slot].is_home
    return Placing(request, mirror.id, place.expected_cached, mirror.resident, stays)

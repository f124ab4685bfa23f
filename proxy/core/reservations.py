"""What running requests may still make grow: reserved at dispatch, credited as it is taken.

A reserve is an upper estimate of growth that MemAvailable does not show yet. What was taken is
credited with the next sample, never before: until then neither the sample nor the reserve may
forget it. A request that ended, in whatever way, reserves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slotwise.policies.admission import Growth, Need, buffer_bytes, new_checkpoints
from slotwise.policies.types import Request, SlotId


@dataclass(slots=True)
class Placing:
    """A request about to run: what a slot holds now, and what it will reuse of that."""

    request: Request
    slot: SlotId  # id_slot -1: the engine chooses
    reused: int  # tokens
    resident: int = 0  # tokens that the slot holds
    stays: bool = True  # what the slot holds is this request's own conversation


@dataclass(slots=True)
class Reserve:
    """One running request's promise."""

    need: Need
    slot: SlotId
    tokens: int  # of its prompt
    cached: int  # tokens it was expected to reuse
    checkpoints: int  # that its slot may hold at its end
    processed: int = 0  # tokens of its prompt in the KV, as the engine reports
    spent: Need = field(default_factory=Need)

    @property
    def unspent(self) -> int:
        return self.need.total - self.spent.total

    def credit(self) -> None:
        """What the engine must have taken by now is in the sample that has just been read."""
        need, done = self.need, self.processed - self.cached
        if done <= 0:
            return  # it has not begun: a RAM-cache copy of what was there comes first
        share = min(1.0, done / max(1, self.tokens - self.cached))
        self.spent = Need(
            checkpoints=int(need.checkpoints * share),
            cache=need.cache,
            scratch=need.scratch if share == 1.0 else 0,
        )


@dataclass(slots=True)
class _Engine:
    profile: str
    growth: Growth
    slots: int
    warm: bool = False  # it has served a request: its scratch is taken
    scratch: int = 0  # what that was, measured
    grown: int = 0  # what it took since it was ready, by the last sample
    held: dict[int, int] = field(default_factory=dict)  # checkpoints by id_slot, believed


class Reserves:
    """All reserves of one scheduler."""

    def __init__(self) -> None:
        self._engines: dict[str, _Engine] = {}
        self._running: dict[str, Reserve] = {}
        self._learned: dict[str, int] = {}  # scratch by profile, also of lives that ended

    # ------------------------------------------------------------ engines

    def engine_ready(self, engine: str, profile: str, growth: Growth, slots: int) -> None:
        self._engines[engine] = _Engine(profile, growth, slots)

    def engine_lost(self, engine: str) -> None:
        self._engines.pop(engine, None)

    def emptied(self, slot: SlotId) -> None:
        """The slot was erased: its checkpoints are gone."""
        if slot.engine in self._engines:
            self._engines[slot.engine].held.pop(slot.id_slot, None)

    def checkpoint_bytes(self, slot: SlotId) -> int:
        """What the slot's checkpoints are believed to take."""
        engine = self._engines.get(slot.engine)
        return engine.held.get(slot.id_slot, 0) * engine.growth.checkpoint_bytes if engine else 0

    def cache_bytes(self, engine: str) -> int:
        """What the engine's RAM cache is believed to take: its growth, the rest taken off."""
        known = self._engines.get(engine)
        return self._cache_used(known) if known else 0

    def growth_to_come(self) -> int:
        """What the engines that run may still take, all together: by the declared peak, else by
        what their slots and caches may hold at most."""
        return sum(self._to_come(engine) for engine in self._engines.values())

    def _to_come(self, engine: _Engine) -> int:
        growth = engine.growth
        if growth.most_bytes is not None:
            return max(0, growth.most_bytes - engine.grown)
        checkpoints = growth.checkpoints * growth.checkpoint_bytes * engine.slots
        scratch = 0 if engine.warm else self._scratch(engine)
        left = checkpoints - self._checkpoints(engine)
        return max(0, left) + growth.cache_ram_bytes - self._cache_used(engine) + scratch

    def sampled(self, grown: Iterable[tuple[str, int]]) -> None:
        """A sample was read: what was taken until now is in it."""
        for name, n_bytes in grown:
            engine = self._engines.get(name)
            if engine is not None:
                self._measured(engine, max(0, n_bytes))
        for reserve in self._running.values():
            reserve.credit()

    def _measured(self, engine: _Engine, grown: int) -> None:
        engine.grown = grown
        if engine.warm and not engine.scratch:
            engine.scratch = max(1, grown - self._checkpoints(engine))
            if not engine.growth.cache_ram_bytes:  # else a copy of a prompt would count as scratch
                known = self._learned.get(engine.profile, 0)
                self._learned[engine.profile] = max(known, engine.scratch)

    # ------------------------------------------------------------ requests

    def need(self, placing: Placing) -> Need:
        """What this request may make grow where it is about to be placed."""
        request, slot = placing.request, placing.slot
        n = len(request.tokens)
        buffers = buffer_bytes(n)
        engine = self._engines.get(slot.engine)
        if engine is None:
            return Need(buffers=buffers)
        growth = engine.growth
        others = [r for r in self._running.values() if r.slot.engine == slot.engine]
        # What the slot keeps of another prompt is freed first: only what is more than that grows.
        more = self._held_after(engine, placing) - engine.held.get(slot.id_slot, 0)
        leaves = 0 if placing.stays else placing.resident * growth.kv_bytes_per_token
        unused = growth.cache_ram_bytes - self._cache_used(engine)
        unused -= sum(r.need.cache - r.spent.cache for r in others)
        need = Need(
            checkpoints=max(0, more) * growth.checkpoint_bytes,
            cache=max(0, min(leaves, unused)),
            scratch=0 if engine.warm or others else self._scratch(engine),
            buffers=buffers,
        )
        if not others and growth.most_bytes is not None:
            # Alone it cannot take more than the engine was declared to.
            need = need.cut_to(growth.most_bytes - engine.grown)
        return need

    def begin(self, placing: Placing) -> None:
        """It is dispatched: from now on its need is promised."""
        request, slot = placing.request, placing.slot
        engine = self._engines.get(slot.engine)
        checkpoints = 0
        need = self.need(placing)
        if engine is not None:
            checkpoints = self._held_after(engine, placing)
            engine.held[slot.id_slot] = self._kept(engine, placing)
        self._running[request.id] = Reserve(
            need, slot, len(request.tokens), placing.reused, checkpoints
        )

    def progressed(self, id: str, processed: int) -> None:
        reserve = self._running.get(id)
        if reserve is not None:
            reserve.processed = max(reserve.processed, processed)

    def ended(self, id: str, answered: bool) -> None:
        """It finished (``answered``), failed or was cancelled: it reserves nothing any more."""
        reserve = self._running.pop(id, None)
        engine = self._engines.get(reserve.slot.engine) if reserve else None
        if reserve is None or engine is None:
            return
        if answered or reserve.processed:
            engine.held[reserve.slot.id_slot] = reserve.checkpoints
        engine.warm = engine.warm or answered

    def promised(self) -> int:
        """Bytes that running requests may still make grow, all together."""
        return sum(reserve.unspent for reserve in self._running.values())

    def of_requests(self) -> Mapping[str, Reserve]:
        return self._running

    # ------------------------------------------------------------ the parts

    def _scratch(self, engine: _Engine) -> int:
        return self._learned.get(engine.profile, engine.growth.scratch_bytes)

    def _checkpoints(self, engine: _Engine) -> int:
        return sum(engine.held.values()) * engine.growth.checkpoint_bytes

    def _cache_used(self, engine: _Engine) -> int:
        used = engine.grown - self._checkpoints(engine) - engine.scratch
        return max(0, min(engine.growth.cache_ram_bytes, used))

    def _kept(self, engine: _Engine, placing: Placing) -> int:
        """Checkpoints that stay: those of the part of the slot's content that is reused."""
        held = engine.held.get(placing.slot.id_slot, 0)
        if placing.slot.id_slot < 0 or not placing.resident:
            return 0
        return held * min(placing.reused, placing.resident) // placing.resident

    def _held_after(self, engine: _Engine, placing: Placing) -> int:
        uncached = len(placing.request.tokens) - placing.reused
        made = new_checkpoints(uncached, engine.growth)
        return min(engine.growth.checkpoints, self._kept(engine, placing) + made)

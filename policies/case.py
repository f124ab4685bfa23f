"""One waiting request against the slots of one moment: what each slot would cost it, and others.

Seconds are the measure. A slot costs a request the prefill of what it does not hold, and a copy
where the engine's RAM cache has more of the prompt than the slot. It costs others what is lost by
it: the slot's own content, or, where that is saved, what has to leave the cache for it; each by
the chance that somebody comes back for it soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policies import admission
from policies.affinity import chance_of_return_soon, kept_for_s, reuse
from policies.bounds import bound_s
from policies.cost import prefill_s
from policies.params import Params
from policies.park import Park, State
from policies.pauses import Pauses
from policies.types import Parked, Request, SlotId, SlotView, WaitingView


@dataclass(slots=True)
class View:
    """All that the decisions of one moment may depend on."""

    slots: Sequence[SlotView]
    pool_free: int | None  # tokens of the unified pool that running requests leave; None: no pool
    params: Params
    at_rest: bool = False  # nothing runs: who waits, waits for nobody's benefit but the owners'
    parks: Mapping[str, Park] = field(default_factory=dict)  # the RAM caches, by engine
    pauses: Pauses | None = None
    now: float = 0.0  # s
    asked_for: frozenset[str | None] = frozenset()  # what is parked and waited for, by request
    largest: int = field(init=False)  # window, tokens
    alike: list[bool] | None = field(init=False)  # which slots fit, where all windows are equal
    resting: list[int] = field(init=False)  # indices of the idle slots
    _saved: dict[int, tuple[State, ...]] = field(default_factory=dict)
    _reading: list[SlotView] = field(init=False)

    def __post_init__(self) -> None:
        counts = self.params.affinity.slot_order
        self._reading = [s for s in self.slots if s.read_left_s > 0] if counts else []
        windows = {s.window for s in self.slots}
        self.largest = max(windows, default=0)
        self.alike = [True] * len(self.slots) if len(windows) == 1 else None
        self.resting = [i for i, s in enumerate(self.slots) if s.idle]

    @property
    def open(self) -> bool:
        """Whether each slot could be had."""
        return len(self.resting) == len(self.slots) and not any(s.kept for s in self.slots)

    def fits(self, request: Request) -> list[bool]:
        """Which slots are large enough for this request (it fits into the largest)."""
        if self.alike is not None:
            return self.alike
        return [
            s.window == self.largest or admission.fits(request, s.window, self.params)
            for s in self.slots
        ]

    def dropped(self, index: int) -> tuple[State, ...]:
        """What leaves the RAM cache, or never gets there, when this slot's content is saved."""
        if index not in self._saved:
            slot = self.slots[index]
            self._saved[index] = self.parks[slot.id.engine].room_for(slot.state)[1]
        return self._saved[index]

    def behind_s(self, id: SlotId) -> float:
        """Seconds that a prompt in this slot waits for those in lower ones: the engine fills its
        batches in the order of slots."""
        return sum(
            slot.read_left_s
            for slot in self._reading
            if slot.id.engine == id.engine and slot.id.id_slot < id.id_slot
        )

    def before(self, id: SlotId) -> int:
        """How many prompts are being read that would wait for one in this slot."""
        return sum(
            slot.id.engine == id.engine and slot.id.id_slot > id.id_slot for slot in self._reading
        )

    def loss_of_s(self, state: State) -> float:
        """Seconds that are lost, as far as may be expected, with a state that nobody has again."""
        if state.guest or not state.tokens or self.pauses is None:
            return 0.0
        again_s = prefill_s(self.params.cost, 0, state.tokens)
        if state.request in self.asked_for:
            return again_s
        gap_s, idle_s = self.pauses.typical_s(state.calling), self.now - state.last_used
        chance = chance_of_return_soon(
            state.turns, idle_s, gap_s, state.calling, self.params.affinity
        )
        return chance * again_s


@dataclass(slots=True)
class Case:
    """One request against one view, with what several rules need."""

    waiting: WaitingView
    view: View
    waited_s: float
    fits: list[bool]

    def idle(self) -> list[int]:
        """Indices of the slots that are at rest and large enough."""
        return [i for i in self.view.resting if self.fits[i]]

    def free(self) -> list[int]:
        """Those of them that are not kept for their owners, or not from this request."""
        return [i for i in self.idle() if self.kept_for_s(i) <= 0]

    def kept_for_s(self, index: int) -> float:
        """How much longer an idle slot is kept from this request for its owner's likely return."""
        slot, params = self.view.slots[index], self.view.params
        if not slot.kept:
            return 0.0
        knobs = params.keep
        # Nobody else would wait for what the owner has to compute again, on an engine at rest.
        worth = min(1.0, knobs.worth) if self.view.at_rest else knobs.worth
        longest_s = bound_s(knobs.keep_max_wait_s, self.waiting.request, params)
        longest_s = min(longest_s, worth * self.loss_s(index))
        return min(kept_for_s(slot.gap_s, knobs) - slot.idle_s, longest_s - self.waited_s)

    def cached(self, index: int) -> int:
        """Tokens the request would not have to compute on that slot."""
        here = self._here(index)
        parked = self._parked(index, here)
        return here if parked is None else min(parked.shared, len(self.waiting.request.tokens) - 1)

    def own_s(self, index: int) -> float:
        """Seconds until the prompt is read on that slot, whatever is destroyed there."""
        return self.view.behind_s(self.view.slots[index].id) + self.read_s(index)

    def read_s(self, index: int) -> float:
        """Seconds that reading the prompt on that slot takes by itself."""
        params, n = self.view.params, self.waiting.request.tokens.length
        here = self._here(index)
        parked = self._parked(index, here)
        if parked is None:
            return prefill_s(params.cost, here, n)
        copy_s = parked.state.tokens / params.keep.restore_tps
        return copy_s + prefill_s(params.cost, min(parked.shared, n - 1), n)

    def loss_s(self, index: int) -> float:
        """Seconds that others lose, as far as may be expected, if the request takes that slot."""
        slot, params = self.view.slots[index], self.view.params
        match = self.waiting.matches[index]
        if slot.view_len == 0:
            return 0.0
        knobs = params.affinity
        chance = 0.0
        if not slot.guest:
            chance = chance_of_return_soon(slot.turns, slot.idle_s, slot.gap_s, slot.calling, knobs)
        park = self.view.parks.get(slot.id.engine)
        if park is None or not park.saves(slot.state, match.lcp):
            return chance * prefill_s(params.cost, match.lcp, slot.resident)
        dropped = self.view.dropped(index)
        lost_s = sum(self.view.loss_of_s(state) for state in dropped)
        if slot.state in dropped:
            return lost_s
        return lost_s + (1 + chance) * slot.resident / params.keep.restore_tps

    def cost_s(self, index: int) -> float:
        """Seconds this request costs on that slot: its own and the expected loss."""
        view, read_s = self.view, self.read_s(index)
        id = view.slots[index].id
        waits_s = view.behind_s(id) + read_s * view.before(id)
        return read_s + waits_s + view.params.affinity.destruction * self.loss_s(index)

    def _here(self, index: int) -> int:
        return reuse(self.waiting.request, self.view.slots[index], self.waiting.matches[index])

    def _parked(self, index: int, here: int) -> Parked | None:
        """What the RAM cache would bring into that slot. None: nothing better than it has."""
        slot = self.view.slots[index]
        parked = self.waiting.parked.get(slot.id.engine)
        if parked is None or parked.shared <= here or not self.waiting.request.cache_prompt:
            return None
        park = self.view.parks[slot.id.engine]
        if not park.saves(slot.state, here) or parked.state in self.view.dropped(index):
            return None
        return parked

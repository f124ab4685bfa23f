"""One waiting request against the slots of one moment: what each slot would cost it, and others.

Seconds are the measure. A slot costs a request the prefill of what it does not hold, and a copy
where the engine's RAM cache has more of the prompt than the slot. It costs others what is lost by
it: the slot's own content, or, where that is saved, what has to leave the cache for it; each by
the chance that somebody comes back for it soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slotwise.policies import admission
from slotwise.policies.affinity import NONE_SEEN, Returns, chance_of_return, expected_loss_s, reuse
from slotwise.policies.bounds import bound_s
from slotwise.policies.cost import piece_s, prefill_s
from slotwise.policies.params import Params
from slotwise.policies.ram_cache import RamCache, SlotContent
from slotwise.policies.types import Parked, Request, SlotView, WaitingView

_BATCH_TOKENS = 512  # of the engine's; to empty a slot is one more call, which waits for one
_WORTH = 30.0  # a newcomer waits so long for each second that an owner would lose
_WANTED_AGAIN = 0.5  # chance that what a session left in a slot is not over, where its head changed


class Option(NamedTuple):
    """One way to put a prompt into a slot."""

    cached: int  # tokens it would not have to compute
    read_s: float  # until it is read, by itself
    loss_s: float  # what others lose by it, as far as may be expected
    empties: bool = False  # the slot is emptied first, so that nothing leaves the cache for it


@dataclass(slots=True)
class View:
    """All that the decisions of one moment may depend on."""

    slots: Sequence[SlotView]
    pool_free: int | None  # tokens of the unified pool that running requests leave; None: no pool
    params: Params
    at_rest: bool = False  # nothing runs: who waits, waits for nobody's benefit but the owners'
    ram_caches: Mapping[str, RamCache] = field(default_factory=dict)  # the RAM caches, by engine
    returns: Returns = NONE_SEEN
    now: float = 0.0  # s
    asked_for: frozenset[str | None] = frozenset()  # what is parked and waited for, by request
    waits_pay: float = 1.0  # share of the waits for an owner's return in which one came back
    largest: int = field(init=False)  # window, tokens
    alike: list[bool] | None = field(init=False)  # which slots fit, where all windows are equal
    resting: list[int] = field(init=False)  # indices of the idle slots
    _saved: dict[int, tuple[SlotContent, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
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

    def dropped(self, index: int) -> tuple[SlotContent, ...]:
        """What leaves the RAM cache, or never gets there, when this slot's content is saved."""
        if index not in self._saved:
            slot = self.slots[index]
            self._saved[index] = self.ram_caches[slot.id.engine].room_for(slot.state)[1]
        return self._saved[index]

    def loss_of_s(self, state: SlotContent) -> float:
        """Seconds that are lost, as far as may be expected, with a state that nobody has again."""
        params = self.params
        if state.request in self.asked_for:
            return piece_s(params.cost, 0, state.tokens)
        idle_s = self.now - state.last_used
        return expected_loss_s(state, 0, idle_s, self.returns, params.cost)


@dataclass(slots=True)
class SlotCosts:
    """One request against one view, with what several rules need."""

    waiting: WaitingView
    view: View
    waited_s: float
    fits: list[bool]
    _options: dict[int, Option] = field(default_factory=dict)

    def idle(self) -> list[int]:
        """Indices of the slots that are at rest and large enough."""
        return [i for i in self.view.resting if self.fits[i]]

    def free(self) -> list[int]:
        """Those of them that are not kept for their owners, or not from this request."""
        return [i for i in self.idle() if self.kept_for_s(i) <= 0]

    def kept_for_s(self, index: int) -> float:
        """How much longer an idle slot is kept from this request for its owner's likely return."""
        slot, params = self.view.slots[index], self.view.params
        if not slot.kept or self.waiting.matches[index].is_home:
            return 0.0
        # Nobody else would wait for what the owner has to compute again, on an engine at rest.
        worth = 1.0 if self.view.at_rest else _WORTH
        longest_s = bound_s(params.max_wait_s, self.waiting, params)
        longest_s = min(longest_s, worth * self.view.waits_pay * self.loss_s(index))
        return min(params.keep_s - slot.idle_s, longest_s - self.waited_s)

    def cached(self, index: int) -> int:
        """Tokens the request would not have to compute on that slot."""
        return self.option(index).cached

    def own_s(self, index: int) -> float:
        """Seconds until the prompt is read on that slot, whatever is destroyed there."""
        return self.option(index).read_s

    def loss_s(self, index: int) -> float:
        """Seconds that others lose, as far as may be expected, if the request takes that slot."""
        return self.option(index).loss_s

    def option(self, index: int) -> Option:
        """The cheapest way to put it there."""
        found = self._options.get(index)
        if found is None:
            found = self._options[index] = self._option(index)
        return found

    def _option(self, index: int) -> Option:
        view, slot, match = self.view, self.view.slots[index], self.waiting.matches[index]
        params, n = view.params, self.waiting.request.tokens.length
        here = reuse(self.waiting.request, slot, match)
        wanted = _WANTED_AGAIN if match.kind == "session" else 1.0
        if slot.view_len == 0:
            return Option(here, prefill_s(params.cost, here, n), 0.0)
        ram_cache = view.ram_caches.get(slot.id.engine)
        if ram_cache is None or not ram_cache.saves(slot.state, match.lcp):
            loss_s = wanted * self._own_loss_s(slot, match.lcp)
            return Option(here, prefill_s(params.cost, here, n), loss_s)
        dropped = view.dropped(index)
        lost_s = sum(view.loss_of_s(state) for state in dropped)
        if slot.state not in dropped:
            chance = 0.0
            if not slot.guest:
                chance = chance_of_return(slot.turns, slot.idle_s, slot.calling, view.returns)
            lost_s += (1 + chance) * params.copy_s(slot.resident)
        saving = Option(*self._read(index, here, dropped), lost_s)
        if not (ram_cache.empties and dropped):
            return saving
        if slot.state in dropped or match.is_home:
            return saving  # nobody gains by it; what a home holds is the request's own
        again_s = wanted * self._own_loss_s(slot, 0) + prefill_s(params.cost, 0, _BATCH_TOKENS)
        emptying = Option(*self._read(index, 0, ()), again_s, True)
        return min(saving, emptying, key=lambda option: option.read_s + option.loss_s)

    def _own_loss_s(self, slot: SlotView, kept: int) -> float:
        """Seconds that are lost with what a slot holds behind the first ``kept`` tokens."""
        view = self.view
        return expected_loss_s(slot.state, kept, slot.idle_s, view.returns, view.params.cost)

    def _read(self, index: int, here: int, dropped: Sequence[SlotContent]) -> tuple[int, float]:
        """Tokens that need not be computed, and the seconds to compute the others, in a slot that
        has ``here`` of them when its content is saved and these states leave the cache."""
        params, n = self.view.params, self.waiting.request.tokens.length
        parked = self._parked(index, here)
        if parked is None or parked.state in dropped:
            return here, prefill_s(params.cost, here, n)
        shared = min(parked.shared, n - 1)
        copy_s = params.copy_s(parked.state.tokens)
        return shared, copy_s + prefill_s(params.cost, shared, n)

    def cost_s(self, index: int) -> float:
        """Seconds this request costs on that slot: its own and the expected loss."""
        return self.own_s(index) + self.loss_s(index)

    def _parked(self, index: int, here: int) -> Parked | None:
        """What the RAM cache would bring into that slot. None: nothing better than it has."""
        parked = self.waiting.parked.get(self.view.slots[index].id.engine)
        if parked is None or parked.shared <= here or not self.waiting.request.cache_prompt:
            return None
        return parked

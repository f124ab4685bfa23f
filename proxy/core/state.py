"""The scheduler's state: engines, waiting and running requests, costs, per profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from slotwise.policies import order
from slotwise.policies.admission import pool_need
from slotwise.policies.affinity import NONE_SEEN, Displacements, Returns, is_live
from slotwise.policies.bounds import line_s
from slotwise.policies.cost import CostFit, piece_s, prefill_s, run_s
from slotwise.policies.params import Cost, Params
from slotwise.policies.prefix import lcp
from slotwise.policies.ram_cache import RamCache, SlotContent, Swap
from slotwise.policies.slot_costs import View
from slotwise.policies.types import (
    Match,
    Place,
    Reason,
    Request,
    Rule,
    SlotId,
    SlotView,
    WaitingView,
)
from slotwise.policies.working_set import KEEP_ABOVE, most_running, working_set
from slotwise.proxy.core.events import RequestFinished
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.slot_holds import SlotHolds
from slotwise.proxy.core.waiting import Contexts, KeyService, Waiter


@dataclass(slots=True, eq=False)
class EngineState:
    """One life of one llama-server process; a restart is another object."""

    name: str
    profile: str
    mirrors: list[SlotMirror]
    pool: int | None  # tokens of the unified KV pool; None: one stream per slot
    pins: bool
    ram_cache: RamCache
    parked: int = 0  # how often what its RAM cache holds has changed
    unpinned: int = 0  # running requests whose slot the engine chose

    def replace_ram_cache(self, states: tuple[SlotContent, ...]) -> None:
        """What its RAM cache holds from now on."""
        self.ram_cache = replace(self.ram_cache, states=states)
        self.parked += 1


@dataclass(slots=True, eq=False)
class Running:
    """A dispatched request, until its one end."""

    request: Request
    engine: EngineState
    mirror: SlotMirror | None  # None: unpinned
    started: float  # s
    expected: int  # tokens
    rule: Rule
    why: str = ""  # the numbers it was placed on
    read: bool = False  # its prompt is in the KV
    before: RamCache | None = None  # the RAM cache, if sending it changed that
    # What its times can be taken for, see :class:`LearnedCost`.
    alone: bool = True  # no other prompt was read beside its own
    generating: float = 0.0  # since when, as far as that is reported (s)
    beside: float = 0.0  # integral over time of the number of requests that ran, until then
    stalled_s: float = 0.0  # since then other prompts were read for so long

    def prefill_s(self, cost: Cost) -> float:
        """Seconds that its prompt takes by itself."""
        return prefill_s(cost, self.expected, len(self.request.tokens))

    def run_left_s(self, cost: Cost, sequences: int, now: float) -> float:
        """What is left of it beside so many others, by the cost model and its limit (s)."""
        request = self.request
        n = len(request.tokens)
        whole_s = run_s(cost, self.expected, n, request.max_tokens, max(1, sequences))
        # What takes longer than expected may take as long again: answers are heavy-tailed.
        return abs(whole_s - (now - self.started))

    @property
    def uncached(self) -> int:
        return len(self.request.tokens) - self.expected


_LEAST_TOKENS = 8  # a shorter answer tells nothing of the time a token takes
_MOST_STALLED = 0.5  # of a generation's time, else what is left of it is a guess


class LearnedCost:
    """The costs of one profile: the first values, then what its engine tells."""

    def __init__(self, first: Cost) -> None:
        self.cost = first  # as known now
        self._fit = CostFit(first)
        self.reports = 0  # that were taken into account
        self._running = 0
        self._beside = 0.0  # integral of the number of running requests over time
        self._at = 0.0  # up to here

    def began(self, new: Running, others: Iterable[Running]) -> None:
        """A request was sent to the engine, beside the others that run there."""
        cost, now = self.cost, new.started
        self._count(1, now)
        new.beside, new.generating = self._beside, now
        for other in others:
            if not other.read:
                new.alone = other.alone = False
            else:
                other.stalled_s += new.prefill_s(cost)

    def read(self, one: Running, others: Iterable[Running], now: float) -> None:
        """Its prompt is in the KV."""
        self._count(0, now)
        cost = self.cost
        one.beside, one.generating = self._beside, now
        one.stalled_s = sum(o.prefill_s(cost) for o in others if not o.read)

    def ended(self, one: Running, reported: RequestFinished | None, now: float) -> Cost | None:
        """It does not run any more; the engine told of it, or did not. Returns the costs as they
        are known now, None: as before."""
        self._count(-1, now)
        before = self._fit
        if reported is not None:
            self._prompt(one, reported)
            self._answer(one, reported, now)
            if one.request.max_tokens is None:
                self._fit = self._fit.answer_ended(reported.completion_tokens or 0)
        if self._fit is before:
            return None
        self.cost = self._fit.cost
        return self.cost

    def _prompt(self, one: Running, reported: RequestFinished) -> None:
        n, cached = reported.prompt_tokens, reported.cached_tokens
        if reported.prefill_s and one.alone and n and cached is not None:
            self._fit = self._fit.prompt_read(cached, n, reported.prefill_s)
            self.reports += 1

    def _answer(self, one: Running, reported: RequestFinished, now: float) -> None:
        tokens, seconds = reported.completion_tokens or 0, reported.decode_s or 0.0
        took_s = now - one.generating
        if tokens < _LEAST_TOKENS or took_s <= 0 or one.stalled_s > _MOST_STALLED * seconds:
            return
        sequences = max(1.0, (self._beside - one.beside) / took_s)
        seconds -= one.stalled_s
        # The first token is the prompt's.
        self._fit = self._fit.tokens_generated(tokens - 1, seconds, sequences)
        self.reports += 1

    def _count(self, more: int, now: float) -> None:
        self._beside += self._running * (now - self._at)
        self._at = now
        self._running += more


_KEPT_TURNS = 2  # one-shot calls follow each other onto the slot that holds what they share


@dataclass(frozen=True, slots=True)
class Held:
    """Where a prompt's tokens were held when it was placed, see :class:`actions.Dispatch`."""

    here: int = 0
    tail: int = 0
    elsewhere: int = 0
    displaces: str | None = None


@dataclass(slots=True, eq=False)
class ProfileState:
    """One profile's engines, waiting requests and counts."""

    name: str
    params: Params
    engines: dict[str, EngineState] = field(default_factory=dict)
    mirrors: list[SlotMirror] = field(default_factory=list)  # of the engines that keep pins
    waiters: dict[str, Waiter] = field(default_factory=dict)
    line: list[Waiter] = field(default_factory=list)  # who goes first, as of the last decision
    running: dict[str, Running] = field(default_factory=dict)
    last_run: dict[SlotId, Running] = field(default_factory=dict)  # what each slot was given last
    peak_running: int = 0
    returns: Returns = NONE_SEEN
    contexts: Contexts = field(init=False)
    services: KeyService = field(init=False)
    learned: LearnedCost = field(init=False)
    slot_holds: SlotHolds = field(init=False)
    displacements: Displacements = field(default_factory=Displacements)

    def __post_init__(self) -> None:
        self.learned = LearnedCost(self.params.cost)
        self.slot_holds = SlotHolds(self.name)
        self.contexts = Contexts()
        self.services = KeyService()

    def working_set(self, now: float) -> float:
        """Live conversations over what can be kept warm."""
        counted = self.contexts.counted()
        return working_set(counted, len(self.mirrors), now, self.returns, self.params)

    def most_running(self, working_set: float) -> int:
        """How many requests may run at once."""
        slots = sum(len(engine.mirrors) for engine in self.engines.values())
        return most_running(working_set, slots, self.params)

    def displaced(self, request: Request, taken: SlotMirror, match: Match, now: float) -> None:
        """A request gets this slot of an engine that saves nothing. Where it reads again what was
        displaced, slots that nobody has used since pay for it."""
        missed, since = self.displacements.missed(request.tokens)
        held = min(match.lcp, taken.content.held)
        if missed > held:
            unused = [m for m in self.mirrors if m is not taken and m.unused_since(since)]
            if all(mirror.resident for mirror in unused):  # an empty one was the better choice
                rent_s = piece_s(self.params.cost, held, missed)
                for mirror in unused:
                    mirror.owe(rent_s)
        if held < taken.content.held:
            self.displacements.add(taken.content, now, len(self.mirrors))

    @property
    def epoch(self) -> int:
        """Changes whenever what a slot served last does."""
        parked = sum([engine.parked for engine in self.engines.values()])
        return sum([mirror.version for mirror in self.mirrors]) + parked

    def ram_caches(self) -> dict[str, RamCache]:
        """The RAM caches of the engines that have one."""
        return {e.name: e.ram_cache for e in self.engines.values() if e.ram_cache.limit_tokens}

    def add_engine(self, engine: EngineState) -> None:
        self.engines[engine.name] = engine
        self._engines_changed()

    def drop_engine(self, name: str) -> None:
        del self.engines[name]
        self.last_run = {slot: run for slot, run in self.last_run.items() if slot.engine != name}
        self.slot_holds.lost(name)
        self._engines_changed()

    def _engines_changed(self) -> None:
        self.mirrors = [m for e in self.engines.values() if e.pins for m in e.mirrors]
        for waiter in self.waiters.values():
            waiter.restart(self.mirrors)

    def unpinned_engine(self) -> EngineState | None:
        """An engine that does not keep pins, where no other is ready."""
        if self.mirrors:
            return None
        return next((e for e in self.engines.values() if not e.pins), None)

    def add_waiter(self, request: Request, now: float) -> None:
        params = self.params
        limit_s = params.request_timeout_s if request.stream else params.whole_wait_s
        context, is_new = self.contexts.arrived(request, now)
        if context.turns == (1 if is_new else 2):
            self.returns = self.returns.saw(is_new)
        view = WaitingView(
            request,
            now,
            [],
            owns=False,
            line_s=self._line_s(request, now),
        )
        waiter = Waiter(view, now + limit_s, context, since=now)
        waiter.restart(self.mirrors)
        self.waiters[request.id] = waiter

    def _line_s(self, asked: Request, now: float) -> float:
        slots = sum(len(engine.mirrors) for engine in self.engines.values())
        ahead = [(r.request, now - r.started) for r in self.running.values()]
        ahead += [(w.view.request, 0.0) for w in self.waiters.values()]
        return line_s(asked, ahead, slots, self.params.cost)

    def weigh(self, now: float) -> int | None:
        """Note what the key of everyone who waits was served by now, and who is overdue. Returns
        the most steps of a key with a request that is; None: there is none."""
        views = [waiter.view for waiter in self.waiters.values()]
        served = {key: self.services.of(key, now) for key in {v.request.key for v in views}}
        for view in views:
            view.service_s = served[view.request.key]
        fewest = min([order.steps(view, self.params) for view in views], default=0)
        for view in views:
            view.overdue = order.is_overdue(view, now - view.arrived, fewest, self.params)
        return max([order.steps(v, self.params) for v in views if v.overdue], default=None)

    def drop_waiter(self, id: str, now: float) -> bool:
        """A request leaves the queue unplaced. False: it does not wait (any more)."""
        waiter = self.waiters.pop(id, None)
        if waiter is None:
            return False
        self.contexts.ended(waiter.view.request, now)
        return True

    def begin(self, running: Running) -> None:
        """A request is sent to its engine; whoever came before it and waits is overtaken."""
        arrived = self.waiters.pop(running.request.id).view.arrived
        for waiter in self.waiters.values():
            if waiter.view.arrived < arrived:
                waiter.overtaken(running.request.id, running.started)
        self.learned.began(running, self.running.values())
        self.running[running.request.id] = running
        if running.mirror is not None:
            self.last_run[running.mirror.id] = running
        self.peak_running = max(self.peak_running, len(self.running))

    def was_read(self, running: Running, now: float) -> None:
        """A running request's prompt is in the KV."""
        running.read = True
        self.learned.read(running, self.running.values(), now)

    def end(self, running: Running, reported: RequestFinished | None, now: float) -> None:
        """It ended; what the engine told of it makes the costs more exact."""
        del self.running[running.request.id]
        if running.mirror is None:
            running.engine.unpinned -= 1
        self.contexts.ended(running.request, now, self.calls(reported))
        for waiter in self.waiters.values():
            if waiter.overtaken_by:
                waiter.overtaker_ended(running.request.id, now)
        cost = self.learned.ended(running, reported, now)
        if cost is not None:
            self.params = replace(self.params, cost=cost)

    def calls(self, reported: RequestFinished | None) -> bool:
        """Whether an answer counts as one that asked for tools."""
        return reported is not None and reported.tool_calls

    def waits_for_memory(self) -> bool:
        """Whether a sample of the machine's memory may let somebody go on."""
        return any(w.reason is Reason.MEMORY for w in self.waiters.values())

    def serve(self, running: Running, cached: int | None, generated: int, now: float) -> None:
        """Charge a request's key with the engine's work for it. ``cached`` None: as expected."""
        known = running.expected if cached is None else cached
        cost = self.params.cost
        work_s = prefill_s(cost, known, len(running.request.tokens)) + generated * cost.decode_s
        self.services.add(running.request.key, work_s, now)

    def reading(self) -> list[Running]:
        """The running requests whose prompts are being read."""
        return [r for r in self.running.values() if not r.read]

    def view(self, now: float, working_set: float) -> View:
        """All that the rules may look at, as of now."""
        return View(
            self._slot_views(now, working_set),
            self.pool_free(),
            self.params,
            at_rest=not self.running,
            ram_caches=self.ram_caches(),
            returns=self.returns,
            now=now,
            asked_for=self._asked_for(),
            waits_pay=self.slot_holds.waits_pay,
        )

    def _asked_for(self) -> frozenset[str | None]:
        return frozenset(
            parked.state.request for w in self.waiters.values() for parked in w.view.parked.values()
        )

    def _slot_views(self, now: float, working_set: float) -> list[SlotView]:
        views = []
        for mirror in self.mirrors:
            content, request = mirror.content, mirror.request
            view = mirror.view()
            view.idle_s = max(0.0, now - content.last_used)
            view.kept = False
            view.run_left_s = 0.0
            running = None if view.idle else self.last_run.get(mirror.id)
            # What was given up ends at its next token or batch.
            if running is not None and request is not None:
                view.run_left_s = running.run_left_s(self.params.cost, len(self.running), now)
            view.running_key = request.key if request else None
            views.append(view)
        if self.params.keep and working_set > KEEP_ABOVE:
            for view in views:
                view.kept = (
                    view.idle
                    and view.idle_s < self.params.keep_s
                    and (view.calling or view.turns >= _KEPT_TURNS)
                    and is_live(view)
                )
        return views

    def held_for(
        self, request: Request, matches: list[Match], place: Place, swap: Swap | None
    ) -> Held:
        """What the slots hold of a prompt that is about to be placed on one of them."""
        slot = place.slot
        content = self.mirrors[slot].content
        match = matches[slot]
        others = [
            min(m.lcp, mirror.content.held)
            for m, mirror in zip(matches, self.mirrors, strict=True)
            if mirror is not self.mirrors[slot]
        ]
        here = min(match.lcp, content.held)
        tail = content.tail if match.covers and content.held == content.view.length else 0
        if swap is not None and swap.loaded is not None:
            here = min(lcp(swap.loaded.view, request.tokens), swap.loaded.held)
            tail = swap.loaded.shared(request.tokens) - here
        elif place.empties:
            here = tail = 0
        return Held(
            here=here,
            tail=tail,
            elsewhere=max(others, default=0),
            displaces=None if match.is_home else content.request,
        )

    def pool_free(self) -> int | None:
        """Tokens of the unified pool beside what runs. None: there is no pool, or nothing runs,
        and then one request may have all of it."""
        pool = next((e.pool for e in self.engines.values() if e.pool is not None), None)
        if pool is None or not self.running:
            return None
        used = sum(pool_need(r.request, self.params) for r in self.running.values())
        return max(0, pool - used)


def profile_of(engine: str, profiles: Iterable[ProfileState]) -> ProfileState | None:
    """Whose engine it is; None: it is not ready."""
    return next((profile for profile in profiles if engine in profile.engines), None)

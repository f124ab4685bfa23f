"""Who goes on now: the waiting requests in their order, each decided on and, if placed, sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slotwise.policies import guest, order, regret
from slotwise.policies.admission import pool_need
from slotwise.policies.bounds import bound_s
from slotwise.policies.continuation import STRANGER
from slotwise.policies.decide import all_at_work, decide
from slotwise.policies.order import PROMOTES, Promotion
from slotwise.policies.params import Params
from slotwise.policies.ram_cache import RamCache, Swap
from slotwise.policies.regret import Loss, Obstacle
from slotwise.policies.slot_costs import View
from slotwise.policies.types import (
    Place,
    Reason,
    Reject,
    Request,
    Rule,
    SlotId,
    SlotView,
    Verdict,
    Wait,
)
from slotwise.policies.working_set import SCARCE
from slotwise.proxy.core import snapshot
from slotwise.proxy.core.events import Action, Dispatch, HomeWait, Refuse
from slotwise.proxy.core.memory import MemoryGate, placing
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.state import EngineState, Held, ProfileState, Running
from slotwise.proxy.core.waiting import BACKGROUND_KINDS, Waiter

UNPINNED = -1  # the id_slot of a request whose slot the engine chooses
_HOME_RULES = (Rule.HOME, Rule.BRANCH, Rule.SESSION)


class PlacementStory(NamedTuple):
    """Fields of :class:`proxy.core.events.Dispatch`."""

    regret: tuple[Loss, ...]
    promoted: Promotion | None
    home_wait: HomeWait | None


def story(
    profile: ProfileState, waiter: Waiter, place: Place, view: View, now: float
) -> PlacementStory:
    """Of a request that is about to be sent, ``view`` being what was decided on."""
    losses = {loss.obstacle: loss.seconds for loss in waiter.lost(now)}
    if place.slot != UNPINNED and place.rule is not Rule.HOME:  # nothing beats a home
        fits = view.fits(waiter.view.request)
        dearer = regret.of_slot(waiter.view, view, fits, place.slot)
        if dearer is not None:
            losses[dearer.obstacle] = losses.get(dearer.obstacle, 0.0) + dearer.seconds
    home_wait = None
    if waiter.home_busy:
        home_wait = HomeWait.PLACED if place.rule in _HOME_RULES else HomeWait.GAVE_UP
    return PlacementStory(
        tuple(Loss(obstacle, losses[obstacle]) for obstacle in Obstacle if obstacle in losses),
        _promotion(profile, waiter, now),
        home_wait,
    )


def _promotion(profile: ProfileState, waiter: Waiter, now: float) -> Promotion | None:
    """Why it goes before others; None: by the usual order, or nobody else is there."""
    others = len(profile.waiters) > 1 or profile.running
    if not others:
        return None
    waited_s = now - waiter.view.arrived
    is_background = waiter.view.request.kind in BACKGROUND_KINDS
    if is_background and waited_s >= profile.params.side_job_wait_s:
        return Promotion.BACKGROUND
    return PROMOTES.get(waiter.place) if len(profile.waiters) > 1 else None


# What waits for these waits on, whatever a side job does meanwhile.
_OF_ITS_OWN = (Reason.HELD, Reason.HOME_BUSY)


def not_yet(profile: ProfileState, waiter: Waiter, now: float) -> Wait | None:
    """A side job waits while somebody else waits for a first token."""
    view, waited_s = waiter.view, now - waiter.view.arrived
    request = view.request
    params = profile.params
    left_s = min(params.side_job_wait_s, view.line_s / 2) - waited_s
    if not params.order or request.kind not in BACKGROUND_KINDS or left_s <= 0:
        return None
    first = [r for r in profile.reading() if r.request.kind not in BACKGROUND_KINDS]
    queued = any(
        w.view.request.kind not in BACKGROUND_KINDS and w.reason not in _OF_ITS_OWN
        for w in profile.waiters.values()
    )
    if not first and not queued:
        return None
    return Wait(Reason.BACKGROUND, "somebody waits for a first token", left_s)


def not_cold(profile: ProfileState, waiter: Waiter, place: Place, now: float) -> Verdict:
    """Hold a long prompt back while another is read: each stalls every stream."""
    params = profile.params
    request = waiter.view.request
    uncached = len(request.tokens) - place.expected_cached
    if not params.cold or uncached <= params.cold_tokens:
        return place
    longest_s = bound_s(params.max_wait_s, waiter.view, params)
    left_s = longest_s - (now - waiter.view.arrived)
    if left_s <= 0:
        return place
    if not any(r.uncached > params.cold_tokens for r in profile.reading()):
        return place
    return Wait(Reason.COLD_PREFILL, "another long prompt is being read", left_s)


def unpinned_verdict(engine: EngineState, request: Request) -> Verdict:
    """An engine that does not keep pins gets as many requests as it has slots."""
    largest = max(m.window for m in engine.mirrors)
    if len(request.tokens) >= largest:
        why = f"the prompt has {len(request.tokens)} tokens, the window holds {largest}"
        return Reject("exceed_context_size_error", why, largest)
    if engine.unpinned >= len(engine.mirrors):
        return Wait(Reason.SLOTS_BUSY, all_at_work(len(engine.mirrors)))
    return Place(UNPINNED, Rule.UNPINNED, 0, None, "the engine does not keep pins")


_RETRY_AFTER_TIMEOUT_S = 30


class Dispatcher:
    """The decisions of one moment, on the books of the scheduler that owns them."""

    def __init__(self, profiles: Mapping[str, ProfileState], memory: MemoryGate) -> None:
        self._profiles = profiles
        self._memory = memory

    def decide(self, profile: ProfileState, now: float, out: list[Action]) -> None:
        """End what waited too long, then place what can be placed."""
        self._expire(profile, now, out)
        out.extend(profile.slot_holds.expired(now))
        if not profile.waiters:
            profile.line = []
            profile.slot_holds.nobody_waits(now)
            return
        working_set = profile.working_set(now)
        view = profile.view(now, working_set)
        epoch, ram_caches = profile.epoch, profile.ram_caches()
        profile.line = self._line_up(
            profile, view.slots, epoch, ram_caches, working_set > SCARCE, now
        )
        max_running = profile.most_running(working_set)
        stale = False
        for waiter in profile.line:
            if stale:
                view, epoch, stale = profile.view(now, working_set), profile.epoch, False
                ram_caches = profile.ram_caches()
            if profile.engines and len(profile.running) >= max_running:
                waiter.hold(Wait(Reason.MAX_RUNNING, snapshot.as_many_run(max_running)), now)
                continue
            waiter.compare(profile.mirrors, ram_caches, epoch, profile.params)
            verdict = not_yet(profile, waiter, now) or self._verdict(profile, waiter, view, now)
            if isinstance(verdict, Place):
                verdict = not_cold(profile, waiter, verdict, now)
            if isinstance(verdict, Place):
                verdict = self._memory.fits(profile, waiter, verdict, now)
            if isinstance(verdict, Wait):
                waiter.hold(verdict, now, profile.slot_holds.returns)
            elif isinstance(verdict, Reject):
                self._reject(profile, waiter, verdict, now, out)
            else:
                self._dispatch(profile, waiter, verdict, view, now, out)
                stale = True  # made anew for the next one, if there is one
        if any(waiter.reason is Reason.HELD for waiter in profile.waiters.values()):
            slots = profile.view(now, working_set).slots if stale else view.slots
            profile.slot_holds.left_alone(slots, profile.params.keep_s, now)
        else:
            profile.slot_holds.nobody_waits(now)
        if len(profile.line) != len(profile.waiters):
            profile.line = [w for w in profile.line if w.view.request.id in profile.waiters]
        out += self._memory.ask(self._profiles, now)

    def _line_up(
        self,
        profile: ProfileState,
        slots: Sequence[SlotView],
        epoch: int,
        ram_caches: Mapping[str, RamCache],
        scarce: bool,
        now: float,
    ) -> list[Waiter]:
        waiters = list(profile.waiters.values())
        for waiter in waiters:
            waiter.compare(profile.mirrors, ram_caches, epoch, profile.params)
        if len(waiters) == 1:
            return waiters  # nobody stands before or behind it
        overdue = profile.weigh(now)
        ranked = []
        for waiter in waiters:
            view = waiter.view
            is_guest = not view.owns and guest.is_guest(view, slots, profile.params)
            waited_s = now - view.arrived
            rank = order.rank(view, is_guest, waited_s, profile.params, overdue, scarce)
            waiter.place = rank.place
            ranked.append((rank, waiter))
        ranked.sort(key=lambda pair: pair[0])
        return [waiter for _, waiter in ranked]

    def _verdict(self, profile: ProfileState, waiter: Waiter, view: View, now: float) -> Verdict:
        unpinned = profile.unpinned_engine()
        if unpinned is not None:
            return unpinned_verdict(unpinned, waiter.view.request)
        return decide(waiter.view, view, now - waiter.view.arrived)

    def _dispatch(
        self,
        profile: ProfileState,
        waiter: Waiter,
        place: Place,
        view: View,
        now: float,
        out: list[Action],
    ) -> None:
        request = waiter.view.request
        self._memory.reserves.begin(placing(profile, waiter, place))
        reported = story(profile, waiter, place, view, now)
        if waiter.returns is not None:
            profile.slot_holds.waited(waiter.returns)
        mirror: SlotMirror | None = None
        held, before, loaded = Held(), None, None
        if place.slot == UNPINNED:
            engine = profile.unpinned_engine()
            assert engine is not None
            engine.unpinned += 1
            slot = SlotId(engine.name, UNPINNED)
        else:
            mirror = profile.mirrors[place.slot]
            slot = mirror.id
            engine = profile.engines[slot.engine]
            if engine.pool is not None:
                _make_room(engine, engine.pool, mirror, request, profile.params)
            match = waiter.view.matches[place.slot]
            if place.rule is Rule.HOME and not match.same:
                content = mirror.content
                pause_s = waiter.view.arrived - content.last_used
                profile.returns = profile.returns.after(pause_s, content.calling)
            if place.empties:
                swap: Swap | None = engine.ram_cache.into_emptied(request.tokens)
            else:
                swap = engine.ram_cache.swap(mirror.content, request.tokens)
            held = profile.held_for(request, waiter.view.matches, place, swap)
            if not engine.ram_cache.limit_tokens:
                profile.displaced(request, mirror, match, now)
            if place.empties:
                mirror.forget()
                match = STRANGER
            if swap is not None:
                before, loaded = engine.ram_cache, swap.loaded
                engine.replace_ram_cache(swap.states)
            profile.slot_holds.returns += match.is_home
            out.extend(profile.slot_holds.taken(slot, match.is_home, now))
            mirror.begin(request, place.rule, match, now, loaded)
        profile.begin(
            Running(
                request,
                engine,
                mirror,
                now,
                place.expected_cached,
                place.rule,
                place.why,
                before=before,
            )
        )
        out.append(
            Dispatch(
                id=request.id,
                slot=slot,
                rule=place.rule,
                expected_cached=place.expected_cached,
                waited_s=now - waiter.view.arrived,
                wait_reason=waiter.reason,
                max_tokens=place.max_tokens,
                why=place.why,
                here=held.here,
                tail=held.tail,
                elsewhere=held.elsewhere,
                displaces=held.displaces,
                regret=reported.regret,
                promoted=reported.promoted,
                home_wait=reported.home_wait,
                empties=place.empties,
            )
        )

    def _reject(
        self, profile: ProfileState, waiter: Waiter, verdict: Reject, now: float, out: list[Action]
    ) -> None:
        request = waiter.view.request
        profile.drop_waiter(request.id, now)
        out.append(
            Refuse(
                request.id,
                400,
                verdict.code,
                verdict.why,
                n_prompt_tokens=len(request.tokens),
                n_ctx=verdict.n_ctx,
                wait_reason=waiter.reason,
                waited_s=now - waiter.view.arrived,
            )
        )

    def _expire(self, profile: ProfileState, now: float, out: list[Action]) -> None:
        for waiter in [w for w in profile.waiters.values() if now >= w.deadline]:
            request = waiter.view.request
            profile.drop_waiter(request.id, now)
            waited_s = now - waiter.view.arrived
            for_memory = waiter.reason is Reason.MEMORY
            why = waiter.why if for_memory else f"{waiter.reason}: {waiter.why}"
            out.append(
                Refuse(
                    request.id,
                    503,
                    "memory_wait_timeout" if for_memory else "queue_timeout",
                    f"no slot within {waited_s:.0f} s ({why})",
                    retry_after_s=_RETRY_AFTER_TIMEOUT_S,
                    wait_reason=waiter.reason,
                    waited_s=waited_s,
                )
            )


def _make_room(
    engine: EngineState, pool: int, mirror: SlotMirror, request: Request, params: Params
) -> None:
    """A unified pool without free cells makes the engine empty idle slots, lowest id first, and
    it does not say so: believe the same of as many as may have to go."""
    others = [m for m in engine.mirrors if m is not mirror]
    used = pool_need(request, params) + sum(
        pool_need(m.request, params) if m.request else m.resident for m in others
    )
    for other in others:
        if used <= pool:
            return
        if other.request is None:
            used -= other.resident
            other.forget()

"""Who goes on now: the waiting requests in their order, each decided on and, if placed, sent.

What the rules say of one request is :mod:`policies.decide`; here the whole line is walked, one
decision after the other, each seeing the effect of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slotwise.policies import guest, order
from slotwise.policies.admission import pool_need
from slotwise.policies.case import View
from slotwise.policies.continuation import STRANGER
from slotwise.policies.decide import decide
from slotwise.policies.params import Params
from slotwise.policies.park import Park, Swap
from slotwise.policies.types import (
    Hold,
    Place,
    Reason,
    Reject,
    Request,
    Rule,
    SlotId,
    SlotView,
    Verdict,
)
from slotwise.policies.working_set import SCARCE
from slotwise.proxy.core import words
from slotwise.proxy.core.actions import Action, Dispatch, Refuse
from slotwise.proxy.core.book import Held, Profile
from slotwise.proxy.core.holds import not_cold, not_yet, unpinned_verdict
from slotwise.proxy.core.memory_gate import MemoryGate, placing
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.placement import UNPINNED, story
from slotwise.proxy.core.running import Engine, Running
from slotwise.proxy.core.waiter import Waiter

_RETRY_AFTER_TIMEOUT_S = 30


class Deciding:
    """The decisions of one moment, on the books of the scheduler that owns them."""

    def __init__(self, profiles: Mapping[str, Profile], memory: MemoryGate) -> None:
        self._profiles = profiles
        self._memory = memory

    def decide(self, profile: Profile, now: float, out: list[Action]) -> None:
        """End what waited too long, then place what can be placed."""
        self._expire(profile, now, out)
        out.extend(profile.keeping.expired(now))
        if not profile.waiters:
            profile.line = []
            profile.keeping.nobody_waits(now)
            return
        working_set = profile.working_set(now)
        view = profile.view(now, working_set)
        epoch, parks = profile.epoch, profile.parks()
        profile.line = self._line_up(profile, view.slots, epoch, parks, working_set > SCARCE, now)
        max_running = profile.most_running(working_set)
        stale = False
        for waiter in profile.line:
            if stale:
                view, epoch, stale = profile.view(now, working_set), profile.epoch, False
                parks = profile.parks()
            if profile.engines and len(profile.running) >= max_running:
                waiter.hold(Hold(Reason.MAX_RUNNING, words.as_many_run(max_running)), now)
                continue
            waiter.compare(profile.mirrors, parks, epoch, profile.params)
            verdict = not_yet(profile, waiter, now) or self._verdict(profile, waiter, view, now)
            if isinstance(verdict, Place):
                verdict = not_cold(profile, waiter, verdict, now)
            if isinstance(verdict, Place):
                verdict = self._memory.fits(profile, waiter, verdict, now)
            if isinstance(verdict, Hold):
                waiter.hold(verdict, now, profile.keeping.returns)
            elif isinstance(verdict, Reject):
                self._reject(profile, waiter, verdict, now, out)
            else:
                self._dispatch(profile, waiter, verdict, view, now, out)
                stale = True  # made anew for the next one, if there is one
        if any(waiter.reason is Reason.HELD for waiter in profile.waiters.values()):
            slots = profile.view(now, working_set).slots if stale else view.slots
            profile.keeping.left_alone(slots, profile.params.keep_s, now)
        else:
            profile.keeping.nobody_waits(now)
        if len(profile.line) != len(profile.waiters):
            profile.line = [w for w in profile.line if w.view.request.id in profile.waiters]
        out += self._memory.ask(self._profiles, now)

    def _line_up(
        self,
        profile: Profile,
        slots: Sequence[SlotView],
        epoch: int,
        parks: Mapping[str, Park],
        scarce: bool,
        now: float,
    ) -> list[Waiter]:
        waiters = list(profile.waiters.values())
        for waiter in waiters:
            waiter.compare(profile.mirrors, parks, epoch, profile.params)
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

    def _verdict(self, profile: Profile, waiter: Waiter, view: View, now: float) -> Verdict:
        unpinned = profile.unpinned_engine()
        if unpinned is not None:
            return unpinned_verdict(unpinned, waiter.view.request)
        return decide(waiter.view, view, now - waiter.view.arrived)

    def _dispatch(
        self,
        profile: Profile,
        waiter: Waiter,
        place: Place,
        view: View,
        now: float,
        out: list[Action],
    ) -> None:
        request = waiter.view.request
        self._memory.reserves.begin(placing(profile, waiter, place))
        told = story(profile, waiter, place, view, now)
        if waiter.returns is not None:
            profile.keeping.waited(waiter.returns)
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
                swap: Swap | None = engine.park.into_emptied(request.tokens)
            else:
                swap = engine.park.swap(mirror.content, request.tokens)
            held = profile.held_for(request, waiter.view.matches, place, swap)
            if not engine.park.limit_tokens:
                profile.displaced(request, mirror, match, now)
            if place.empties:
                mirror.forget()
                match = STRANGER
            if swap is not None:
                before, loaded = engine.park, swap.loaded
                engine.replace_park(swap.states)
            profile.keeping.returns += match.is_home
            out.extend(profile.keeping.taken(slot, match.is_home, now))
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
                regret=told.regret,
                promoted=told.promoted,
                home_wait=told.home_wait,
                empties=place.empties,
            )
        )

    def _reject(
        self, profile: Profile, waiter: Waiter, verdict: Reject, now: float, out: list[Action]
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

    def _expire(self, profile: Profile, now: float, out: list[Action]) -> None:
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
    engine: Engine, pool: int, mirror: SlotMirror, request: Request, params: Params
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

"""All scheduling state in one place: events in, actions out, nothing else.

``handle(event, now)`` is synchronous, never waits and never reads a clock, so the server, the
simulator and a replayed journal run the very same object. After every event that may change an
answer it walks the waiting requests in the order of who goes first and dispatches what the rules
place, one at a time, each decision seeing the effect of the one before.

A slot is pinned only when it was *shown* idle: by the final event of its last request, or by a
``/slots`` reply that was asked for after the request ended in any other way. The engine does not
protect itself here: a request pinned to a busy slot can load another conversation into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies import guest, order
from policies.admission import pool_need
from policies.case import View
from policies.decide import decide
from policies.params import Cost, Params
from policies.park import Park
from policies.types import Hold, Place, Reason, Reject, Request, Rule, SlotId, SlotView, Verdict
from policies.working_set import may_start
from proxy import words
from proxy.book import Held, Profile
from proxy.events import (
    Action,
    AskSlots,
    Dispatch,
    EngineLoading,
    EngineLost,
    EngineReady,
    Event,
    Failure,
    MemorySampled,
    Mismatch,
    ProfileUnloaded,
    ReclaimEnded,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    SlotReport,
    SlotsReported,
    Tick,
    Waiting,
    WakeAt,
)
from proxy.holds import not_cold, not_yet, unpinned_verdict
from proxy.memory_gate import MemoryGate, MemoryRules, placing
from proxy.mirror import SlotMirror, SlotState
from proxy.placement import UNPINNED, story
from proxy.running import Engine, Running
from proxy.standing import Standing, standing
from proxy.status import SlotStatus, profile_json, slot_statuses, waiting
from proxy.waiter import Waiter

_RETRY_AFTER_FULL_S = 5
_RETRY_AFTER_TIMEOUT_S = 30


class Scheduler:
    """The one owner of what waits, what runs and what every slot holds."""

    def __init__(self, params: Mapping[str, Params], memory: MemoryRules | None = None) -> None:
        """``params``: the parameters of each profile that may be asked for, by its name.

        ``memory``: how the machine's memory is watched; None: it is not.
        """
        self._profiles = {name: Profile(name, p) for name, p in params.items()}
        self.memory = MemoryGate(memory)
        self._wake: float | None = None

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time ``now`` (s, monotonic); say what to do about it."""
        actions: list[Action] = []
        for profile in self._apply(event, now, actions):
            self._decide(profile, now, actions)
        self._set_timer(actions)
        return actions

    # ------------------------------------------------------------ events

    def _apply(self, event: Event, now: float, out: list[Action]) -> list[Profile]:
        """Change the state; returns the profiles in which somebody may go on now."""
        match event:
            case RequestProgressed():
                return self._progressed(event, now)
            case RequestArrived():
                return self._arrived(event, now, out)
            case RequestCancelled():
                return [p for p in self._profiles.values() if p.drop_waiter(event.id, now)]
            case RequestFinished():
                return self._finished(event, now, out)
            case RequestFailed():
                return self._failed(event, now, out)
            case SlotsReported():
                return self._reported(event, now, out)
            case EngineReady():
                return self._ready(event, now)
            case EngineLost():
                return self._lost(event)
            case EngineLoading():
                self.memory.engine_loading(event)
                return []
            case ProfileUnloaded():
                out += self.memory.unload(event, self._profiles[event.profile], now)
                return []
            case MemorySampled():
                out += self.memory.sampled(event, self._profiles, now)
                return [p for p in self._profiles.values() if p.waits_for_memory()]
            case ReclaimEnded():
                out += self.memory.reclaim_ended(event)
                return []
            case Tick():
                self._wake = None
                return list(self._profiles.values())

    def _arrived(self, event: RequestArrived, now: float, out: list[Action]) -> list[Profile]:
        request = event.request
        profile = self._profiles[request.profile]
        queue = profile.params.queue
        of_key = sum(w.view.request.key == request.key for w in profile.waiters.values())
        if len(profile.waiters) >= queue.max_waiting:
            out.append(_full(request, 503, "queue_full", f"{queue.max_waiting} requests wait"))
            return []
        if of_key >= queue.max_waiting_per_key:
            limit = f"{queue.max_waiting_per_key} requests of this client wait"
            out.append(_full(request, 429, "rate_limit_exceeded", limit))
            return []
        if profile.name in self.memory.unloaded:
            out.append(self.memory.not_loaded(profile.name, request.id))
            return []
        profile.add_waiter(request, now)
        return [profile]

    def _ready(self, event: EngineReady, now: float) -> list[Profile]:
        profile = self._profiles[event.profile]
        mirrors = [
            SlotMirror(SlotId(event.engine, i), window, since=now)
            for i, window in enumerate(event.windows)
        ]
        keep = profile.params.keep
        park = Park(keep.park_tokens if keep.park else 0)
        profile.add_engine(
            Engine(event.engine, event.profile, mirrors, event.pool, event.pins, park)
        )
        self.memory.engine_ready(event)
        return [profile]

    def _lost(self, event: EngineLost) -> list[Profile]:
        profile = self._profile_of(event.engine)
        if profile is None:
            return []
        profile.drop_engine(event.engine)
        self.memory.reserves.engine_lost(event.engine)
        return [profile]

    def _progressed(self, event: RequestProgressed, now: float) -> list[Profile]:
        """Only the end of a prompt changes what others may do."""
        self.memory.reserves.progressed(event.id, event.processed)
        for profile in self._profiles.values():
            running = profile.running.get(event.id)
            if running is None:
                continue
            if running.mirror and self._current(running.engine):
                running.mirror.progressed(event.processed, event.cached)
            if not running.read and event.processed >= len(running.request.tokens):
                profile.was_read(running, now)
                return [profile]
        return []

    def _finished(self, event: RequestFinished, now: float, out: list[Action]) -> list[Profile]:
        self.memory.reserves.ended(event.id, answered=True)
        profile, running = self._ended(event, now)
        if profile is None or running is None:
            return []
        n, cached = len(running.request.tokens), event.cached_tokens
        profile.serve(running, cached, event.completion_tokens or 0, now)
        mirror, engine = running.mirror, running.engine
        if mirror is None or not self._current(engine):
            return [profile]
        if cached is not None:
            mirror.reused(cached)
        mirror.commit(event.prompt_tokens, event.completion_tokens, now, profile.calls(event))
        if event.id_slot is not None and event.id_slot != mirror.id.id_slot:
            said = f"pinned to slot {mirror.id.id_slot}, the engine used slot {event.id_slot}"
            out.append(Mismatch(mirror.id, event.id, said))
            self._distrust(engine, now)
            out.append(AskSlots(engine.name))
        elif event.prompt_tokens is not None and event.prompt_tokens != n:
            said = f"counted {n} prompt tokens, the engine {event.prompt_tokens}"
            out.append(Mismatch(mirror.id, event.id, said))
        elif self._reused_too_little(profile, running, event.cached_tokens):
            if running.before is not None:
                engine.replace_park(())  # it does not have what it was believed to have
            out.append(AskSlots(engine.name))  # did it run where it was sent?
        return [profile]

    def _failed(self, event: RequestFailed, now: float, out: list[Action]) -> list[Profile]:
        self.memory.reserves.ended(event.id, answered=False)
        profile, running = self._ended(event, now)
        if profile is None or running is None:
            return []
        profile.serve(running, len(running.request.tokens), event.generated, now)
        mirror, engine = running.mirror, running.engine
        if mirror is None or not self._current(engine):
            return [profile]
        if not event.started:
            mirror.never_sent(now)
            if running.before is not None:
                engine.replace_park(running.before.states)
            return [profile]
        if event.failure is Failure.REFUSED:
            mirror.refused(now)
        else:
            mirror.abort(event.generated, now)
        if event.failure is Failure.ENGINE_ERROR:
            mirror.forget()  # a failed decode empties the slots it touched
        out.append(AskSlots(engine.name))
        return [profile]

    def _reported(self, event: SlotsReported, now: float, out: list[Action]) -> list[Profile]:
        profile = self._profile_of(event.engine)
        if profile is None:
            return []
        engine = profile.engines[event.engine]
        for report in event.slots:
            if 0 <= report.id_slot < len(engine.mirrors) and engine.pins:
                mirror = engine.mirrors[report.id_slot]
                if self.memory.is_emptying(mirror.id):
                    continue
                # A reply that was asked for earlier says nothing about what came since.
                if mirror.state is not SlotState.RUNNING and event.asked_at > mirror.since:
                    self._reconcile(mirror, report, now, out)
        if any(m.state is SlotState.UNPROVEN for m in engine.mirrors):
            out.append(AskSlots(engine.name))
        return [profile]

    def _reconcile(
        self, mirror: SlotMirror, report: SlotReport, now: float, out: list[Action]
    ) -> None:
        if report.busy:
            if mirror.state is SlotState.IDLE:
                out.append(Mismatch(mirror.id, "", "busy with a request that is not ours"))
                mirror.suspect(now)
        elif not mirror.shown_idle(report.n_tokens, now):
            said = f"holds {report.n_tokens or 0} tokens, fewer than was believed"
            out.append(Mismatch(mirror.id, "", said))

    def _profile_of(self, engine: str) -> Profile | None:
        return next((p for p in self._profiles.values() if engine in p.engines), None)

    def _ended(
        self, event: RequestFinished | RequestFailed, now: float
    ) -> tuple[Profile | None, Running | None]:
        told = event if isinstance(event, RequestFinished) else None
        for profile in self._profiles.values():
            running = profile.running.get(event.id)
            if running is not None:
                profile.end(running, told, now)
                return profile, running
        return None, None

    def _current(self, engine: Engine) -> bool:
        """Whether this is the engine's present life, not one that ended."""
        return self._profiles[engine.profile].engines.get(engine.name) is engine

    def _distrust(self, engine: Engine, now: float) -> None:
        """The engine runs requests where it likes: nothing idle is known any more."""
        for mirror in engine.mirrors:
            if mirror.state is not SlotState.RUNNING:
                mirror.suspect(now)

    def _reused_too_little(self, profile: Profile, running: Running, cached: int | None) -> bool:
        return cached is not None and cached < running.expected - profile.params.home.chunk_tokens

    # ------------------------------------------------------------ decisions

    def _decide(self, profile: Profile, now: float, out: list[Action]) -> None:
        """End what waited too long, then place what can be placed."""
        self._expire(profile, now, out)
        out.extend(profile.keeping.expired(now))
        if not profile.waiters:
            profile.line = []
            profile.keeping.nobody_waits(now)
            return
        working_set = profile.working_set(now)
        profile.cap_stopped = not may_start(profile.cap_stopped, working_set, profile.params)
        view = profile.view(now, working_set)
        profile.line = self._line_up(profile, view.slots, now)
        max_running = profile.params.queue.max_running
        epoch, parks = profile.epoch, profile.parks()
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
                verdict = self.memory.fits(profile, waiter, verdict, now)
            if isinstance(verdict, Hold):
                waiter.hold(verdict, now)
            elif isinstance(verdict, Reject):
                self._reject(profile, waiter, verdict, now, out)
            else:
                self._dispatch(profile, waiter, verdict, view, now, out)
                stale = True  # made anew for the next one, if there is one
        if any(waiter.reason is Reason.HELD for waiter in profile.waiters.values()):
            slots = profile.view(now, working_set).slots if stale else view.slots
            profile.keeping.left_alone(slots, profile.params.keep, now)
        else:
            profile.keeping.nobody_waits(now)
        if len(profile.line) != len(profile.waiters):
            profile.line = [w for w in profile.line if w.view.request.id in profile.waiters]
        out += self.memory.ask(self._profiles, now)

    def _line_up(self, profile: Profile, slots: Sequence[SlotView], now: float) -> list[Waiter]:
        ranked = []
        epoch, parks = profile.epoch, profile.parks()
        overdue = profile.weigh(now)
        for waiter in profile.waiters.values():
            waiter.compare(profile.mirrors, parks, epoch, profile.params)
            view = waiter.view
            is_guest = not view.owns and guest.is_guest(
                view.request, slots, view.matches, profile.params
            )
            rank = order.rank(view, is_guest, now - view.arrived, profile.params, overdue)
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
        self.memory.reserves.begin(placing(profile, waiter, place))
        told = story(profile, waiter, place, view, now)
        waiter.context.started = True
        mirror: SlotMirror | None = None
        held, before = Held(), None
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
                profile.saw_pause(waiter.view.arrived - content.last_used, content.calling)
            swap = engine.park.swap(mirror.content, request.tokens)
            held = profile.held_for(request, waiter.view.matches, place.slot, swap)
            loaded = None
            if swap is not None:
                before, loaded = engine.park, swap.loaded
                engine.replace_park(swap.states)
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

    def _set_timer(self, out: list[Action]) -> None:
        """Ask to be woken when time alone may change an answer."""
        wake: float | None = None
        for profile in self._profiles.values():
            for waiter in profile.waiters.values():
                for at in (waiter.deadline, waiter.recheck):
                    if at is not None and (wake is None or at < wake):
                        wake = at
        if wake is not None and wake != self._wake:
            out.append(WakeAt(wake))
        self._wake = wake

    # ------------------------------------------------------------ what can be asked

    def waiting(self, now: float) -> list[Waiting]:
        """Who waits, in the order of who goes first."""
        return [
            waiting(w, ahead, now)
            for p in self._profiles.values()
            for ahead, w in enumerate(p.line)
        ]

    def waiting_for(self, id: str, now: float) -> Waiting | None:
        """Where one request stands; None: it does not wait (any more)."""
        return next((w for w in self.waiting(now) if w.id == id), None)

    def waits_for_memory(self) -> bool:
        """Whether somebody does."""
        return any(p.waits_for_memory() for p in self._profiles.values())

    def slots(self) -> list[SlotStatus]:
        """Every slot of every engine that is ready."""
        return slot_statuses(self._profiles.values())

    def standings(self, now: float) -> list[Standing]:
        """Figures of every profile."""
        return [standing(profile, now) for profile in self._profiles.values()]

    def served_s(self, profile: str, key: str, now: float) -> float:
        """Seconds of the engine's work that a key was served lately."""
        return self._profiles[profile].services.of(key, now)

    def cost(self, profile: str) -> Cost:
        """What work costs on this profile's engine, as far as it has told by now."""
        return self._profiles[profile].params.cost

    def largest_window(self, profile: str) -> int | None:
        """Tokens; None: no engine of this profile is ready."""
        engines = self._profiles[profile].engines.values()
        return max((m.window for e in engines for m in e.mirrors), default=None)

    def snapshot(self, now: float) -> dict[str, object]:
        """All of it as plain data, without a word of any prompt."""
        return {name: profile_json(p, now) for name, p in self._profiles.items()}


def _full(request: Request, status: int, code: str, limit: str) -> Refuse:
    message = f"the queue is full: {limit}"
    return Refuse(request.id, status, code, message, retry_after_s=_RETRY_AFTER_FULL_S)


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

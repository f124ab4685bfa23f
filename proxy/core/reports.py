"""What engines say of the work they were given: how far it is, its one end, what their slots hold.

A slot is pinned only when it was *shown* idle: by the final event of its last request, or by a
``/slots`` reply that was asked for after the request ended in any other way. The engine does not
protect itself here: a request pinned to a busy slot can load another conversation into it.
"""

from __future__ import annotations

from collections.abc import Mapping

from slotwise.proxy.core.actions import Action, AskSlots, Mismatch
from slotwise.proxy.core.book import Profile, profile_of
from slotwise.proxy.core.events import (
    Failure,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    SlotReport,
    SlotsReported,
)
from slotwise.proxy.core.memory_gate import MemoryGate
from slotwise.proxy.core.mirror import SlotMirror, SlotState
from slotwise.proxy.core.running import Engine, Running


class Reports:
    """Puts what they say into the books; each says in which profiles somebody may go on now."""

    def __init__(self, profiles: Mapping[str, Profile], memory: MemoryGate) -> None:
        self._profiles = profiles
        self._memory = memory

    def progressed(self, event: RequestProgressed, now: float) -> list[Profile]:
        """Only the end of a prompt changes what others may do."""
        self._memory.reserves.progressed(event.id, event.processed)
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

    def finished(self, event: RequestFinished, now: float, out: list[Action]) -> list[Profile]:
        """What was sent to a slot lies there now, unless the engine says otherwise."""
        self._memory.reserves.ended(event.id, answered=True)
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

    def failed(self, event: RequestFailed, now: float, out: list[Action]) -> list[Profile]:
        """What its slot holds now depends on how far it came."""
        self._memory.reserves.ended(event.id, answered=False)
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

    def slots(self, event: SlotsReported, now: float, out: list[Action]) -> list[Profile]:
        """What a ``/slots`` reply shows beats what was believed."""
        profile = profile_of(event.engine, self._profiles.values())
        if profile is None:
            return []
        engine = profile.engines[event.engine]
        for report in event.slots:
            if 0 <= report.id_slot < len(engine.mirrors) and engine.pins:
                mirror = engine.mirrors[report.id_slot]
                if self._memory.is_emptying(mirror.id):
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
        return cached is not None and cached < running.expected - profile.params.chunk_tokens

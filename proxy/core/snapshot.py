"""The scheduler's state as the status, the series and the pages show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from slotwise.policies.attribution import Cause
from slotwise.policies.order import jain_index
from slotwise.policies.types import Reason, SlotId
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.state import ProfileState, Running
from slotwise.proxy.core.waiting import BACKGROUND_KINDS, Waiter

SESSION_CHARS = 8  # of a session's opaque id: enough to tell conversations apart

# (what is so, what follows when time alone changes it); None: the rule's own words say it.
_WAITS: dict[str, tuple[str | None, str]] = {
    Reason.NONE: ("about to be placed", ""),
    Reason.ENGINE_LOADING: ("no engine is ready yet", ""),
    Reason.MAX_RUNNING: (None, ""),
    Reason.HOME_BUSY: ("home slot busy", "may go elsewhere in"),
    Reason.SLOTS_BUSY: (None, ""),
    Reason.HELD: ("the idle slots are kept for their conversations", "may take one in"),
    Reason.COLD_PREFILL: ("another long prompt is being read", ""),
    Reason.BACKGROUND: ("a side job: others wait for a first token", "starts at the latest in"),
    Reason.WINDOW: (None, ""),
    Reason.POOL: (None, ""),
    Reason.MEMORY: (None, ""),
}

_CAUSES = {
    Cause.CACHED: "from the cache",
    Cause.NEW: "new, never seen before",
    Cause.CHANGED: "the conversation's earlier text changed",
    Cause.ELSEWHERE: "another slot held them",
    Cause.EVICTED: "displaced from the cache since",
    Cause.ENGINE: "held, but the engine could not reuse them",
    Cause.MIN_ONE: "last token of a whole hit, always computed",
    Cause.UNKNOWN: "not reported by the engine",
}


def why_it_waits(reason: Reason, why: str, left_s: float | None) -> str:
    """``why``: the rule's own words, with its figures; ``left_s``: until time alone may change
    the answer."""
    said, then = _WAITS.get(reason, (f"waiting for {reason.replace('_', ' ')}: {why}", ""))
    if said is None:
        said = why
    return f"{said}; {then} {seconds(left_s)}" if then and left_s is not None else said


def as_many_run(n: int) -> str:
    """The profile lets no more than ``n`` run at once."""
    return "1 request runs, no more at once" if n == 1 else f"{n} requests run, no more at once"


def what_a_slot_does(state: str, read: bool | None, held: int, prompt: int) -> str:
    """``read``: whether its request's prompt is in the KV; None: the engine does not tell."""
    if state == "unproven":
        return "ended early, not shown idle yet"
    if state == "idle":
        return "idle" if prompt else "empty"
    if read:
        return "answering"
    return "at work" if read is None else f"reading {held:,} of {prompt:,}"


def cause(name: Cause) -> str:
    """What became of the tokens of this cause."""
    return _CAUSES[name]


def seconds(value: float) -> str:
    """A time to come, rounded up: what is due is never said to be past."""
    whole = max(1, -int(-value // 1))
    return f"{whole} s" if whole < 120 else f"{-(-whole // 60)} min"


_LEAST_SERVICE_S = 1e-3  # less is as good as forgotten


class SessionState(StrEnum):
    """What a remembered conversation is doing; the ``state`` label of the series."""

    RUNNING = "running"  # a request of it is at work
    WAITING = "waiting"  # one waits, none is at work
    WARM = "warm"  # between two turns, and a slot holds it
    COLD = "cold"  # between two turns, no slot holds it


@dataclass(frozen=True, slots=True)
class ProfileFigures:
    """Figures of one profile."""

    profile: str
    working_set: float  # live conversations over what slots and park keep warm
    fairness: float  # Jain's index of what the keys were served lately
    sessions: Mapping[SessionState, int]


def standing(profile: ProfileState, now: float) -> ProfileFigures:
    """As of now."""
    return ProfileFigures(
        profile.name,
        profile.working_set(now),
        jain_index(_services(profile, now)),
        _sessions(profile),
    )


def limit(profile: ProfileState, now: float) -> tuple[int, str]:
    """How many requests may run at once, and why so many."""
    asked = profile.params.max_running
    slots = sum(len(engine.mirrors) for engine in profile.engines.values())
    if profile.engines and slots < asked:
        return slots, f"{slots} slots are there; policy.max_running is {asked}"
    if asked:
        return asked, "policy.max_running"
    most = profile.most_running(profile.working_set(now))
    return most, "all slots" if most == slots else "more conversations live than stay warm"


def _services(profile: ProfileState, now: float) -> list[float]:
    """Seconds each key was served lately, of those that were served or wait."""
    keys = {waiter.view.request.key for waiter in profile.waiters.values()}
    served = profile.services.all(now)
    lately = {key: amount for key, amount in served.items() if amount >= _LEAST_SERVICE_S}
    return [*lately.values(), *(0.0 for key in keys if key not in lately)]


def _sessions(profile: ProfileState) -> dict[SessionState, int]:
    running = {r.request.session for r in profile.running.values() if _is_turn(r.request.kind)}
    asking = (waiter.view.request for waiter in profile.waiters.values())
    waiting = {request.session for request in asking if _is_turn(request.kind)}
    warm = {mirror.content.session for mirror in profile.mirrors}
    counts = dict.fromkeys(SessionState, 0)
    for session in profile.contexts.sessions():
        if session in running:
            counts[SessionState.RUNNING] += 1
        elif session in waiting:
            counts[SessionState.WAITING] += 1
        else:
            counts[SessionState.WARM if session in warm else SessionState.COLD] += 1
    return counts


def _is_turn(kind: str) -> bool:
    """A side job may carry its conversation's id, and is no turn of it."""
    return kind not in BACKGROUND_KINDS


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot of an engine that is ready."""

    slot: SlotId
    profile: str
    state: str  # idle | running | unproven
    resident: int  # tokens
    window: int  # tokens
    request: str | None
    guest: bool
    turns: int
    last_used: float  # s


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where a waiting request stands, for its comment line, the status and the series."""

    id: str
    profile: str
    reason: Reason
    ahead: int  # waiting requests that go first
    waited_s: float
    why: str
    text: str = ""  # the reason in words


def slot_statuses(profiles: Iterable[ProfileState]) -> list[SlotStatus]:
    """Every slot of every engine that is ready."""
    return [
        SlotStatus(
            slot=m.id,
            profile=p.name,
            state=m.state.value,
            resident=m.resident,
            window=m.window,
            request=m.request.id if m.request else None,
            guest=m.content.guest,
            turns=m.content.turns,
            last_used=m.content.last_used,
        )
        for p in profiles
        for e in p.engines.values()
        for m in e.mirrors
    ]


def waiting(waiter: Waiter, ahead: int, now: float) -> Waiting:
    """One waiting request with the number of those that go first."""
    request = waiter.view.request
    return Waiting(
        id=request.id,
        profile=request.profile,
        reason=waiter.reason,
        ahead=ahead,
        waited_s=now - waiter.view.arrived,
        why=waiter.why,
        text=_in_words(waiter, now),
    )


def _in_words(waiter: Waiter, now: float) -> str:
    left_s = None if waiter.recheck is None else max(0.0, waiter.recheck - now)
    return why_it_waits(waiter.reason, waiter.why, left_s)


def profile_json(profile: ProfileState, now: float) -> dict[str, object]:
    """One profile for ``/slotwise/status``."""
    now_is, (most, why) = standing(profile, now), limit(profile, now)
    return {
        "running": len(profile.running),
        "peak_running": profile.peak_running,
        "max_running": most,
        "max_running_why": why,
        "typical_pause_s": {
            "after_tool_calls": round(profile.returns.gap_s(calling=True), 3),
            "else": round(profile.returns.gap_s(calling=False), 3),
        },
        "working_set_ratio": round(now_is.working_set, 3),
        "fairness_jain_index": round(now_is.fairness, 3),
        "sessions": {state.value: count for state, count in now_is.sessions.items()},
        "cost": _cost_json(profile),
        "engines": {
            e.name: {
                "pins": e.pins,
                "pool": e.pool,
                "slots": [_slot_json(profile, m, now) for m in e.mirrors],
            }
            for e in profile.engines.values()
        },
        "waiting": [_waiter_json(w, ahead, now) for ahead, w in enumerate(profile.line)],
    }


def _cost_json(profile: ProfileState) -> dict[str, object]:
    """What work costs, as the engine has told by so many reports."""
    cost = profile.params.cost
    return {
        "reports": profile.learned.reports,
        **{
            name: float(f"{getattr(cost, name):.4g}")
            for name in ("prefill_c_s", "prefill_a_s", "prefill_b_s", "decode_s", "decode_more_s")
        },
    }


def _waiter_json(waiter: Waiter, ahead: int, now: float) -> dict[str, object]:
    request = waiter.view.request
    return {
        "id": request.id,
        "session": request.session[:SESSION_CHARS],
        "kind": request.kind,
        "key": request.key,
        "prompt_tokens": len(request.tokens),
        "ahead": ahead,
        "reason": waiter.reason.value,
        "why": waiter.why,
        "text": _in_words(waiter, now),
        "waited_s": round(now - waiter.view.arrived, 3),
    }


def _slot_json(profile: ProfileState, mirror: SlotMirror, now: float) -> dict[str, object]:
    running = profile.running.get(mirror.request.id) if mirror.request else None
    content = mirror.content
    return {
        "id_slot": mirror.id.id_slot,
        "state": mirror.state.value,
        "text": _does(mirror, running),
        "since_s": round(now - mirror.since, 3),
        "window": mirror.window,
        "resident": mirror.resident,
        **_parts(mirror),
        "session": content.session[:SESSION_CHARS],
        "kind": content.kind,
        "key": mirror.request.key if mirror.request else None,
        "guest": content.guest,
        "turns": content.turns,
        "idle_s": round(now - content.last_used, 3) if content.view else None,
        "request": mirror.request.id if mirror.request else None,
        "rule": running.rule.value if running else None,
        "why": running.why if running else None,
    }


def _parts(mirror: SlotMirror) -> dict[str, int]:
    """Tokens. ``cached`` and ``computed`` of the prompt add up to what is in the KV of it, with
    ``answer`` to what is resident; ``prompt`` is the whole of it, read or not."""
    content = mirror.content
    cached = min(content.cached, content.held)
    return {
        "prompt": len(content.view),
        "cached": cached,
        "computed": content.held - cached,
        "answer": content.tail,
    }


def _does(mirror: SlotMirror, running: Running | None) -> str:
    read = running.read if running else None
    content = mirror.content
    return what_a_slot_does(mirror.state.value, read, content.held, len(content.view))

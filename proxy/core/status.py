"""The scheduler's state as plain data for the status page and the gauges; no prompt text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotwise.policies.types import Reason, SlotId
from slotwise.proxy.core import words
from slotwise.proxy.core.book import Profile
from slotwise.proxy.core.mirror import SlotMirror
from slotwise.proxy.core.running import Running
from slotwise.proxy.core.standing import limit, standing
from slotwise.proxy.core.waiter import Waiter


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
    text: str = ""  # the reason in words, see words.py


def slot_statuses(profiles: Iterable[Profile]) -> list[SlotStatus]:
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
    return words.why_it_waits(waiter.reason, waiter.why, left_s)


def profile_json(profile: Profile, now: float) -> dict[str, object]:
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


def _cost_json(profile: Profile) -> dict[str, object]:
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
        "session": request.session[: words.SESSION_CHARS],
        "kind": request.kind,
        "key": request.key,
        "prompt_tokens": len(request.tokens),
        "ahead": ahead,
        "reason": waiter.reason.value,
        "why": waiter.why,
        "text": _in_words(waiter, now),
        "waited_s": round(now - waiter.view.arrived, 3),
    }


def _slot_json(profile: Profile, mirror: SlotMirror, now: float) -> dict[str, object]:
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
        "session": content.session[: words.SESSION_CHARS],
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
    return words.what_a_slot_does(mirror.state.value, read, content.held, len(content.view))

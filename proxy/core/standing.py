"""Where a profile stands: figures of the moment that the series and the status show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from slotwise.policies.fairness import jain_index
from slotwise.proxy.core.book import Profile
from slotwise.proxy.core.contexts import BACKGROUND_KINDS

_LEAST_SERVICE_S = 1e-3  # less is as good as forgotten


class SessionState(StrEnum):
    """What a remembered conversation is doing; the ``state`` label of the series."""

    RUNNING = "running"  # a request of it is at work
    WAITING = "waiting"  # one waits, none is at work
    WARM = "warm"  # between two turns, and a slot holds it
    COLD = "cold"  # between two turns, no slot holds it


@dataclass(frozen=True, slots=True)
class Standing:
    """Figures of one profile."""

    profile: str
    working_set: float  # live conversations over what slots and park keep warm
    fairness: float  # Jain's index of what the keys were served lately
    sessions: Mapping[SessionState, int]


def standing(profile: Profile, now: float) -> Standing:
    """As of now."""
    return Standing(
        profile.name,
        profile.working_set(now),
        jain_index(_services(profile, now)),
        _sessions(profile),
    )


def limit(profile: Profile, now: float) -> tuple[int, str]:
    """How many requests may run at once, and why so many."""
    asked = profile.params.max_running
    slots = sum(len(engine.mirrors) for engine in profile.engines.values())
    if profile.engines and slots < asked:
        return slots, f"{slots} slots are there; policy.max_running is {asked}"
    if asked:
        return asked, "policy.max_running"
    most = profile.most_running(profile.working_set(now))
    return most, "all slots" if most == slots else "more conversations live than stay warm"


def _services(profile: Profile, now: float) -> list[float]:
    """Seconds each key was served lately, of those that were served or wait."""
    keys = {waiter.view.request.key for waiter in profile.waiters.values()}
    served = profile.services.all(now)
    lately = {key: amount for key, amount in served.items() if amount >= _LEAST_SERVICE_S}
    return [*lately.values(), *(0.0 for key in keys if key not in lately)]


def _sessions(profile: Profile) -> dict[SessionState, int]:
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

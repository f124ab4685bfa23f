"""The life of one engine as plain transitions: no clock, no process, no dead end.

    STOPPED --start--> STARTING --ready--> READY --stop--> DRAINING --exited--> STOPPED
                          |                  |
                          +------ failed ----+--> BACKOFF --start--> STARTING

A failure is always tried again, after a delay that doubles up to a cap: the model file may come
back, memory may get free. The count of failures starts over once the engine has been ready for a
while; an engine that dies on its first request each time is ready often and healthy never.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 60.0
STABLE_AFTER_S = 60.0


class State(StrEnum):
    """Where an engine is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    BACKOFF = "backoff"


@dataclass(frozen=True, slots=True)
class Life:
    """State since ``since`` (s), failures in a row, and when to try again (s) in BACKOFF."""

    state: State = State.STOPPED
    since: float = 0.0
    failures: int = 0
    retry_at: float | None = None
    reason: str = ""


class WrongTransitionError(RuntimeError):
    """A transition that the diagram does not have: a bug of the caller."""


def start(life: Life, now: float) -> Life:
    """A process is about to be started."""
    _only_from(life, State.STOPPED, State.BACKOFF)
    return replace(life, state=State.STARTING, since=now, retry_at=None)


def ready(life: Life, now: float) -> Life:
    """The engine answers."""
    _only_from(life, State.STARTING)
    return replace(life, state=State.READY, since=now, reason="")


def failed(life: Life, now: float, reason: str) -> Life:
    """It did not start, died, or hung; the next try has its time."""
    _only_from(life, State.STARTING, State.READY)
    stable = life.state is State.READY and now - life.since >= STABLE_AFTER_S
    failures = 1 if stable else life.failures + 1
    retry_at = now + delay_s(failures)
    return Life(State.BACKOFF, now, failures, retry_at, reason)


def stop(life: Life, now: float) -> Life:
    """Nobody wants it any more."""
    return replace(life, state=State.DRAINING, since=now, retry_at=None)


def exited(life: Life, now: float) -> Life:
    """The process is gone, as wanted."""
    _only_from(life, State.DRAINING)
    return Life(State.STOPPED, now)


def delay_s(failures: int) -> float:
    """Seconds before the next try after this many failures in a row."""
    # The exponent is bounded too: 2.0 ** 2000 is an error, not a long delay.
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 16))


def _only_from(life: Life, *allowed: State) -> None:
    if life.state not in allowed:
        raise WrongTransitionError(f"from {life.state}, expected {' or '.join(allowed)}")

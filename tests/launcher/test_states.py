"""The life of an engine has no dead end, and its delays grow up to a cap."""

from __future__ import annotations

import pytest

from slotwise.launcher.process import supervisor
from slotwise.launcher.process.supervisor import Life, State


def test_a_failure_is_tried_again_later_and_later_up_to_a_cap() -> None:
    life, now, delays = Life(), 0.0, []
    for _ in range(10):
        life = supervisor.failed(supervisor.start(life, now), now, "no luck")
        assert life.state is State.BACKOFF
        assert life.retry_at is not None
        delays.append(life.retry_at - now)
        now = life.retry_at
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_the_delay_stays_a_number_after_thousands_of_failures() -> None:
    assert supervisor.delay_s(100_000) == supervisor.LONGEST_DELAY_S


def test_an_engine_that_was_stable_starts_over_with_a_short_delay() -> None:
    life = Life(State.READY, since=100, failures=6)
    assert supervisor.failed(life, 100 + supervisor.STABLE_AFTER_S, "died").failures == 1


def test_an_engine_that_dies_soon_after_each_start_waits_longer_each_time() -> None:
    life = supervisor.ready(supervisor.start(Life(failures=6), 0), 1)
    assert supervisor.failed(life, 2, "died").failures == 7


def test_a_stopped_engine_may_be_started_again() -> None:
    life = supervisor.exited(supervisor.stop(Life(State.READY), 5), 6)
    assert supervisor.start(life, 7).state is State.STARTING


def test_what_the_diagram_does_not_have_is_an_error() -> None:
    with pytest.raises(supervisor.WrongTransitionError, match="from stopped, expected starting"):
        supervisor.ready(Life(), 0)

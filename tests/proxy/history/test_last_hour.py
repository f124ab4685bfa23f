"""The sums of the last hour."""

from __future__ import annotations

from dataclasses import replace

from slotwise.policies.attribution import Cause
from slotwise.proxy.history.history import LastHour
from tests.proxy.history.test_explain import record

AT = 1_000_000.0


def test_requests_are_summed_by_cause() -> None:
    hour = LastHour()
    hour.add(replace(record((Cause.CACHED, 60), (Cause.NEW, 40)), time=AT))
    hour.add(replace(record((Cause.CACHED, 10), (Cause.EVICTED, 90)), time=AT + 70))
    sums = hour.sums(AT + 80)
    assert (sums.requests, sums.prompt_tokens, sums.reported) == (2, 200, 200)
    assert sums.tokens == {Cause.CACHED: 70, Cause.NEW: 40, Cause.EVICTED: 90}


def test_what_is_older_than_an_hour_is_gone() -> None:
    hour = LastHour()
    hour.add(replace(record((Cause.NEW, 7)), time=AT))
    assert hour.sums(AT + 3500).prompt_tokens == 7
    assert hour.sums(AT + 3700).prompt_tokens == 0


def test_tokens_of_which_the_engine_said_nothing_are_in_no_ratio() -> None:
    hour = LastHour()
    hour.add(replace(record((Cause.UNKNOWN, 30)), time=AT, cached=None, bound=None))
    sums = hour.sums(AT)
    assert (sums.prompt_tokens, sums.reported, sums.bound) == (30, 0, 0)


def test_a_clock_that_is_set_back_loses_nothing_and_adds_no_minutes() -> None:
    hour = LastHour()
    for k in range(200):
        hour.add(replace(record((Cause.NEW, 1)), time=AT - 60 * k))
    assert hour.sums(AT).prompt_tokens == 200


def test_a_year_takes_no_more_room_than_an_hour() -> None:
    hour = LastHour()
    for k in range(1000):
        hour.add(replace(record((Cause.NEW, 1)), time=AT + 60 * k))
    assert hour.sums(AT + 60 * 999).prompt_tokens == 60
    assert len(hour._minutes) == 60

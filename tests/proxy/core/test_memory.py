"""What the gate on memory admits, as scripts of samples: who waits, how long, for what."""

from __future__ import annotations

import pytest

from slotwise.policies.admission import GIB, MIB, Growth
from slotwise.policies.types import Reason
from slotwise.proxy.core.events import (
    Dispatch,
    EngineLoading,
    EngineLost,
    Failure,
    ProfileUnloaded,
    Refuse,
    RequestFailed,
    Tick,
)
from slotwise.proxy.core.memory import Member
from slotwise.proxy.core.scheduler import Scheduler
from tests.proxy.memory_script import CHECKPOINTS, PLAIN, World, dispatched
from tests.proxy.script import finished, next_wake, params


def test_admission_ends_exactly_at_the_floor_and_begins_again_there() -> None:
    w = World(PLAIN, slots=8)
    seen = {}
    for n, gib in enumerate([20, 16, 15.5, 15.0, 14.5, 14.0, 15.0, 15.5]):
        freed = dispatched(w.sample(gib))
        seen[gib, n] = w.arrive(f"r{n}", 10) + freed
    assert seen[16, 1] == ["r1"]
    assert seen[15.5, 2] == ["r2"]
    assert seen[15.0, 3] == []  # the floor itself, less what it needs: too little
    assert seen[14.5, 4] == []
    assert set(seen[15.5, 7]) >= {"r3", "r4"}  # what waited goes on by itself
    assert w.why("r4") == ""


def test_what_waits_says_what_it_waits_for_and_goes_on_when_there_is_room() -> None:
    w = World(PLAIN)
    w.sample(14.2)
    assert w.arrive("a", 1000) == []
    assert w.why("a") == (
        "memory: memory is almost full "
        "(MemAvailable 14.2 GiB, floor 15.0, this request needs 1 MiB)"
    )
    (dispatch,) = [a for a in w.sample(16) if isinstance(a, Dispatch)]
    assert (dispatch.id, dispatch.wait_reason) == ("a", Reason.MEMORY)


def test_a_figure_that_cannot_be_read_admits_nothing_and_ends_nothing() -> None:
    w = World(CHECKPOINTS)
    w.sample(50)
    w.arrive("first", 30_000)
    w.feed(finished("first", 30_000))
    for gib in (5, 5, None, 5, 5):
        assert w.sample(gib) == []
    for _ in range(20):
        assert w.sample(None, text="meminfo: no such file") == []
    assert w.arrive("a") == []
    assert w.why("a") == "memory: how much memory there is cannot be told: meminfo: no such file"
    assert dispatched(w.sample(50)) == ["a"]


def test_an_old_sample_counts_as_no_memory() -> None:
    w = World(PLAIN)
    w.sample(50)
    w.now += 2.0
    assert w.arrive("a") == ["a"]
    w.now += 0.1
    assert w.arrive("b") == []
    assert "was read 2.1 s ago" in w.why("b")
    assert dispatched(w.sample(50)) == ["b"]


def test_before_the_first_sample_nothing_is_admitted() -> None:
    w = World(PLAIN)
    assert w.arrive("a") == []
    assert dispatched(w.sample(50)) == ["a"]


def test_without_rules_nothing_waits_for_memory() -> None:
    s = Scheduler({"p": params()})
    w = World(PLAIN)
    w.scheduler = s
    for _, event, _ in w.entries:
        s.handle(event, 0.0)
    assert w.arrive("a") == ["a"]
    assert w.sample(0.1) == []


def test_promises_count_until_the_growth_is_in_a_sample() -> None:
    """Five requests of 700 MiB each: of 2 GiB above the floor two are promised, the others wait."""
    w = World(CHECKPOINTS, profile=params(cold=False), slots=8)
    w.sample(17)
    started = [id for n in range(5) for id in w.arrive(f"r{n}", 30_000)]
    assert started == ["r0", "r1"]
    assert "promised 1.4, this request needs 0.7" in w.why("r2")
    assert dispatched(w.sample(17)) == []  # they have not taken it: the promise stands
    assert dispatched(w.feed(finished("r0", 30_000))) == ["r2"]


def test_who_asks_for_a_model_that_gave_way_is_told_when_to_ask_again() -> None:
    w = World(PLAIN, small=[Member("small", 1)])
    w.sample(14)
    w.arrive("waits", profile="small")
    w.feed(EngineLost("small", "unloaded"))
    (refusal,) = w.feed(ProfileUnloaded("small", 77))
    w.arrive("late", profile="small")
    (late,) = w.all(Refuse)[1:]
    for refused in (refusal, late):
        assert isinstance(refused, Refuse)
        assert (refused.status, refused.code) == (503, "unloaded_for_memory")
        assert refused.retry_after_s == 77
    w.feed(EngineLoading("small", "small"))
    w.arrive("soon", profile="small")
    assert w.why("soon").startswith("engine_loading")


@pytest.mark.parametrize(("stream", "after_s"), [(False, 600), (True, 3600)])
def test_a_wait_for_memory_has_its_bound_and_its_own_code(stream: bool, after_s: float) -> None:
    w = World(PLAIN)
    w.sample(14)
    w.arrive("a", stream=stream)
    assert next_wake(w.entries[-1][2]) == w.now + after_s
    w.now += after_s
    (refusal,) = [a for a in w.feed(Tick()) if isinstance(a, Refuse)]
    assert (refusal.status, refusal.code) == (503, "memory_wait_timeout")
    assert refusal.retry_after_s
    assert "MemAvailable 14.0 GiB" in refusal.message


def test_nobody_is_overtaken_for_memory_without_end() -> None:
    """A big one waits; small ones pass it, but not for ever: what runs then makes room for it."""
    w = World(CHECKPOINTS, profile=params(cold=False), slots=8)
    w.sample(16)
    assert w.arrive("runs", 2000) == ["runs"]
    assert w.arrive("big", 90_000) == []
    w.sample(16)
    assert w.arrive("small", 10) == ["small"]
    w.now += 300
    w.sample(16)
    assert w.arrive("late", 10) == []
    assert dispatched(w.feed(finished("runs", 2000))) == []
    assert dispatched(w.sample(17)) == ["big"]
    assert dispatched(w.feed(finished("small", 10))) == ["late"]


def test_alone_a_request_is_admitted_by_the_declared_peak() -> None:
    """Its own estimate says 1.5 GiB, but the engine was declared to grow by 0.5 at most."""
    declared = Growth(100 * MIB, scratch_bytes=0, most_bytes=GIB // 2)
    w = World(declared, profile=params(cold=False))
    w.sample(15.6)
    assert w.arrive("alone", 90_000) == ["alone"]
    assert w.arrive("second", 90_000) == []
    assert World(CHECKPOINTS).sample(15.6) == []


def test_failed_and_cancelled_requests_promise_nothing() -> None:
    w = World(CHECKPOINTS)
    w.sample(50)
    w.arrive("a", 30_000)
    assert w.scheduler.memory.reserves.promised() > 700 * MIB
    w.feed(RequestFailed("a", Failure.CLIENT_GONE))
    assert w.scheduler.memory.reserves.promised() == 0

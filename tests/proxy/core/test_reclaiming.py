"""What is taken back of memory, as scripts of samples: when, from whom, in which order."""

from __future__ import annotations

from pathlib import Path

from slotwise.policies.admission import GIB, MIB, Growth, Limits
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    Dispatch,
    EngineLoading,
    EngineLost,
    Reclaim,
    Refuse,
    SlotReport,
    SlotsReported,
)
from slotwise.proxy.core.memory import Member
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.telemetry.journal import Journal, read
from tests.proxy.memory_script import CHECKPOINTS, PLAIN, World, dispatched, reclaims, results
from tests.proxy.script import arrived, finished, text


def test_from_20_to_1_gib_it_stops_admitting_then_takes_back_then_stops_the_engine() -> None:
    """Field report R44: the thresholds in their order, without any GPU."""
    w = World(CHECKPOINTS, small=[Member("small", 1)])
    w.sample(20)
    assert w.arrive("first", 30_000) == ["first"]
    w.feed(finished("first", 30_000))
    w.sample(20)
    admitted: list[float] = []
    taken: list[tuple[float, str]] = []
    for half_gibs in range(39, 1, -1):
        gib = half_gibs / 2
        w.sample(gib)
        taken += [(gib, level) for level, _ in w.take_back()]
        id = f"at-{gib}"
        if gib > 12 and w.arrive(id, 5000):
            admitted.append(gib)
            w.feed(finished(id, 5000))
        taken += [(gib, level) for level, _ in w.take_back()]
    assert admitted == [19.5, 19.0, 18.5, 18.0, 17.5, 17.0, 16.5, 16.0, 15.5]
    levels = [level for _, level in taken]
    assert levels == sorted(levels, key=["checkpoints", "role", "stop"].index)
    assert set(levels) == {"checkpoints", "role", "stop"}
    assert [at for at, level in taken if level == "stop"] == [8.5]  # 9.5, 9, 8.5: below 10
    assert max(at for at, _ in taken) == 15.0  # the first that did not fit
    assert {(a.status, a.code) for a in w.all(Refuse)} == {(503, "unloaded_for_memory")}


def test_one_low_sample_starts_nothing_nor_do_two() -> None:
    w = World(CHECKPOINTS)
    w.sample(20)
    w.arrive("a", 30_000)
    w.feed(finished("a", 30_000))
    for gib in (2, 2, 20, 2, 2, 12, 2, 2, 20):
        assert reclaims(w.sample(gib)) == []
    assert reclaims(w.sample(2) + w.sample(2) + w.sample(2)) == [("checkpoints", "e")]


def test_a_request_that_does_not_fit_asks_for_checkpoints_then_small_models() -> None:
    w = World(CHECKPOINTS, small=[Member("one", 1), Member("two", 2), Member("three", 3, True)])
    w.sample(20)
    for id in ("a", "b"):
        w.arrive(id, 30_000)
        w.now += 1
        w.feed(finished(id, 30_000))
    w.sample(15.1)
    assert w.arrive("new", 30_000) == []
    asked = w.entries[-1][2]
    (reclaim,) = [a for a in asked if isinstance(a, Reclaim)]
    assert (reclaim.level, reclaim.target, reclaim.slots) == ("checkpoints", "e", (3,))
    w.reclaim_ended(asked)
    actions = w.sample(15.2)
    assert results(actions) == [("checkpoints", "done")]  # 0.1 GiB: it was worth it
    assert reclaims(actions) == [("checkpoints", "e")]  # the next oldest
    w.reclaim_ended(actions)
    actions = w.sample(15.2)
    assert results(actions) == [("checkpoints", "too_little")]
    assert reclaims(actions) == [("role", "two")]  # the last in order goes first
    w.feed(EngineLost("two", "unloaded"))
    w.reclaim_ended(actions)
    assert dispatched(w.sample(18)) == ["new"]


def test_a_request_does_not_have_its_own_conversation_emptied() -> None:
    w = World(CHECKPOINTS, slots=2)
    w.sample(20)
    w.feed(arrived("a", text(("chat", 30_000)), first_user_end=1000))
    w.feed(finished("a", 30_000))
    w.sample(14)
    w.feed(arrived("b", text(("chat", 30_000), ("more", 500)), first_user_end=1000, turns=2))
    assert w.why("b").startswith("memory")
    assert w.all(Reclaim) == []
    w.sample(5)
    w.sample(5)
    assert reclaims(w.sample(5)) == [("checkpoints", "e")]  # below the hard floor it goes as well


def test_a_level_that_gave_too_little_is_left_alone_for_ten_minutes() -> None:
    w = World(CHECKPOINTS)
    w.sample(20)
    w.arrive("a", 30_000)
    w.feed(finished("a", 30_000))
    w.sample(14)
    w.arrive("new", 100)
    asked = w.entries[-1][2]
    w.reclaim_ended(asked)
    w.feed(SlotsReported("e", w.now + 0.1, tuple(SlotReport(i, False, 0) for i in range(4))))
    assert results(w.sample(14)) == [("checkpoints", "too_little")]
    w.sample(20)  # "new" runs, and leaves checkpoints
    w.feed(finished("new", 100))
    w.sample(14)
    w.arrive("again", 100)
    assert reclaims(w.entries[-1][2]) == []
    w.now += 600
    assert reclaims(w.sample(14)) == [("checkpoints", "e")]


def test_a_slot_that_is_emptied_takes_nobody_until_it_is_shown_empty() -> None:
    w = World(CHECKPOINTS, slots=1)
    w.sample(20)
    w.arrive("a", 30_000)
    w.feed(finished("a", 30_000))
    w.sample(14)
    w.arrive("b", 5000)
    asked = w.entries[-1][2]
    assert reclaims(asked) == [("checkpoints", "e")]
    report = SlotsReported("e", w.now + 0.1, (SlotReport(0, False, 30_000),))
    w.now += 0.2
    w.feed(report)  # asked before it was erased: says nothing
    w.sample(20)
    assert [s.state for s in w.scheduler.slots()] == ["unproven"]
    assert w.reclaim_ended(asked) == [AskSlots("e")]
    w.now += 0.2
    shown = SlotsReported("e", w.now - 0.05, (SlotReport(0, False, 0),))
    assert dispatched(w.feed(shown)) == ["b"]
    assert [s.resident for s in w.scheduler.slots()] == [0]


def test_a_reclaim_that_failed_is_said_and_the_next_level_follows() -> None:
    w = World(CHECKPOINTS, small=[Member("one", 1)])
    w.sample(20)
    w.arrive("a", 30_000)
    w.feed(finished("a", 30_000))
    asked: list[Action] = [*w.sample(5), *w.sample(5), *w.sample(5)]
    assert reclaims(asked) == [("checkpoints", "e")]
    assert reclaims(w.sample(5)) == []  # one at a time
    w.reclaim_ended(asked, failed="the engine does not answer")
    actions = w.sample(5)
    assert results(actions) == [("checkpoints", "failed")]
    assert reclaims(actions) == [("role", "one")]


def test_an_idle_engine_is_restarted_smaller_for_what_its_ram_cache_holds() -> None:
    w = World(Growth(cache_ram_bytes=8 * GIB, kv_bytes_per_token=100_000, scratch_bytes=0))
    w.sample(20)
    w.arrive("a", 1000)
    w.feed(finished("a", 1000))
    w.sample(20, grown=(("e", MIB),))  # its scratch
    w.sample(9, grown=(("e", 2 * GIB),))
    w.sample(9, grown=(("e", 2 * GIB),))
    assert reclaims(w.sample(9, grown=(("e", 2 * GIB),))) == [("ram_cache", "e")]


def test_an_engine_that_loads_is_stopped_before_one_that_serves() -> None:
    w = World(PLAIN, small=[Member("other", 0)])
    w.feed(EngineLost("other", "exited"))
    w.feed(EngineLoading("other", "other"))
    w.sample(20)
    w.arrive("a")
    assert reclaims([*w.sample(5), *w.sample(5), *w.sample(5)]) == [("stop", "other")]


def test_a_small_model_never_unloaded_goes_only_at_the_very_end() -> None:
    w = World(PLAIN, small=[Member("small", 1, never=True)])
    w.sample(14)
    w.arrive("a")
    assert reclaims(w.entries[-1][2]) == []
    assert reclaims([*w.sample(5), *w.sample(5), *w.sample(5)]) == [("stop", "small")]


def test_a_small_model_makes_no_room_for_itself_by_unloading_one_before_it() -> None:
    w = World(PLAIN, small=[Member("one", 1), Member("two", 2)])
    w.sample(14)
    w.arrive("r", profile="two")
    assert reclaims(w.entries[-1][2]) == []
    w.arrive("s", profile="one")
    assert reclaims(w.entries[-1][2]) == [("role", "two")]


def test_a_journal_of_it_replayed_decides_the_same(tmp_path: Path) -> None:
    w = World(CHECKPOINTS, small=[Member("small", 1)], limits=Limits(floor_gib=15))
    ended = 0
    for n in range(200):
        gib = 15.5 + (n * 7919 % 13) - 6
        w.sample(gib, grown=(("e", n * MIB),), stalled=float(n % 20))
        w.take_back()
        w.arrive(f"r{n}", 1000 + n * 37 % 9000)
        w.take_back()
        running = w.all(Dispatch)[ended:]
        if n % 2 and running:
            ended += 1
            w.feed(finished(running[0].id, 1000))
    journal = Journal(tmp_path / "j")
    for entry in w.entries:
        journal.write(*entry)
    journal.close()
    again = Scheduler(w.params, w.rules)
    entries = list(read(tmp_path / "j"))
    assert len(entries) == len(w.entries)
    assert [again.handle(event, now) for now, event, _ in entries] == [a for *_, a in entries]
    assert {a.level.value for a in w.all(Reclaim)} == {"checkpoints", "role"}
    assert len(w.all(Dispatch)) > 20

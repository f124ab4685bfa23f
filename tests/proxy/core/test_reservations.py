"""Reserves: what running requests promise, credited as it is taken, and nothing after their end."""

from __future__ import annotations

import random

from slotwise.policies.admission import GIB, MIB, Growth, Need, buffer_bytes
from slotwise.policies.prefix import pack
from slotwise.policies.types import Request, SlotId
from slotwise.proxy.core.events import (
    Dispatch,
    EngineLost,
    Failure,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
)
from slotwise.proxy.core.reservations import Placing, Reservations
from tests.proxy.memory_script import World
from tests.proxy.script import finished, params

GROWTH = Growth(
    checkpoint_bytes=20 * MIB,
    cache_ram_bytes=2 * GIB,
    kv_bytes_per_token=50_000,
    scratch_bytes=256 * MIB,
)


def placing(id: str, n: int, slot: int = 0, **more: int | bool) -> Placing:
    request = Request(id, "p", pack(range(n)), n, 1, None, True, "k")
    return Placing(request, SlotId("e", slot), **{"reused": 0, **more})  # type: ignore[arg-type]


def reserves(growth: Growth = GROWTH) -> Reservations:
    r = Reservations()
    r.engine_ready("e", "p", growth, 4)
    return r


def test_a_request_promises_checkpoints_a_copy_scratch_and_buffers_and_no_kv() -> None:
    r = reserves()
    need = r.need(placing("a", 30_000, resident=10_000, stays=False))
    assert need == Need(
        checkpoints=7 * 20 * MIB,
        cache=10_000 * 50_000,
        scratch=256 * MIB,
        buffers=buffer_bytes(30_000),
    )
    bare = reserves(Growth(scratch_bytes=0))
    assert bare.need(placing("a", 30_000)) == Need(buffers=buffer_bytes(30_000))


def test_its_own_conversation_is_not_copied_away() -> None:
    assert reserves().need(placing("a", 100, resident=90, reused=90, stays=True)).cache == 0


def test_scratch_is_promised_once_and_learned() -> None:
    r = reserves(Growth(scratch_bytes=256 * MIB))
    r.begin(placing("a", 100))
    assert r.need(placing("b", 100, slot=1)).scratch == 0
    r.ended("a", answered=True)
    assert r.need(placing("b", 100, slot=1)).scratch == 0
    r.sampled([("e", 700 * MIB)])
    r.engine_lost("e")
    r.engine_ready("e", "p", Growth(scratch_bytes=256 * MIB), 4)
    assert r.need(placing("c", 100)).scratch == 700 * MIB


def test_the_unused_part_of_the_ram_cache_is_promised_once() -> None:
    r = reserves()
    r.begin(placing("a", 100, slot=0, resident=30_000, stays=False))
    second = r.need(placing("b", 100, slot=1, resident=30_000, stays=False))
    assert second.cache == 2 * GIB - 30_000 * 50_000
    r.ended("a", answered=True)
    r.sampled([("e", MIB)])
    r.sampled([("e", MIB + GIB)])  # half of it is taken
    assert abs(r.need(placing("c", 1, resident=99_999, stays=False)).cache - GIB) < 200 * MIB


def test_checkpoints_stop_at_the_most_a_slot_keeps() -> None:
    r = reserves(Growth(checkpoint_bytes=MIB, scratch_bytes=0, checkpoints=8))
    r.begin(placing("a", 30_000))
    r.ended("a", answered=True)
    assert r.checkpoint_bytes(SlotId("e", 0)) == 7 * MIB
    more = r.need(placing("b", 90_000, resident=30_000, reused=30_000))
    assert more.checkpoints == MIB
    other = r.need(placing("b", 20_000, resident=30_000))  # they go, as many come
    assert other.checkpoints == 0
    r.emptied(SlotId("e", 0))
    assert r.checkpoint_bytes(SlotId("e", 0)) == 0


def test_what_was_taken_is_credited_with_the_next_sample_not_before() -> None:
    r = reserves()
    r.begin(placing("a", 30_000, resident=1000, stays=False))
    whole = r.promised()
    r.progressed("a", 15_000)
    assert r.promised() == whole
    r.sampled([])
    reserve = r.of_requests()["a"]
    assert reserve.spent == Need(checkpoints=70 * MIB, cache=1000 * 50_000)
    r.progressed("a", 30_000)
    r.sampled([])
    assert r.promised() == buffer_bytes(30_000)


def test_growth_to_come_counts_the_declared_peak_or_all_that_may_be_held() -> None:
    declared = reserves(Growth(most_bytes=GIB))
    assert declared.growth_to_come() == GIB
    declared.sampled([("e", GIB // 4)])
    assert declared.growth_to_come() == GIB - GIB // 4
    held = 32 * 20 * MIB * 4 + 2 * GIB + 256 * MIB
    assert reserves().growth_to_come() == held


def test_the_promises_equal_the_running_requests_unspent_needs_whatever_happens() -> None:
    """Arrivals, progress, samples, ends of every kind, at random: nothing is lost or left over."""
    draw = random.Random(11)
    for _ in range(8):
        w = World(GROWTH, slots=6, profile=params(cold=False))
        w.sample(100)
        lengths: dict[str, int] = {}
        for n in range(80):
            event = draw.choice(("arrive", "arrive", "progress", "sample", "end", "fail", "leave"))
            running = list(w.scheduler.memory.reserves.of_requests())
            one = draw.choice(running) if running else None
            if event == "arrive":
                lengths[f"r{n}"] = draw.randrange(10, 12_000)
                w.arrive(f"r{n}", lengths[f"r{n}"])
            elif event == "sample":
                w.sample(draw.choice((100, 100, 15.2, 14, None)), grown=(("e", n * MIB),))
                w.take_back()
            elif event == "leave":
                waits = w.scheduler.waiting(w.now)
                if waits:
                    w.feed(RequestCancelled(draw.choice(waits).id))
            elif one is None:
                continue
            elif event == "progress":
                w.feed(RequestProgressed(one, draw.randrange(lengths[one] + 1), 0))
            elif event == "end":
                w.feed(finished(one, lengths[one]))
            else:
                w.feed(RequestFailed(one, draw.choice(list(Failure))))
            _promises_hold(w)
        for id in list(w.scheduler.memory.reserves.of_requests()):
            w.feed(RequestFailed(id, Failure.TIMEOUT))
        w.feed(EngineLost("e", "over"))
        assert w.scheduler.memory.reserves.promised() == 0


def _promises_hold(w: World) -> None:
    held = w.scheduler.memory.reserves.of_requests()
    finals = {
        event.id for _, event, _ in w.entries if isinstance(event, RequestFinished | RequestFailed)
    }
    assert set(held) == {a.id for a in w.all(Dispatch)} - finals
    assert all(0 <= r.unspent <= r.need.total for r in held.values())
    assert w.scheduler.memory.reserves.promised() == sum(r.unspent for r in held.values())

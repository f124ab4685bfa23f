"""The memory rules on values: what stays free, what a request may make grow, and the verdict."""

from __future__ import annotations

import pytest

from slotwise.launcher.profile.settings import MemorySection
from slotwise.policies.admission import (
    GIB,
    MIB,
    Growth,
    Headroom,
    Limits,
    Need,
    memory_shortage,
    new_checkpoints,
)


def room(available: float, floor: float = 15, reserved: float = 0, **more: float) -> Headroom:
    """In GiB."""
    stalled = more.pop("stalled", 0.0)
    sizes = {name: round(gib * GIB) for name, gib in more.items()}
    figures = (round(available * GIB), round(floor * GIB), round(reserved * GIB))
    return Headroom(*figures, **sizes, stalled=stalled)


@pytest.mark.parametrize(
    ("total_gib", "floor_gib", "hard_gib"), [(128, 15, 10), (125, 15, 10), (64, 7.68, 5.12)]
)
def test_the_floor_is_15_gib_or_12_percent_and_the_hard_one_two_thirds_of_it(
    total_gib: float, floor_gib: float, hard_gib: float
) -> None:
    total = round(total_gib * GIB)
    assert Limits().floor_bytes(total) == pytest.approx(floor_gib * GIB, abs=1)
    assert Limits().hard_floor_bytes(total) == pytest.approx(hard_gib * GIB, abs=1)


def test_floors_as_given() -> None:
    assert Limits(floor_gib=4.5).hard_floor_bytes(64 * GIB) == 3 * GIB
    given = Limits(floor_gib=6, hard_floor_gib=5)
    assert (given.floor_bytes(8 * GIB), given.hard_floor_bytes(8 * GIB)) == (6 * GIB, 5 * GIB)


def test_a_profile_and_the_gate_have_the_same_defaults() -> None:
    written, gate = MemorySection(), Limits()
    assert (written.floor_gib, written.hard_floor_gib) == (gate.floor_gib, gate.hard_floor_gib)
    assert written.margin_gib == gate.margin_gib
    assert (written.stale_s, written.hard_samples) == (gate.stale_s, gate.hard_samples)


def test_a_request_is_admitted_while_the_floor_stays_free_beside_all_promises() -> None:
    assert memory_shortage(round(0.9 * GIB), room(20, reserved=4)) is None
    assert memory_shortage(round(1.1 * GIB), room(20, reserved=4)) is not None
    assert memory_shortage(round(0.9 * GIB), room(20, reserved=3, loading=2)) is not None


def test_why_it_waits_is_said_with_the_figures() -> None:
    assert memory_shortage(round(1.6 * GIB), room(15.8)) == (
        "memory is almost full (MemAvailable 15.8 GiB, floor 15.0, this request needs 1.6)"
    )
    assert memory_shortage(3 * MIB, room(14.2, reserved=0.5)) == (
        "memory is almost full (MemAvailable 14.2 GiB, floor 15.0, promised 0.5, "
        "this request needs 3 MiB)"
    )


def test_below_the_floor_nothing_is_admitted_however_small() -> None:
    assert memory_shortage(0, room(14.99)) is not None
    assert memory_shortage(0, room(15)) is None


def test_pressure_is_a_second_signal_near_the_floor_only() -> None:
    near, far = room(18, margin=4, stalled=12.0), room(20, margin=4, stalled=12.0)
    assert "stand still" in (memory_shortage(1, near) or "")
    assert memory_shortage(1, far) is None
    assert memory_shortage(1, room(18, margin=4, stalled=9.0)) is None


def test_checkpoints_come_a_step_apart_and_some_more_and_never_beyond_their_number() -> None:
    swa = Growth(checkpoint_bytes=10 * MIB)
    assert new_checkpoints(0, swa) == 0
    assert new_checkpoints(100, swa) == 4
    assert new_checkpoints(30_000, swa) == 7
    assert new_checkpoints(1_000_000, swa) == 32
    assert new_checkpoints(30_000, Growth()) == 0  # a model that can be rolled back


def test_a_need_is_cut_to_what_the_engine_was_declared_to_take() -> None:
    need = Need(checkpoints=30, cache=40, scratch=20, buffers=10)
    assert need.total == 100
    assert need.cut_to(1000) == need
    assert need.cut_to(55).total == 55
    assert need.cut_to(-5) == Need()

"""What an engine took, as far as its process and the fall of what is available tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slotwise.proxy.memory.meminfo import MemInfo, own_bytes
from slotwise.proxy.memory.watch import MemoryWatch
from tests.scripted_meminfo import GIB, text, zones

US = os.getpid()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(text(100))
    return path


def watch(machine: Path) -> MemoryWatch:
    return MemoryWatch(MemInfo(machine, "off", stale_s=1e9))


def test_what_a_gpu_holds_is_told_by_the_fall_of_what_is_available(machine: Path) -> None:
    """Our own process stands for an engine: its pages are few, what is available falls by 30."""
    own = own_bytes(US)
    assert own is not None
    w = watch(machine)
    w.engine_loading("e")
    machine.write_text(text(90))
    w.reading = w.meminfo.read()
    assert w.taken_bytes("e", US) == 10 * GIB
    machine.write_text(text(70))
    took = w.engine_ready("e", US)
    assert took == pytest.approx(30 * GIB, rel=0.01)
    assert w.engine_parts()["e"]["device"] == pytest.approx(30 * GIB - own, rel=0.01)
    w.reading = w.meminfo.read()
    parts = w.parts()
    assert parts["e"] == w.engine_parts()["e"]["device"]
    assert sum(parts.values()) == 58 * GIB
    w.engine_gone("e")
    assert w.parts() == {"slotwise": 0, "other": 58 * GIB, "free_lists": 0}


def test_what_others_took_or_gave_back_meanwhile_is_no_gpus(tmp_path: Path) -> None:
    """Two engines may load at once, and a big process may have just ended."""
    machine, zoneinfo = tmp_path / "meminfo", tmp_path / "zoneinfo"
    machine.write_text(text(100, held_gib=2))
    zoneinfo.write_text(zones(0))
    w = MemoryWatch(MemInfo(machine, "off", stale_s=1e9, zoneinfo=zoneinfo))
    w.engine_loading("e")
    machine.write_text(text(77, held_gib=22))  # of 23 GiB processes have 20, and 3 are free
    zoneinfo.write_text(zones(3 * GIB))
    w.reading = w.meminfo.read()
    assert w.taken_bytes("e", US) == pytest.approx(own_bytes(US), rel=0.01)
    machine.write_text(text(67, held_gib=22))  # and 10 in no process's pages
    w.engine_ready("e", US)
    assert w.engine_parts()["e"]["device"] == 10 * GIB


def test_pages_on_the_kernels_free_lists_are_a_part_of_their_own(tmp_path: Path) -> None:
    machine, zoneinfo = tmp_path / "meminfo", tmp_path / "zoneinfo"
    machine.write_text(text(100))
    zoneinfo.write_text(zones(5 * GIB))
    w = MemoryWatch(MemInfo(machine, "off", stale_s=1e9, zoneinfo=zoneinfo))
    w.reading = w.meminfo.read()
    assert w.parts() == {"slotwise": 0, "other": 23 * GIB, "free_lists": 5 * GIB}
    zoneinfo.write_text(zones(40 * GIB))  # newer than what is available
    w.reading = w.meminfo.read()
    assert w.parts() == {"slotwise": 0, "other": 0, "free_lists": 28 * GIB}


@pytest.mark.parametrize("name", ["slotwise", "other", "free_lists"])
def test_an_engine_named_like_a_part_does_not_take_its_place(machine: Path, name: str) -> None:
    w = watch(machine)
    w.engine_loading(name)
    machine.write_text(text(60))
    w.engine_ready(name, US)
    w.reading = w.meminfo.read()
    parts = w.parts()
    assert parts[f"engine {name}"] == w.engine_parts()[name]["device"] > 39 * GIB
    assert sum(parts.values()) == 68 * GIB


def test_a_small_fall_is_nobodys_gpu(machine: Path) -> None:
    w = watch(machine)
    w.engine_loading("e")
    machine.write_text(text(99.8))
    w.reading = w.meminfo.read()
    own = own_bytes(US)
    assert w.taken_bytes("e", US) == pytest.approx(own, rel=0.2)
    assert w.engine_ready("e", US) == pytest.approx(own, rel=0.2)
    assert w.engine_parts()["e"]["device"] == 0


def test_of_an_engine_without_a_process_of_ours_only_the_fall_is_known(machine: Path) -> None:
    w = watch(machine)
    assert w.engine_ready("unknown", None) is None
    w.engine_loading("far")
    machine.write_text(text(95))
    assert w.engine_ready("far", None) == 5 * GIB
    machine.unlink()
    w.engine_loading("blind")
    assert w.engine_ready("blind", None) is None
    assert w.taken_bytes("blind", None) == 0

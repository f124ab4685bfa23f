"""What an engine took, as far as its process and the fall of what is available tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proxy.meminfo import MemInfo
from proxy.memory import MemoryWatch
from proxy.process_memory import own_bytes
from tests.scripted_meminfo import GIB, text

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
    assert w.parts() == {"slotwise": 0, "other": 58 * GIB}


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

"""Reading memory: whatever the files hold, a figure or a reason, and never an exception."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotwise.policies.admission import GIB, Headroom, memory_shortage
from slotwise.proxy.memory.meminfo import (
    ZONEINFO,
    MemInfo,
    family_pss_bytes,
    group_at,
    own_bytes,
    own_groups,
    pss_bytes,
)
from tests.scripted_meminfo import text, zones

NOWHERE = Path("/nonexistent/pressure")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reader(path: Path, **how: Any) -> MemInfo:
    return MemInfo(path, **{"cgroup": "off", "pressure": NOWHERE, **how})


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(text(70, free_gib=2))
    return path


@pytest.mark.parametrize(("free", "available", "fits"), [(2, 70, True), (70, 2, False)])
def test_available_counts_and_free_does_not(
    meminfo: Path, free: float, available: float, fits: bool
) -> None:
    """Field report R29: the page cache of a copied file is not used memory."""
    meminfo.write_text(text(available, free_gib=free))
    found = reader(meminfo).read().available_bytes
    assert found == available * GIB
    shortage = memory_shortage(50 * GIB, Headroom(found, 15 * GIB, 0))
    assert (shortage is None) == fits


def test_a_file_that_stops_changing_counts_as_no_memory_until_it_changes(meminfo: Path) -> None:
    clock = Clock()
    memory = reader(meminfo, clock=clock, stale_s=2.0)
    assert memory.read().available_bytes == 70 * GIB
    clock.now += 2.0
    assert memory.read().available_bytes == 70 * GIB
    clock.now += 0.1
    stale = memory.read()
    assert (stale.available_bytes, stale.total_bytes) == (None, 128 * GIB)
    assert "has not changed for 2.1 s" in stale.problem
    os.utime(meminfo, ns=(1, 1))  # written again, with the same figures
    assert memory.read().available_bytes == 70 * GIB


def test_the_kernels_own_file_is_fresh_at_every_read() -> None:
    clock = Clock()
    memory = MemInfo(clock=clock, stale_s=2.0)
    first = memory.read()
    clock.now += 1000
    again = memory.read()
    assert first.available_bytes
    assert again.available_bytes
    assert again.total_bytes >= again.available_bytes


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff\xfe\x00" * 1000,
        b"MemTotal:       131072 kB\n",
        b"MemTotal: lots kB\nMemAvailable: 5 kB\n",
        b"MemTotal: 0 kB\nMemAvailable: 5 kB\n",
        b"MemTotal: 99999999999999999999 kB\nMemAvailable: 5 kB\n",
        b"MemTotal: 131072 MB\nMemAvailable: 5 MB\n",
    ],
)
def test_garbage_counts_as_no_memory(meminfo: Path, content: bytes) -> None:
    memory = reader(meminfo)
    memory.read()
    meminfo.write_bytes(content)
    found = memory.read()
    assert found.available_bytes is None
    assert str(meminfo) in found.problem


def test_a_file_that_vanishes_or_may_not_be_read_counts_as_no_memory(
    meminfo: Path, tmp_path: Path
) -> None:
    memory = reader(meminfo)
    meminfo.unlink()
    assert memory.read().available_bytes is None
    assert "No such file" in memory.read().problem
    assert reader(tmp_path).read().available_bytes is None  # a directory


def group(directory: Path, version: int, limit: str, used: int, cache: int) -> Path:
    """A memory cgroup as the kernel shows it; sizes in GiB."""
    directory.mkdir(parents=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (directory / names[0]).write_text(limit + "\n")
    (directory / names[1]).write_text(f"{used * GIB}\n")
    (directory / "memory.stat").write_text(f"anon 5\n{names[2]} {cache * GIB}\nother 7\n")
    return directory


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroups_lower_limit_counts_and_its_cache_does_not(
    meminfo: Path, tmp_path: Path, version: int
) -> None:
    directory = group(tmp_path / "group", version, str(32 * GIB), used=20, cache=5)
    found = reader(meminfo, cgroup=str(directory)).read()
    assert (found.available_bytes, found.total_bytes) == (17 * GIB, 32 * GIB)
    assert found.limit == str(directory)
    meminfo.write_text(text(9))
    assert reader(meminfo, cgroup=str(directory)).read().available_bytes == 9 * GIB


@pytest.mark.parametrize(
    ("version", "limit"), [(1, "9223372036854771712"), (2, "max"), (2, "nonsense")]
)
def test_a_cgroup_without_a_limit_changes_nothing(
    meminfo: Path, tmp_path: Path, version: int, limit: str
) -> None:
    directory = group(tmp_path / "group", version, limit, used=20, cache=5)
    memory = reader(meminfo, cgroup=str(directory))
    assert memory.read().available_bytes == 70 * GIB
    assert memory.sources()["cgroup_limits"] == []


def test_a_limit_may_stand_at_any_level_above(meminfo: Path, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "a" / "b", 2, "max", used=1, cache=0)
    (root / "a" / "memory.max").write_text(str(8 * GIB))
    (root / "a" / "memory.current").write_text(str(3 * GIB))
    (root / "a" / "memory.stat").write_text("")
    ours = tmp_path / "ours"
    ours.write_text("0::/a/b\n")
    assert [g.read() for g in own_groups(root, ours)] == [None, (8 * GIB, 5 * GIB)]


def test_both_versions_of_cgroups_are_found_and_none_is_no_fault(tmp_path: Path) -> None:
    root, ours = tmp_path / "cgroup", tmp_path / "ours"
    group(root / "memory" / "x", 1, str(GIB), used=0, cache=0)
    ours.write_text("5:cpu,memory:/x\n1:name=systemd:/\nbroken line\n0::/nowhere\n")
    assert [g.directory for g in own_groups(root, ours)] == [root / "memory" / "x"]
    assert own_groups(root, tmp_path / "gone") == []
    assert group_at(tmp_path / "gone") is None


def test_pressure_is_read_where_it_is_told(meminfo: Path, tmp_path: Path) -> None:
    pressure = tmp_path / "pressure"
    pressure.write_text("some avg10=9.00 avg60=1\nfull avg10=4.25 avg60=0.10 avg300=0 total=5\n")
    assert reader(meminfo, pressure=pressure).read().stalled == 4.25
    assert reader(meminfo).read().stalled is None
    pressure.write_text("nothing of the kind")
    memory = reader(meminfo, pressure=pressure)
    assert memory.read().stalled is None
    assert memory.sources()["pressure"] is None


def test_what_is_on_the_kernels_free_lists_is_told_and_not_available(
    meminfo: Path, tmp_path: Path
) -> None:
    """Gone, forbidden or of another form: nothing is on them."""
    zoneinfo = tmp_path / "zoneinfo"
    zoneinfo.write_text(zones(3 * GIB))
    memory = reader(meminfo, zoneinfo=zoneinfo)
    found = memory.read()
    assert (found.available_bytes, found.free_lists_bytes) == (70 * GIB, 3 * GIB)
    assert found.used_bytes == 55 * GIB
    for content in (b"", b"\xff\x00", b"  pagesets\n    count: many\n", b"nr_count 7\ncount: 7\n"):
        zoneinfo.write_bytes(content)
        assert memory.read().free_lists_bytes == 0
    zoneinfo.unlink()
    assert memory.read().free_lists_bytes == 0
    assert reader(meminfo).read().free_lists_bytes == 0  # not the kernel's file: of no machine


def test_of_a_limited_group_the_machines_lists_are_no_part(meminfo: Path, tmp_path: Path) -> None:
    directory = group(tmp_path / "group", 2, str(32 * GIB), used=20, cache=5)
    (tmp_path / "zoneinfo").write_text(zones(3 * GIB))
    meminfo.write_text(text(70, held_gib=9))
    how = {"zoneinfo": tmp_path / "zoneinfo"}
    alone, within = reader(meminfo, **how), reader(meminfo, cgroup=str(directory), **how)
    assert (alone.read().free_lists_bytes, alone.read().processes_bytes) == (3 * GIB, 9 * GIB)
    assert (within.read().free_lists_bytes, within.read().processes_bytes) == (0, None)


@pytest.mark.skipif(not ZONEINFO.exists(), reason="no /proc/zoneinfo here")
def test_the_kernels_own_lists_are_read_where_its_meminfo_is() -> None:
    found = MemInfo(cgroup="off").read()
    assert found.processes_bytes
    assert 0 <= found.free_lists_bytes <= found.total_bytes // 4


@pytest.mark.parametrize("installed", [True, False])
def test_no_gpu_tool_is_asked(
    meminfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """Field report R30: an nvidia-smi that says [N/A], or none at all."""
    called = tmp_path / "called"
    if installed:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\ntouch {called}\necho '[N/A], [N/A]'\n")
        smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    memory = reader(meminfo)
    assert memory.read().available_bytes == 70 * GIB
    sources = memory.sources()
    assert sources["meminfo"] == str(meminfo)
    assert "none" in str(sources["gpu_tools"])
    assert not called.exists()


def test_a_process_is_told_by_its_own_pages() -> None:
    mine = bytearray(64 * 2**20)
    mine[::4096] = b"x" * len(mine[::4096])
    own, pss = own_bytes(os.getpid()), pss_bytes(os.getpid())
    assert own is not None
    assert pss is not None
    assert own >= len(mine)
    assert pss["anon"] >= len(mine)
    assert (own_bytes(2**22 + 7), pss_bytes(2**22 + 7)) == (None, None)


def test_what_a_process_started_counts_with_it_but_for_what_counts_apart() -> None:
    script = "held = bytearray(40 << 20); print('up', flush=True); input()"
    line = [sys.executable, "-c", script]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        alone = family_pss_bytes(os.getpid(), {child.pid})["anon"]
        together = family_pss_bytes(os.getpid())["anon"]
        child.stdin.close()
    assert 40 << 20 <= together - alone < 80 << 20


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(30)
    assert family_pss_bytes(child.pid) == {}

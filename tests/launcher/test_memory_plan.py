"""``slotwise plan``, ``check`` and ``serve`` as their user sees them, on a machine made up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import yaml

from launcher import (
    cli,
    machine,
    measured,
    memory_plan,
    pid_file,
    profile,
    tiny_model,
    wiring,
)
from launcher.fitting import Fit
from launcher.machine import Machine
from launcher.memory_plan import Outcome
from launcher.settings import LaunchedServer
from policies.admission import Growth
from tests.launcher import big_models as big
from tests.launcher import headers
from tests.support import ROOT, stub_binary, wait_until
from tests.support import Slotwise as Served

GB, GIB = 10**9, 2**30
BIG = {
    "qwen3.8-flash-next": (big.QWEN38_FLASH_NEXT, 93_600_000_000),
    "qwen3.8-27b": (big.QWEN35_27B, 20 * GB),
    "qwen3.6-35b-a3b": (big.QWEN36_35B_A3B, 37 * GB),
}


def _meminfo(folder: Path, total_gib: float = 121.7, available_gib: float = 117.0) -> Path:
    """A GB10 box at rest."""
    path = folder / "meminfo"
    lines = [
        f"MemTotal:       {round(total_gib * 2**20)} kB",
        "MemFree:         2097152 kB",
        f"MemAvailable:   {round(available_gib * 2**20)} kB",
        "HugePages_Total:       0",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _profile(folder: Path, name: str, **server: Any) -> Path:
    """A profile that comes along, its model a header of the right size, its engine a script."""
    values, size_bytes = BIG[name]
    data = yaml.safe_load((profile.CONFIGS / f"{name}.yaml").read_text())
    program = folder / "llama-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    model = headers.write(folder / f"{name}.gguf", values, size_bytes)
    data["server"] |= {"binary": str(program), "model": str(model)} | server
    data["memory"] |= {"meminfo": str(folder / "meminfo")}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def _outcome(folder: Path, *paths: Path, available_gib: float = 117.0) -> Outcome:
    profiles = profile.load_all([str(path) for path in paths], {})
    box = Machine(round(121.7 * GIB), round(available_gib * GIB), 15 * GIB, "meminfo")
    return memory_plan.outcome(profiles, folder / "state", box)


class Told(NamedTuple):
    status: int
    out: str
    err: str


Slotwise = Callable[..., Told]


@pytest.fixture
def slotwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Slotwise:
    """Runs a command of the user's in this very process."""

    def run(command: str, *paths: Path) -> Told:
        line = [command, *map(str, paths), "--state-dir", str(tmp_path / "state")]
        status = cli.main(line)
        return Told(status, *capsys.readouterr())

    return run


@pytest.mark.parametrize("name", BIG)
def test_the_profiles_that_come_along_fit_a_box_of_128_gb(tmp_path: Path, name: str) -> None:
    _meminfo(tmp_path)
    outcome = _outcome(tmp_path, _profile(tmp_path, name))
    assert outcome.fit is Fit.FITS, outcome.text
    (planned,) = outcome.planned
    assert planned.plan.peak_bytes == sum(part.size_bytes for part in planned.plan.parts)
    assert not planned.plan.notes


def test_a_plan_that_does_not_fit_says_what_would(tmp_path: Path, slotwise: Slotwise) -> None:
    _meminfo(tmp_path, available_gib=112)
    path = _profile(tmp_path, "qwen3.8-flash-next", ctx_checkpoints=32)
    told = slotwise("plan", path)
    assert (told.status, told.err) == (1, "")
    assert "does not fit: needs" in told.out
    assert "  fewer checkpoints: ctx_checkpoints: " in told.out
    assert "  quantized keys and values: cache_type_k: q4_0, cache_type_v: q4_0: " in told.out
    checked = slotwise("check", path)
    assert checked.status == 1
    assert "launch line: " in checked.out
    assert checked.out.endswith(told.out)


def test_serve_refuses_what_does_not_fit_unless_told_otherwise(tmp_path: Path) -> None:
    _meminfo(tmp_path, available_gib=60)
    path = _profile(tmp_path, "qwen3.8-flash-next")
    line = [sys.executable, "-m", "launcher.cli", "serve", str(path), "--port", "0"]
    line += ["--state-dir", str(tmp_path / "state")]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "slotwise: not started (--ignore-plan does)"
    assert "does not fit: needs" in refused.stderr
    assert not (tmp_path / "state" / "engines").exists()


def test_what_else_a_profile_says_counts(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    arguments = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "6"]
    path = _profile(
        tmp_path,
        "qwen3.8-27b",
        extra_args=arguments,
        parallel=1,
        ctx_size=262_144,
        ctx_checkpoints=0,
        mmproj=str(headers.write(tmp_path / "eye.gguf", {}, GB)),
    )
    headers.write(tmp_path / "qwen3.8-27b.gguf", big.QWEN36_27B_MTP, 20 * GB)
    data = yaml.safe_load(path.read_text())
    data["memory"]["peak_gib"] = 60
    path.write_text(yaml.safe_dump(data))
    (planned,) = _outcome(tmp_path, path).planned
    sizes = {part.name: part.size_bytes for part in planned.plan.parts}
    assert sizes["projector (mmproj)"] == GB
    assert sizes["draft heads' keys and values"] == GIB
    # Published for six drafted tokens: 1047.38 MiB of states, and a context of 1024.00 MiB.
    assert f"{sizes['recurrent states'] / 2**20:.2f}" == "1047.38"
    assert "checkpoints" not in sizes
    assert planned.plan.peak_bytes == 60 * GIB


def test_a_table_that_stays_on_disk_takes_no_memory(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    table = {"per_layer_token_embd.weight": 27 * GIB}
    name = "qwen3.8-flash-next"

    def weights(**server: Any) -> int:
        path = _profile(tmp_path, name, **server)
        headers.write(tmp_path / f"{name}.gguf", big.QWEN38_FLASH_NEXT, 93_600_000_000, table)
        return _outcome(tmp_path, path).planned[0].engine.model.weights_bytes

    # A GPU that shares the memory cannot map files: by itself the engine keeps all of it.
    assert weights() == 93_600_000_000
    assert weights(extra_args=["-lzm", "on"]) == 93_600_000_000 - 27 * GIB
    assert weights(gpu_layers=0) == 93_600_000_000 - 27 * GIB
    assert weights(gpu_layers=0, extra_args=["-lzm", "off"]) == 93_600_000_000


def test_told_to_ignore_the_plan_it_starts(tmp_path: Path) -> None:
    _meminfo(tmp_path, available_gib=60)
    path = _profile(tmp_path, "qwen3.8-flash-next", binary=str(stub_binary(tmp_path)))
    with Served(path, "--state-dir", tmp_path / "state", "--ignore-plan") as served:
        assert "WARNING memory: does not fit: needs 100.62 GiB, " in served.output


def test_two_profiles_are_one_machine(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    paths = [_profile(tmp_path, name) for name in ("qwen3.8-27b", "qwen3.6-35b-a3b")]
    alone = [_outcome(tmp_path, path) for path in paths]
    both = _outcome(tmp_path, *paths)
    assert [one.fit for one in alone] == [Fit.FITS, Fit.FITS]
    assert both.fit is Fit.TOO_BIG
    assert both.text.count("could do with less, one at a time:") == 2


def test_a_split_model_counts_with_all_its_files(tmp_path: Path, slotwise: Slotwise) -> None:
    _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-27b")
    whole = _outcome(tmp_path, path).planned[0].plan.peak_bytes
    first = tmp_path / "m-00001-of-00002.gguf"
    headers.write(first, big.QWEN35_27B, 15 * GB)
    data = yaml.safe_load(path.read_text())
    data["server"]["model"] = str(first)
    path.write_text(yaml.safe_dump(data))
    told = slotwise("plan", path)
    missing = tmp_path / "m-00002-of-00002.gguf"
    assert told.status == 2
    assert told.err == f"slotwise: {path}: server.model: expected 2 files, got no {missing}\n"
    headers.write(missing, {"general.architecture": "qwen35"}, 5 * GB)
    assert _outcome(tmp_path, path).planned[0].plan.peak_bytes == whole


def test_a_cache_the_engine_would_refuse(tmp_path: Path, slotwise: Slotwise) -> None:
    _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-27b", cache_type_k="q8_0")
    values = big.QWEN35_27B | {"qwen35.attention.key_length": 36}
    headers.write(tmp_path / "qwen3.8-27b.gguf", values, GB)
    told = slotwise("plan", path)
    assert told.status == 2
    assert "server.model: 144 elements a token are no multiple of 32 (q8_0)" in told.err


def test_a_meminfo_that_says_nothing(tmp_path: Path, slotwise: Slotwise) -> None:
    meminfo = _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-27b")
    meminfo.write_text("MemTotal: 12 kB\n")
    told = slotwise("plan", path)
    assert told.status == 2
    assert told.err == (
        f"slotwise: {meminfo} has no MemAvailable and MemTotal "
        "(without a plan: memory.enabled: false)\n"
    )
    data = yaml.safe_load(path.read_text())
    data["memory"]["enabled"] = False
    path.write_text(yaml.safe_dump(data))
    told = slotwise("plan", path)
    assert (told.status, told.out) == (0, "memory: not planned (memory.enabled: false)\n")


def _runs(directory: Path) -> int:
    """This very process stands for an engine; returns its own memory, in bytes."""
    directory.mkdir(parents=True)
    process = psutil.Process()
    pid_file.write(directory / "engine.pid", process.pid, process.cmdline())
    info = process.memory_info()
    return int(info.rss - info.shared)


def test_an_engine_that_runs_counts_once(tmp_path: Path) -> None:
    """Its keys and values are gone from MemAvailable: only what it can still take is to come."""
    _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-27b")
    plan = _outcome(tmp_path, path).planned[0].plan
    directory = tmp_path / "state" / "engines" / "qwen3.8-27b"
    now = _runs(directory)
    start = measured.Start("l", os.getpid(), "then", 70 * GIB, "how", now, plan.growth_bytes)
    measured.keep(directory, start)
    left = 117.0 - plan.load_bytes / GIB
    running = _outcome(tmp_path, path, available_gib=left)
    assert running.summary.startswith("fits: needs 0.0 MiB, ")
    assert "up to 14.03 GiB can still be added" in running.text
    assert running.text.count("14.03 GiB may still be taken by what runs") == 1
    # A neighbour from the same state directory finds the rest, and not a byte less or more.
    other = _profile(tmp_path, "qwen3.6-35b-a3b")
    beside = _outcome(tmp_path, other, available_gib=left)
    needed = beside.planned[0].plan.peak_bytes / GIB
    missing = needed - (left - plan.growth_bytes / GIB - 15)
    assert f"{missing:.2f} GiB more than there is" in beside.summary


def test_while_an_engine_loads_the_rest_of_its_load_is_to_come(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-27b")
    _runs(tmp_path / "state" / "engines" / "qwen3.8-27b")
    loading = _outcome(tmp_path, path)
    (planned,) = loading.planned
    assert planned.growth_bytes is not None
    assert 0 < planned.plan.peak_bytes - planned.growth_bytes < GIB


def test_the_gate_learns_what_the_plan_knows(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    (planned,) = _outcome(tmp_path, _profile(tmp_path, "qwen3.8-27b", cache_ram_mib=64)).planned
    assert wiring.growth(planned.profile, planned) == Growth(
        checkpoint_bytes=48 * 4 * (30_720 + 128 * 6144),
        checkpoints=16,
        cache_ram_bytes=64 * 2**20,
        kv_bytes_per_token=65_536,
    )
    served = wiring.served(planned.profile, planned)
    assert served.params.keep.park_tokens == 64 * 2**20 // 65_536
    main = wiring.role(planned.profile, {"qwen3.8-27b": planned})
    assert (main.order, main.claim_bytes) == (0, planned.plan.load_bytes)


def test_the_build_of_the_embedded_engine_is_its_wheels(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    (planned,) = _outcome(tmp_path, _profile(tmp_path, "qwen3.8-27b")).planned
    server = planned.profile.server
    assert isinstance(server, LaunchedServer)
    assert wiring.served(planned.profile, planned).build == ""
    embedded = replace(planned.profile, server=server.model_copy(update={"binary": "embedded"}))
    found = metadata.version("xllamacpp")
    assert wiring.served(embedded, planned).build == f"xllamacpp {found}"


def test_the_second_start_is_planned_by_the_first(tmp_path: Path, slotwise: Slotwise) -> None:
    server = {"model": str(tiny_model.build(tmp_path)), "parallel": 2, "ctx_size": 262_144}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny", "server": server | {"threads": 1}}))
    state = tmp_path / "state"
    kept = state / "engines" / "tiny" / measured.FILE_NAME
    assert "measured" not in slotwise("plan", path).out
    with Served(path, "--state-dir", state):
        wait_until(kept.exists, what="the size of the first start")
        running = slotwise("plan", path)
        assert "it runs already" in running.out
    told = slotwise("plan", path)
    assert "measured: size of the process, start of 20" in told.out
    # Another window is another launch line, which was never measured.
    path.write_text(path.read_text().replace("262144", "131072"))
    assert "measured" not in slotwise("plan", path).out


def test_small_models_are_told_what_they_would_find(tmp_path: Path) -> None:
    _meminfo(tmp_path)
    path = _profile(tmp_path, "qwen3.8-flash-next")
    data = yaml.safe_load(path.read_text())
    small = {"name": "small", "server": {"model": "small.gguf", "parallel": 1, "ctx_size": 4096}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    headers.write(tmp_path / "small.gguf", big.GEMMA3_270M, 2 * GB)
    data["roles"] = [
        {"name": "title", "profile": str(tmp_path / "small.yaml"), "claim_gib": 1.0},
        {"name": "embed", "profile": str(tmp_path / "small.yaml"), "claim_gib": 6.5},
    ]
    path.write_text(yaml.safe_dump(data))
    refused = _outcome(tmp_path, path)
    assert refused.fit is Fit.FITS  # the main model decides
    assert "  1. title: refused: " in refused.text
    roomy = _outcome(tmp_path, path, available_gib=122)
    first, second = roomy.text.splitlines()[-2:]
    assert first.startswith("  1. title: fits: ")
    assert first.endswith("more than claim_gib")  # 2 GB of weights alone
    # What is left when the first one runs, and what the main one may still take.
    main, first_one = roomy.planned[0].plan, 1.0
    left = 122 - main.load_bytes / GIB - first_one
    growth = main.growth_bytes / GIB
    told = f"  2. embed: refused: {left:.2f} available - {growth:.2f} growth still to come - 6.50 "
    assert second.startswith(told)


@pytest.mark.parametrize(
    ("answer", "own_mib"),
    [
        ("echo '[N/A]'", None),
        ("echo 'Not Supported'; exit 3", None),
        ("exec sleep 60", None),
        ("echo 24564; echo 24564", 49128),
    ],
)
def test_whose_memory_the_gpus_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, own_mib: int | None
) -> None:
    """Field report R30: on GB10 the tool knows no figure, and many readers stumble over that."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(machine, "_ASK_LIMIT_S", 1.0)
    assert machine.gpu_own_memory_mib() == own_mib


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_own_memory_mib() is None

"""What a plan counts: all that a profile says, what runs beside it and what may still be taken."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from slotwise.launcher import wiring
from slotwise.launcher.plan import starts
from slotwise.launcher.plan.fitting import Fit
from slotwise.launcher.plan.plan import MeasuredStart
from slotwise.launcher.process import process
from slotwise.launcher.profile.settings import LaunchedServer
from slotwise.policies.admission import Growth
from tests.launcher import big_models as big
from tests.launcher import headers
from tests.launcher.planned import BIG, GB, GIB, meminfo_file, outcome_of, profile_file


@pytest.mark.parametrize("name", BIG)
def test_the_profiles_that_come_along_fit_a_box_of_128_gb(tmp_path: Path, name: str) -> None:
    meminfo_file(tmp_path)
    outcome = outcome_of(tmp_path, profile_file(tmp_path, name))
    assert outcome.fit is Fit.FITS, outcome.text
    (planned,) = outcome.planned
    assert planned.plan.peak_bytes == sum(part.size_bytes for part in planned.plan.parts)
    assert not planned.plan.notes


def test_what_else_a_profile_says_counts(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    arguments = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "6"]
    path = profile_file(
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
    (planned,) = outcome_of(tmp_path, path).planned
    sizes = {part.name: part.size_bytes for part in planned.plan.parts}
    assert sizes["projector (mmproj)"] == GB
    assert sizes["draft heads' keys and values"] == GIB
    # Published for six drafted tokens: 1047.38 MiB of states, and a context of 1024.00 MiB.
    assert f"{sizes['recurrent states'] / 2**20:.2f}" == "1047.38"
    assert "checkpoints" not in sizes
    assert planned.plan.peak_bytes == 60 * GIB


@pytest.mark.slow
def test_a_table_that_stays_on_disk_takes_no_memory(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    table = {"per_layer_token_embd.weight": 27 * GIB}
    name = "qwen3.8-flash-next"

    def weights(**server: Any) -> int:
        path = profile_file(tmp_path, name, **server)
        headers.write(tmp_path / f"{name}.gguf", big.QWEN38_FLASH_NEXT, 93_600_000_000, table)
        return outcome_of(tmp_path, path).planned[0].engine.model.weights_bytes

    # A GPU that shares the memory cannot map files: by itself the engine keeps all of it.
    assert weights() == 93_600_000_000
    assert weights(extra_args=["-lzm", "on"]) == 93_600_000_000 - 27 * GIB
    assert weights(gpu_layers=0) == 93_600_000_000 - 27 * GIB
    assert weights(gpu_layers=0, extra_args=["-lzm", "off"]) == 93_600_000_000


def test_two_profiles_are_one_machine(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    paths = [profile_file(tmp_path, name) for name in ("qwen3.8-27b", "qwen3.6-35b-a3b")]
    alone = [outcome_of(tmp_path, path) for path in paths]
    both = outcome_of(tmp_path, *paths)
    assert [one.fit for one in alone] == [Fit.FITS, Fit.FITS]
    assert both.fit is Fit.TOO_BIG
    assert both.text.count("could do with less, one at a time:") == 2


def _runs(directory: Path) -> int:
    """This very process stands for an engine; returns its own memory, in bytes."""
    directory.mkdir(parents=True)
    own = psutil.Process()
    process.write(directory / "engine.pid", own.pid, own.cmdline())
    info = own.memory_info()
    return int(info.rss - info.shared)


def test_an_engine_that_runs_counts_once(tmp_path: Path) -> None:
    """Its keys and values are gone from MemAvailable: only what it can still take is to come."""
    meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-27b")
    plan = outcome_of(tmp_path, path).planned[0].plan
    directory = tmp_path / "state" / "engines" / "qwen3.8-27b"
    now = _runs(directory)
    start = MeasuredStart(70 * GIB, "then", "how", "l", os.getpid(), now, plan.growth_bytes)
    starts.keep(directory, start)
    left = 117.0 - plan.load_bytes / GIB
    running = outcome_of(tmp_path, path, available_gib=left)
    assert running.summary.startswith("fits: needs 0.0 MiB, ")
    assert "up to 14.03 GiB can still be added" in running.text
    assert running.text.count("14.03 GiB may still be taken by what runs") == 1
    # A neighbour from the same state directory finds the rest, and not a byte less or more.
    other = profile_file(tmp_path, "qwen3.6-35b-a3b")
    beside = outcome_of(tmp_path, other, available_gib=left)
    needed = beside.planned[0].plan.peak_bytes / GIB
    missing = needed - (left - plan.growth_bytes / GIB - 15)
    assert f"{missing:.2f} GiB more than there is" in beside.summary


def test_while_an_engine_loads_the_rest_of_its_load_is_to_come(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-27b")
    _runs(tmp_path / "state" / "engines" / "qwen3.8-27b")
    loading = outcome_of(tmp_path, path)
    (planned,) = loading.planned
    assert planned.growth_bytes is not None
    assert 0 < planned.plan.peak_bytes - planned.growth_bytes < GIB


def test_the_gate_learns_what_the_plan_knows(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    (planned,) = outcome_of(
        tmp_path, profile_file(tmp_path, "qwen3.8-27b", cache_ram_mib=64)
    ).planned
    assert wiring.growth(planned.profile, planned) == Growth(
        checkpoint_bytes=48 * 4 * (30_720 + 128 * 6144),
        checkpoints=16,
        cache_ram_bytes=64 * 2**20,
        kv_bytes_per_token=65_536,
    )
    served = wiring.served(planned.profile, planned)
    assert served.params.cache_tokens == 64 * 2**20 // 65_536
    assert served.params.copy_s(65_536) == pytest.approx(65_536 * 65_536 / 8e9)
    main = wiring.role(planned.profile, {"qwen3.8-27b": planned})
    assert (main.order, main.claim_bytes) == (0, planned.plan.load_bytes)


def test_the_build_of_the_embedded_engine_is_its_wheels(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    (planned,) = outcome_of(tmp_path, profile_file(tmp_path, "qwen3.8-27b")).planned
    server = planned.profile.server
    assert isinstance(server, LaunchedServer)
    assert wiring.served(planned.profile, planned).build == ""
    embedded = replace(planned.profile, server=server.model_copy(update={"binary": "embedded"}))
    found = metadata.version("xllamacpp")
    assert wiring.served(embedded, planned).build == f"xllamacpp {found}"


def test_small_models_are_told_what_they_would_find(tmp_path: Path) -> None:
    meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-flash-next")
    data = yaml.safe_load(path.read_text())
    small = {"name": "small", "server": {"model": "small.gguf", "parallel": 1, "ctx_size": 4096}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    headers.write(tmp_path / "small.gguf", big.GEMMA3_270M, 2 * GB)
    data["roles"] = [
        {"name": "title", "profile": str(tmp_path / "small.yaml"), "claim_gib": 1.0},
        {"name": "embed", "profile": str(tmp_path / "small.yaml"), "claim_gib": 6.5},
    ]
    path.write_text(yaml.safe_dump(data))
    refused = outcome_of(tmp_path, path)
    assert refused.fit is Fit.FITS  # the main model decides
    assert "  1. title: refused: " in refused.text
    roomy = outcome_of(tmp_path, path, available_gib=122)
    first, second = roomy.text.splitlines()[-2:]
    assert first.startswith("  1. title: fits: ")
    assert first.endswith("more than claim_gib")  # 2 GB of weights alone
    # What is left when the first one runs, and what the main one may still take.
    main, first_one = roomy.planned[0].plan, 1.0
    left = 122 - main.load_bytes / GIB - first_one
    growth = main.growth_bytes / GIB
    told = f"  2. embed: refused: {left:.2f} available - {growth:.2f} growth still to come - 6.50 "
    assert second.startswith(told)

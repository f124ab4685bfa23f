"""``slotwise plan``, ``check`` and ``serve`` as their user sees them, on a machine made up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from slotwise.launcher.cli import command
from slotwise.launcher.model import tiny_model
from slotwise.launcher.plan import starts
from tests.launcher import big_models as big
from tests.launcher import headers
from tests.launcher.planned import GB, meminfo_file, outcome_of, profile_file
from tests.support import ROOT, stub_binary, wait_until
from tests.support import Slotwise as Served


class Told(NamedTuple):
    status: int
    out: str
    err: str


Slotwise = Callable[..., Told]


@pytest.fixture
def slotwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Slotwise:
    """Runs a command of the user's in this very process."""

    def run(name: str, *paths: Path) -> Told:
        line = [name, *map(str, paths), "--state-dir", str(tmp_path / "state")]
        status = command.main(line)
        return Told(status, *capsys.readouterr())

    return run


def test_a_plan_that_does_not_fit_says_what_would(tmp_path: Path, slotwise: Slotwise) -> None:
    meminfo_file(tmp_path, available_gib=112)
    path = profile_file(tmp_path, "qwen3.8-flash-next", ctx_checkpoints=32)
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
    meminfo_file(tmp_path, available_gib=60)
    path = profile_file(tmp_path, "qwen3.8-flash-next")
    line = [
        sys.executable,
        "-m",
        "slotwise.launcher.cli.command",
        "serve",
        str(path),
        "--port",
        "0",
    ]
    line += ["--port", "0", "--state-dir", str(tmp_path / "state")]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == "slotwise: not started (--ignore-plan does)"
    assert "does not fit: needs" in refused.stderr
    assert not (tmp_path / "state" / "engines").exists()


@pytest.mark.slow
def test_told_to_ignore_the_plan_it_starts(tmp_path: Path) -> None:
    meminfo_file(tmp_path, available_gib=60)
    path = profile_file(tmp_path, "qwen3.8-flash-next", binary=str(stub_binary(tmp_path)))
    with Served(path, "--state-dir", tmp_path / "state", "--ignore-plan") as served:
        assert "WARNING memory: does not fit: needs 100.62 GiB, " in served.output


def test_a_split_model_counts_with_all_its_files(tmp_path: Path, slotwise: Slotwise) -> None:
    meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-27b")
    whole = outcome_of(tmp_path, path).planned[0].plan.peak_bytes
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
    assert outcome_of(tmp_path, path).planned[0].plan.peak_bytes == whole


def test_a_cache_the_engine_would_refuse(tmp_path: Path, slotwise: Slotwise) -> None:
    meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-27b", cache_type_k="q8_0")
    values = big.QWEN35_27B | {"qwen35.attention.key_length": 36}
    headers.write(tmp_path / "qwen3.8-27b.gguf", values, GB)
    told = slotwise("plan", path)
    assert told.status == 2
    assert "server.model: 144 elements a token are no multiple of 32 (q8_0)" in told.err


def test_a_meminfo_that_says_nothing(tmp_path: Path, slotwise: Slotwise) -> None:
    meminfo = meminfo_file(tmp_path)
    path = profile_file(tmp_path, "qwen3.8-27b")
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


@pytest.mark.slow
def test_the_second_start_is_planned_by_the_first(tmp_path: Path, slotwise: Slotwise) -> None:
    server = {"model": str(tiny_model.build(tmp_path)), "parallel": 2, "ctx_size": 262_144}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny", "server": server | {"threads": 1}}))
    state = tmp_path / "state"
    kept = state / "engines" / "tiny" / starts.FILE_NAME
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

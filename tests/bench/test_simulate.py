"""``slotwise simulate``: what it prints, plots and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.bench.sim import simulate
from slotwise.launcher.cli import command
from tests.bench.sim_world import EVIDENCE, agents


def test_the_command_prints_a_row_for_each_setup_and_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--grid", "2/2/20k,4/2/20k", "--arms", "llama.cpp,slotwise,optimum", "--seeds", "2"]
    assert command.main(["simulate", str(agents(tmp_path)), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ")[:2] for line in lines if line.startswith(("| 2/", "| 4/"))]
    assert [f"{a[2:]} {b}" for a, b in rows] == [
        f"{setup} {arm}"
        for setup in ("2/2/20k", "4/2/20k")
        for arm in ("llama.cpp", "slotwise", "optimum")
    ]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_written(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{ending}"
    run = [str(agents(tmp_path, 2, 3)), "--seeds", "1", "--arms", "llama.cpp,slotwise"]
    assert command.main(["simulate", *run, "--sessions", "2", "--plot", str(path)]) == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--arms", "llama.cpp,best"], "'best'"),
        (["--arms", ","], "at least one, got ','"),
        (["--cost", "no-such"], "evidence, gb10"),
        (["--policy", "{guest: {guest_max_tokens: -1}}"], "policy.guest.guest_max_tokens"),
        (["--policy", "[1]"], "mapping"),
        (["--profile", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_bad_options_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert command.main(["simulate", str(agents(tmp_path, 2, 2)), *options]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("simulate: ")
    assert printed.err.count("\n") == 1


def test_a_trace_of_texts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("{}")
    assert command.main(["simulate", str(path)]) == 2
    assert "holds texts" in capsys.readouterr().err


def test_a_profile_gives_the_rules_and_the_cost_model_the_seconds(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\npolicy: {max_running: 3, keep_s: 7}")
    params = simulate._params(path, "{cold_tokens: 1}", EVIDENCE)
    assert (params.max_running, params.keep_s) == (3, 7)
    assert (params.cold_tokens, params.cost) == (1, EVIDENCE.as_policy())

"""Every ``python -m`` entry says what it takes, and names the option whose value it cannot use."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = sorted(
    ".".join(("slotwise", *path.relative_to(ROOT).with_suffix("").parts))
    for package in ("bench", "launcher", "configs/grafana")
    for path in (ROOT / package).rglob("*.py")
    if "\nif __name__ ==" in path.read_text("utf-8")
)
_BAD = [  # the last word of a line is the value that is refused, the one before it the option
    *(
        "bench.run.causes --live 0",
        "bench.run.causes --slots 2,x",
        "bench.run.causes --ctx -1",
    ),
    *("bench.run.compare titles --slots 0", "bench.run.compare titles --seeds none"),
    *("bench.cost.decide_bench --slots 0", "bench.cost.decide_bench --rounds 1.5"),
    "bench.run.demo --model huge",
    "bench.floor.search --minutes none",
    *(
        "bench.cost.fake_engine --engine http://127.0.0.1:1 -np 0",
        "bench.cost.fake_engine --port 65536",
    ),
    *("bench.cost.memory_cost --requests 0", "bench.cost.memory_cost --tokens many"),
    *("bench.cost.overhead --rounds 0", "launcher.cli.command replay titles --sessions 0"),
    "launcher.cli.command simulate claude_code --grid 1/2",
    *("bench.cost.tokens_bench --prompts 0", "bench.sim.waits --jsno"),
    *("launcher.cli.command serve demo --port 99999", "launcher.model.tiny_model here --hepl"),
    "configs.grafana.generate --hepl",
]
BAD = [f"slotwise.{line}" for line in _BAD]


def run(monkeypatch: pytest.MonkeyPatch, module: str, *arguments: str) -> object:
    """``python -m module`` in this process; what it ended with."""
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.delitem(sys.modules, module, raising=False)  # so that it runs as if alone
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return end.value.code


@pytest.mark.parametrize("module", ENTRIES)
def test_help_is_given(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    module: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, module, "--help") == 0
    assert capsys.readouterr().out.startswith("usage: ")
    assert list(tmp_path.iterdir()) == [], "help leaves nothing behind"


@pytest.mark.parametrize("line", BAD)
def test_a_bad_value_is_named_with_its_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    module, *arguments = line.split()
    assert run(monkeypatch, module, *arguments) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert all(word in said for word in arguments[-2:] if word.startswith("-")), said


def test_no_entry_is_left_out() -> None:
    named = {line.split()[0] for line in BAD}
    # what the engine takes is llama-server's own
    assert set(ENTRIES) - named == {"slotwise.launcher.process.embedded"}

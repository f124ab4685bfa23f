"""``slotwise bench``: what it writes, what it refuses, and one small run on the real engine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from rich.console import Console

from slotwise.bench.run import engines, served
from slotwise.bench.run.client import Answer
from slotwise.bench.run.scripts import ScriptOptions, of_calls
from slotwise.bench.run.sender import Ids, Outcome, Sent, Step
from slotwise.bench.run.served import Bench
from slotwise.bench.suite import suite, tables
from slotwise.bench.suite.suite import Measurement
from slotwise.bench.trace import workload
from slotwise.launcher.cli import command
from slotwise.policies.prefix import Tokens, pack

ENGINE = importlib.util.find_spec("xllamacpp")
needs_engine = pytest.mark.skipif(not ENGINE, reason="no embedded engine (xllamacpp)")


@needs_engine
def test_a_measurement_is_written_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = Measurement("what it shows", lambda bench, quick: f"| figure |\nquick: {quick}")
    monkeypatch.setattr(suite, "SUITE", {"one": entry, "other": entry})
    assert command.main(["bench", "--only", "one", "--quick", "--out", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one-quick.md"]
    text = (tmp_path / "one-quick.md").read_text()
    assert text.startswith("# What it shows\n\n`slotwise bench --only one --quick`\n")
    assert "quick: True" in text
    assert "tiny model; load" in text
    assert "| figure |" in capsys.readouterr().out


def test_the_list_and_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bench", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(suite.SUITE)
    assert command.main(["bench", "--only", "nosuch"]) == 2
    assert capsys.readouterr().err.startswith("bench: 'nosuch' is not one of newsroom, ")


def step(name: str, tokens: int, session: str = "s") -> Step:
    return Step(name, session, Ids(pack(range(tokens)), made_up=True), 4)


def test_bounds_are_counted_in_the_order_of_the_first_tokens() -> None:
    tokens: dict[str, Tokens] = {"short": pack(range(400)), "long": pack(range(1000))}

    def sent(name: str, ttft_s: float) -> Sent:
        answer = Answer(len(tokens[name]), 0, 1, ttft_s=ttft_s)
        return Sent(step(name, 1), 0.0, 0.0, ttft_s, answer)

    first_short = Outcome([sent("long", 2.0), sent("short", 1.0)])
    rows = served.served_rows(first_short, tokens)
    assert [len(row.prompt) for row in rows] == [400, 1000]
    assert served.infinite(rows) == 400 / 1400
    assert served.best_use(rows, 1, 0) == 400 / 1400
    first_long = Outcome([sent("long", 1.0), sent("short", 2.0)])
    assert served.infinite(served.served_rows(first_long, tokens)) == 399 / 1400


def test_a_ram_cache_holds_what_its_whole_mebibytes_hold() -> None:
    # 90,000 tokens of 528 bytes are 45.3 MiB; the flag says 46, which are 91,353 tokens.
    assert served.cached_tokens(90_000) == 91_353
    assert served.cached_tokens(0) == 0


def test_launch_lines_are_shown_without_folders_and_addresses() -> None:
    program = "python -m slotwise.launcher.process.embedded"
    line = f"{program} -m /tmp/x/tiny.gguf -np 4 --host 127.0.0.1 --port 5 -t 1"
    shown = tables._engine_line(["slotwise serve /tmp/b.yaml", line, "python -m helper"])
    assert shown == f"{program} -m tiny.gguf -np 4 -t 1"


@pytest.mark.slow
@needs_engine
def test_slotwise_and_a_bare_engine_are_run_on_the_same_script() -> None:
    calls = [c for name in "ab" for c in workload.conversation(name, 3, words_per_turn=60)]
    script = of_calls(calls, ScriptOptions(sessions=2, order="file", most_output=4))
    bench = Bench(engines.tiny_model(), ctx=4096, console=Console(stderr=True, quiet=True))
    tokens = bench.tokens(script)
    ram = 2_000
    for arm in (
        bench.bare("bare", 2, ram_tokens=ram),
        bench.session_pin("pinned", 2, ram),
        bench.slotwise("slotwise", 2, {"max_running": 1}, ram),
    ):
        played = bench.play(arm, script)
        rows = served.served_rows(played.outcome, tokens)
        assert [len(row.prompt) for row in rows] == [
            s.answer.prompt_tokens
            for s in sorted(played.outcome.calls, key=lambda s: s.targeted_s + s.ttft_s)
            if s.answer is not None
        ]
        reuse = served.reuse_of(played.outcome, lambda step: True)
        assert 0.3 < reuse <= served.infinite(rows)
        assert any("--cache-ram 2" in line for line in played.launch_lines)

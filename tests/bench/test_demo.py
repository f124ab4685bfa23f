"""What the demo sends and what it says about it."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from slotwise.bench.run import demo
from slotwise.bench.run.client import Answer
from slotwise.bench.run.compare import Result
from slotwise.bench.run.demo import verdict


def result(name: str, cached: int) -> Result:
    return Result(name, answers=[Answer(prompt_tokens=100, cached_tokens=cached)])


def said(without: int, with_cache: int, ours: int) -> str:
    arms = [result("a", without), result("b", with_cache), result("slotwise", ours)]
    return verdict(arms, optimum=0.75)


def test_each_turn_extends_the_one_before_and_shares_only_the_head_with_the_other() -> None:
    moments = demo.moments()
    turns = {call.session: call.messages for group in moments for call in group}
    assert turns["A turn 2"][:-2] == turns["A turn 1"]
    assert turns["A turn 1"][0] == turns["B turn 1"][0]
    assert turns["A turn 1"][1] != turns["B turn 1"][1]


def test_a_title_job_goes_out_with_the_turn_it_names() -> None:
    groups = [group for group in demo.moments() if len(group) > 1]
    assert len(groups) == 6
    for turn, title in groups:
        assert title.session.endswith(turn.session[0])
        assert len(title.messages) == 1


def test_the_closing_line_says_where_the_bare_engine_loses() -> None:
    text = said(without=40, with_cache=60, ours=70)
    assert "slotwise reuses 70.0% of all prompt tokens; 4 slots allow 75.0%." in text
    assert "without its RAM cache reuses 40.0%: it reads 2.0 times as many tokens" in text


def test_the_closing_line_says_where_the_bare_engine_does_as_well_or_better() -> None:
    text = said(without=69, with_cache=75, ours=70)
    assert "without its RAM cache does as well here: 69.0%" in text
    assert "with its RAM cache does better here: 75.0%" in text


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("xllamacpp"), reason="no embedded engine (xllamacpp)")
def test_the_demo_runs_on_the_tiny_model_and_slotwise_reuses_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert demo.main(["--model", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.split("bare, without RAM cache\n")[0].splitlines())) <= demo.COLUMNS
    told = {n: float(r) for n, r in re.findall(r"(RAM cache|slotwise) .* (0\.\d{3}) ", shown)}
    assert told["slotwise"] >= told["RAM cache"]
    assert "A turn 6" in shown
    assert "--cache-ram 0" in shown

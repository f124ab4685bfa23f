"""An account that does not agree with the engine's answer is found, and told in words."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from typing import Any

import pytest

from slotwise.bench.run import causes, engines
from slotwise.bench.run.causes import ViolationError, check, check_all, row
from slotwise.bench.run.client import Answer

ANSWER = Answer(prompt_tokens=100, cached_tokens=40)


def account(**tokens: int) -> dict[str, Any]:
    return {
        "id": "req-1",
        "lines": ["40 of 100 tokens came from the cache", "request req-1"],
        "prompt_tokens": 100,
        "bound_tokens": 60,
        "tokens": {"cached": 40, "evicted": 20, "new": 40} | tokens,
    }


def test_an_account_that_agrees_passes() -> None:
    check(ANSWER, account())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"new": 39}, "99 tokens by cause .* but the prompt has 100"),
        ({"new": 41}, "101 tokens by cause"),
        ({"cached": 39, "new": 41}, "39 tokens are told as cached, the engine reports 40"),
        ({"new": 30, "engine": 10}, "10 tokens have the cause engine"),
        ({"new": 30, "unknown": 10}, "10 tokens have the cause unknown"),
        ({"new": -1, "evicted": 61}, "less than no tokens"),
    ],
)
def test_an_account_that_does_not_agree_is_told_in_words(wrong: dict[str, int], told: str) -> None:
    with pytest.raises(ViolationError, match=told):
        check(ANSWER, account(**wrong))


def test_another_number_of_prompt_tokens_is_a_violation() -> None:
    with pytest.raises(ViolationError, match=r"100 prompt tokens were counted, .* reports 101"):
        check(Answer(prompt_tokens=101, cached_tokens=40), account())


def test_the_first_violation_names_its_call_and_a_missing_account_is_one() -> None:
    right, wrong = account(), account(new=39)
    with pytest.raises(ViolationError, match=r"oasst, call 1 \(req-1\): 99 tokens"):
        check_all([ANSWER, ANSWER], [right, wrong], "oasst")
    with pytest.raises(ViolationError, match="oasst: 2 answers, 1 accounts"):
        check_all([ANSWER, ANSWER], [right], "oasst")


def test_a_row_adds_up_to_its_prompt_tokens() -> None:
    shown = row("oasst", 2, [account(), account(evicted=0, new=60)])
    assert (shown["prompt tokens"], shown["cached"]) == (200, 80)
    assert (shown["evicted"], shown["new"]) == ("20 (10.0 %)", "100 (50.0 %)")
    assert shown["engine"] == "0"
    assert (shown["reuse"], shown["bound"]) == (0.4, 0.6)


def test_a_violation_ends_the_command_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(*_: Any) -> tuple[list[Answer], list[dict[str, Any]]]:
        return [ANSWER], [account(engine=5)]

    monkeypatch.setattr(engines, "tiny_model", lambda: None)
    monkeypatch.setattr(engines, "slotwise", lambda *_: nullcontext())
    monkeypatch.setattr(causes, "serve", serve)
    assert causes.main(["titles", "--slots", "2"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "slotwise.bench.run.causes: titles, 2 slots, call 0 (req-1): 105 tokens by cause" in err


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("xllamacpp"), reason="no engine (xllamacpp)")
def test_a_real_engine_and_its_accounts_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert causes.main(["titles", "--slots", "2", "--calls", "12", "--ctx", "8192"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].startswith("| trace | slots | calls | prompt tokens | cached | engine |")
    assert table[2].startswith("| titles | 2 | 12 |")


@pytest.mark.parametrize("slots", ["0", "2,x", "-1", ""])
def test_a_wrong_number_of_slots_is_refused(slots: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        causes.main(["titles", "--slots", slots])
    assert "expected a whole number of at least 1" in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "tiny_model", lambda: None)
    assert causes.main(["no-such-trace"]) == 2
    assert "no-such-trace: no such trace" in capsys.readouterr().err

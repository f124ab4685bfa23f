"""A replay against a server: who is sent when, what is noted, and that it always ends."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from slotwise.bench.run import engines, replay, sender
from slotwise.bench.run.client import Answer
from slotwise.bench.run.sender import Chat, How, Ids, Outcome, ReplayError, Script, Sent, Step
from slotwise.bench.trace.trace import Call
from slotwise.launcher.cli import command
from slotwise.policies.prefix import pack
from tests.support import StubServer

pytestmark = pytest.mark.anyio


def chat(session: str, turn: int, **changes: Any) -> Step:
    content = f"{session} asks for the {turn}th time"
    messages = [{"role": "user", "content": content}]
    prompt = Chat(Call(session, turn, messages, None, 8, "", None, None))
    fields: dict[str, Any] = {"id": f"{session}{turn}", "session": session, "prompt": prompt}
    return Step(**fields | changes)


def session(name: str, turns: int = 3, **changes: Any) -> list[Step]:
    return [chat(name, turn, output=4, **changes) for turn in range(turns)]


async def test_a_session_goes_on_after_its_answer_and_its_pause() -> None:
    with StubServer(decode_tps=200.0) as stub:
        script = Script([session("a", pause_s=0.1), session("b", pause_s=0.1)])
        outcome = await sender.send(script, How(stub.url, think_scale=0.5))
    assert len(outcome.calls) == 6
    assert not outcome.failures
    for name in ("a", "b"):
        first, second, third = (s for s in outcome.calls if s.step.session == name)
        for before, after in ((first, second), (second, third)):
            assert after.targeted_s == pytest.approx(before.ended_s + 0.05)
            assert after.started_s >= after.targeted_s
    assert len(replay.sessions_s(outcome)) == 2


async def test_so_many_lanes_at_a_time() -> None:
    with StubServer(decode_tps=400.0) as stub:
        script = Script([session(name, 2) for name in "abcdef"], live=2)
        outcome = await sender.send(script, How(stub.url))
    edges = sorted(
        [(s.started_s, 1) for s in outcome.calls] + [(s.ended_s, -1) for s in outcome.calls]
    )
    running, most = 0, 0
    for _, change in edges:
        running += change
        most = max(most, running)
    assert (len(outcome.calls), most) == (12, 2)


async def test_an_open_loop_waits_for_nobody() -> None:
    with StubServer(decode_tps=20.0) as stub:
        lanes = [[chat(name, 0, output=8, pause_s=0.02 * n)] for n, name in enumerate("abcd")]
        outcome = await sender.send(Script(lanes, open_loop=True), How(stub.url))
    assert [sent.targeted_s for sent in outcome.calls] == pytest.approx([0.0, 0.02, 0.04, 0.06])
    assert max(s.started_s for s in outcome.calls) < min(s.ended_s for s in outcome.calls)


async def test_nobody_waits_for_a_side_job() -> None:
    job = chat("title", 0, output=40, side=True)
    with StubServer(decode_tps=100.0) as stub:
        lane = [chat("a", 0, output=2, beside=(job,)), chat("a", 1, output=2)]
        outcome = await sender.send(Script([lane]), How(stub.url))
    by_id = {sent.step.id: sent for sent in outcome.calls}
    assert by_id["title0"].targeted_s == by_id["a0"].targeted_s
    assert by_id["a1"].started_s < by_id["title0"].ended_s
    row = replay.row(outcome)
    assert row["side TTFT s"] > 0
    assert (row["calls"], len(replay.sessions_s(outcome))) == (3, 1)


async def test_a_failed_call_ends_its_session_and_only_that() -> None:
    with StubServer() as stub:
        stub.configure(fail_next=1, fail_status=500)
        script = Script([session("a"), session("b")], live=1)
        outcome = await sender.send(script, How(stub.url))
    assert [sent.step.id for sent in outcome.calls] == ["a0", "b0", "b1", "b2"]
    assert [sent.error[:4] for sent in outcome.failures] == ["500:"]
    assert outcome.skipped == 2
    assert "2 calls were not sent" in replay.notes(outcome)


async def test_too_many_failures_end_it() -> None:
    with StubServer() as stub:
        stub.configure(fail_next=100, fail_status=500)
        script = Script([session(name) for name in "abcdef"], live=1)
        with pytest.raises(ReplayError, match="3 calls failed, the last: 500"):
            await sender.send(script, How(stub.url, most_failures=2))


async def test_a_silent_server_is_given_up_call_by_call_and_as_a_whole() -> None:
    with StubServer(silent=True) as stub:
        outcome = await sender.send(Script([session("a")]), How(stub.url, call_limit_s=0.2))
        assert [sent.error for sent in outcome.calls] == ["no end after 0.2 s"]
        outcome = await sender.send(Script([session("a")]), How(stub.url, limit_s=0.2))
    assert outcome.cut_off
    assert "still going on when the time was over" in outcome.calls[0].error


async def test_session_pins_are_one_at_a_time_on_the_slot_with_the_fewest() -> None:
    with StubServer(slots=2, decode_tps=400.0) as stub:
        script = Script([session(name, 2) for name in "abc"])
        outcome = await sender.send(script, How(stub.url, pin_slots=2))
        seen = {
            r["body"]["messages"][0]["content"][0]: r["body"]["id_slot"] for r in stub.requests()
        }
    assert seen == {"a": 0, "b": 1, "c": 0}
    on_slot_0 = sorted((s.started_s, s.ended_s) for s in outcome.calls if s.step.session != "b")
    assert all(a[1] <= b[0] for a, b in pairwise(on_slot_0))


def test_the_figures_of_made_up_calls() -> None:
    def sent(cached: int, ttft_s: float, side: bool = False) -> Sent:
        step = Step("x", "s", Ids(pack([1]), made_up=True), 3, side=side)
        answer = Answer(100, cached, 5, told_cached=True, ttft_s=ttft_s, total_s=ttft_s + 0.4)
        return Sent(step, 1.0, 1.5, 1.5 + answer.total_s, answer)

    row = replay.row(Outcome([sent(80, 0.5), sent(40, 1.5), sent(0, 9.0, True)], 0, 10.0))
    assert row["reuse"] == 120 / 300
    assert (row["TTFT s"], row["side TTFT s"]) == (1.5, 9.5)  # since it was due
    assert row["TPOT ms"] == pytest.approx(100.0)
    assert row["late p95 ms"] == 500.0
    assert row["session s"] == pytest.approx(2.4)


def test_a_server_that_does_not_tell_what_it_reused() -> None:
    step = Step("x", "s", Ids(pack([1]), made_up=True), 3)
    outcome = Outcome([Sent(step, 0.0, 0.0, 1.0, Answer(prompt_tokens=10))])
    assert replay.row(outcome)["reuse"] is None
    assert any("does not say" in note for note in replay.notes(outcome))


# ---------------------------------------------------------------- the command


def text_trace(folder: Path) -> Path:
    path = folder / "calls.jsonl"
    lines = []
    for name in ("a", "b"):
        messages: list[dict[str, str]] = []
        for turn in range(3):
            messages = [*messages, {"role": "user", "content": f"{name} " + "word " * 300}]
            line = {"session": name, "turn": turn, "messages": messages, "max_tokens": 4}
            lines.append(orjson.dumps(line | {"completion": "said"}))
            messages = [*messages, {"role": "assistant", "content": "said"}]
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.mark.skipif(
    not importlib.util.find_spec("xllamacpp"), reason="no embedded engine (xllamacpp)"
)
def test_a_real_engine_is_measured_and_what_was_sent_can_be_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, blocks = tmp_path / "calls.json", tmp_path / "again.jsonl"
    flags = ("-np", "2", "-c", "8192", "--cache-ram", "0")
    with engines.bare(engines.tiny_model(), flags) as server:
        first = ["replay", str(text_trace(tmp_path)), "--url", server.url + "/v1"]
        first += ["--sessions", "2", "--json", str(calls), "--write", str(blocks)]
        assert command.main(first) == 0
        told = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
        assert told["calls"].strip() == "6"
        assert 0.4 < float(told["reuse"]) < 0.7  # two of three turns find the one before
        assert command.main(["replay", str(blocks), "--url", server.url, "--order", "session"]) == 0
    every = json.loads(calls.read_bytes())
    assert len(every) == 6
    assert all(one["ttft_s"] > 0 and one["prefill_s"] > 0 for one in every)
    again = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert again["prompt tokens"].strip() == told["prompt tokens"].strip()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["no-such-trace"], "no-such-trace: no such trace"),
        (["titles", "--url", "http://127.0.0.1:9", "--total", "1"], "calls failed, the last"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert command.main(["replay", *options, "--max-failures", "1"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("replay: ")
    assert says in printed
    assert printed.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["replay", "simulate"])
def test_without_the_extra_the_command_says_what_to_install(name: str) -> None:
    program = (
        "import sys; sys.modules['numpy'] = None; from slotwise.launcher.cli import command; "
        f"sys.exit(command.main([{name!r}, 'x']))"
    )
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "pip install 'slotwise[bench]'" in done.stderr
    assert name in done.stderr
    assert done.stderr.count("\n") == 1

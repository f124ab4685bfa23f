"""What a replay sends: from recorded chats, block traces, made-up shapes and our own journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from slotwise.bench.run import scripts, sender
from slotwise.bench.run.scripts import ScriptOptions, of_calls, of_journal, read
from slotwise.bench.run.sender import PLAIN_IDS, Chat, Ids, Script, Step, plain
from slotwise.bench.sim.load import Recorded, Shape
from slotwise.bench.trace import blocks
from slotwise.bench.trace.blocks import block_tokens, knows_sessions
from slotwise.bench.trace.trace import Call, TraceError
from slotwise.policies.prefix import Tokens, lcp, pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import RequestArrived, RequestFinished
from slotwise.proxy.telemetry import journal


def call(session: str, turn: int, t: float | None = None) -> Call:
    messages = [{"role": "user", "content": f"{session} {turn}"}]
    return Call(session, turn, messages, None, 100, "", None, t)


CALLS = [call(s, turn) for turn in range(3) for s in ("a", "b", "c")]


def lanes(script: Script) -> list[str]:
    return [" ".join(f"{s.session}{s.id.split('.')[1]}" for s in lane) for lane in script.sessions]


# ---------------------------------------------------------------- recorded chats


def test_a_session_is_a_lane_in_the_order_of_its_calls() -> None:
    script = of_calls(CALLS, ScriptOptions(order="file", total=2, calls=2))
    assert lanes(script) == ["a0 a1", "b0 b1"]
    assert script.live == 4


def test_a_shuffle_is_the_seeds() -> None:
    found = {tuple(lanes(of_calls(CALLS, ScriptOptions(seed=seed)))) for seed in range(20)}
    assert len(found) == 6
    assert lanes(of_calls(CALLS, ScriptOptions(seed=3))) == lanes(
        of_calls(CALLS, ScriptOptions(seed=3))
    )


def test_pauses_are_the_recorded_ones_cut_to_the_longest() -> None:
    calls = [call("a", 0, 0.0), call("a", 1, 5.0), call("a", 2, 4000.0)]
    (lane,) = of_calls(calls, ScriptOptions(think_s=1, most_think_s=60)).sessions
    assert [step.pause_s for step in lane] == [0.0, 5.0, 60.0]


def test_pauses_that_were_not_recorded_are_drawn_about_the_median() -> None:
    calls = [call("a", turn) for turn in range(1001)]
    (lane,) = of_calls(calls, ScriptOptions(calls=2000, think_s=9)).sessions
    pauses = sorted(step.pause_s for step in lane[1:])
    assert 8 < pauses[500] < 10
    assert 0.78 < sum(pause < 30 for pause in pauses) / 1000 < 0.86


def test_an_answer_is_as_long_as_recorded_but_not_longer_than_wanted() -> None:
    assert {s.output for s in of_calls(CALLS, ScriptOptions(most_output=7)).steps()} == {7}
    assert {s.output for s in of_calls(CALLS, ScriptOptions(most_output=700)).steps()} == {100}


def test_an_open_loop_sends_each_call_at_its_time() -> None:
    calls = [call("a", 0, 10.0), call("b", 0, 8.0), call("a", 1, 30.0)]
    script = of_calls(calls, ScriptOptions(order="open"))
    assert script.open_loop
    assert [(lane[0].session, lane[0].pause_s) for lane in script.sessions] == [
        ("b", 0.0),
        ("a", 2.0),
        ("a", 22.0),
    ]


def test_an_open_loop_without_times_is_refused_with_a_count() -> None:
    with pytest.raises(ValueError, match="2 of 3 calls have no recorded time"):
        of_calls([call("a", 0, 1.0), call("a", 1), call("b", 0)], ScriptOptions(order="open"))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("session", ["a0 a1 a2", "b0 b1 b2", "c0 c1 c2"]),
        ("insertion", ["a0 b0 c0 a1 b1 c1 a2 b2 c2"]),
    ],
)
def test_one_call_at_a_time(tmp_path: Path, order: str, expected: list[str]) -> None:
    path = tmp_path / "calls.jsonl"
    fields = ("session", "turn", "messages", "max_tokens", "completion")
    path.write_bytes(
        b"\n".join(orjson.dumps({name: getattr(c, name) for name in fields}) for c in CALLS)
    )
    script = read(str(path), ScriptOptions(order=order, think_s=5))
    assert lanes(script) == expected
    assert script.live == 1
    assert {step.pause_s for step in script.steps()} == {0.0}


def test_drawn_calls_keep_the_order_of_their_sessions() -> None:
    sessions = of_calls(CALLS, ScriptOptions()).sessions
    lane = scripts._drawn(sessions, ScriptOptions(sessions=2))
    assert sorted(step.id for step in lane) == sorted(s.id for one in sessions for s in one)
    for session in sessions:
        assert [step for step in lane if step.session == session[0].session] == session


def test_title_jobs_go_beside_their_turn() -> None:
    script = read("titles", ScriptOptions(order="file", calls=2))
    first = script.sessions[0][0]
    assert [(step.side, len(step.beside)) for step in (first, *first.beside)] == [
        (False, 1),
        (True, 0),
    ]
    assert len(script) == 3 * 2 * 2


# ---------------------------------------------------------------- prompts of ids


def test_made_up_ids_become_plain_text_and_share_what_they_shared() -> None:
    first, second = pack(range(5_000)), pack([*range(3_000), *range(2**31, 2**31 + 2_000)])
    assert lcp(plain(first), plain(second)) in range(3_000, 3_003)  # one in 1,500 is the same
    assert set(plain(second).ids()) <= set(PLAIN_IDS)


def test_a_chat_is_sent_as_the_chat_it_was() -> None:
    body = Step("x", "a", Chat(call("a", 1)), 9).body()
    assert body["messages"] == [{"role": "user", "content": "a 1"}]
    assert (body["max_tokens"], body["stream"]) == (9, True)


def test_a_session_ends_before_a_prompt_that_is_too_long() -> None:
    def ids(n: int) -> Step:
        return Step(str(n), "s", Ids(pack(range(n)), made_up=True), 1)

    script = Script([[ids(5), ids(11), ids(6)], [ids(12)]])
    as_read = {str(n): pack(range(2 * n)) for n in (5, 6, 11, 12)}
    for kept in (sender.fitting(script, 10), sender.fitting(script, 21, as_read)):
        assert [[step.id for step in lane] for lane in kept.sessions] == [["5"]]


def block_file(folder: Path) -> Path:
    path = folder / "made.blocks.jsonl"
    lines: list[dict[str, Any]] = [
        {"session": s, "agent": "main", "t": 0.0, "think_time": 5.0, "in": 640 * (k + 1), "out": 9}
        | {"blocks": f"1-{10 * (k + 1)}", "tool_tokens": 128, "system_tokens": 128}
        for s in ("x", "y")
        for k in range(3)
    ]
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    return path


def test_a_block_trace_is_sent_as_the_simulator_serves_it(tmp_path: Path) -> None:
    script = read(str(block_file(tmp_path)), ScriptOptions(sessions=2, total=2))
    assert {type(step.prompt) for step in script.steps()} == {Ids}
    first, second, _ = (step.prompt for step in script.sessions[0])
    assert isinstance(first, Ids)
    assert isinstance(second, Ids)
    assert (len(first.tokens), len(second.tokens)) == (640, 1280)
    assert lcp(first.tokens, second.tokens) == 640
    assert script.sessions[0][1].pause_s == 5.0


# ---------------------------------------------------------------- out and in again


def test_written_blocks_share_as_many_whole_blocks_as_the_prompts(tmp_path: Path) -> None:
    head, own = list(range(1024)), list(range(5_000, 6_000))
    prompts = [pack(head), pack([*head, *own]), pack([*head[:700], *own])]
    entries = [
        blocks.BlockEntry("a", 1.0, 0.0, prompts[0], 5),
        blocks.BlockEntry("a", 3.5, 2.0, prompts[1], 5),
        blocks.BlockEntry("b", 2.0, 0.0, prompts[2], 7),
    ]
    lines = list(blocks.lines(entries))
    assert [(line["session_id"], line.get("delay")) for line in lines] == [
        ("a", None),
        ("b", None),
        ("a", 2000),
    ]
    ids = [line["hash_ids"] for line in lines]
    assert [len(row) for row in ids] == [2, 4, 4]
    assert ids[2][:2] == ids[0]
    assert ids[1][0] == ids[0][0]
    assert not set(ids[1][1:]) & set(ids[0] + ids[2])
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    assert knows_sessions(path)
    assert block_tokens(path) == 512
    again = read(str(path), ScriptOptions(order="file", sessions=2))
    told = {step.session: [len(_ids(s)) for s in lane] for lane in again.sessions for step in lane}
    assert sorted(told.values()) == [[1024, 2024], [1700]]
    recorded = Recorded(path, Shape(guest_share=0))
    (first, second), (third,) = recorded.asks(0), recorded.asks(1)
    assert lcp(first.row.prompt, second.row.prompt) == 1024
    assert lcp(first.row.prompt, third.row.prompt) == 512
    assert second.pause_s == 2.0


def _ids(step: Step) -> Tokens:
    assert isinstance(step.prompt, Ids)
    return step.prompt.tokens


def request(id: str, session: str, tokens: Tokens) -> Request:
    return Request(id, "p", tokens, 0, 1, 50, True, "k", session=session)


def test_a_journal_is_sent_again_with_its_pauses_and_its_lengths(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written = journal.Journal(path)
    for now, event in (
        (100.0, RequestArrived(request("r1", "s", pack(range(10))))),
        (101.0, RequestArrived(request("r2", "", pack(range(50, 60))))),
        (103.0, RequestFinished("r1", 10, 0, 7, 0)),
        (110.0, RequestArrived(request("r3", "s", pack(range(20))))),
    ):
        written.write(now, event, [])
    written.close()
    script = read(str(path), ScriptOptions(order="file"), journal.read)
    assert [[(s.id, s.pause_s, s.output) for s in lane] for lane in script.sessions] == [
        [("r1", 0.0, 7), ("r3", 7.0, 50)],
        [("r2", 0.0, 50)],
    ]
    assert script.sessions[0][1].body()["prompt"] == list(range(20))
    opened = of_journal(journal.read(path), ScriptOptions(order="open"))
    assert [(lane[0].id, lane[0].pause_s) for lane in opened.sessions] == [
        ("r1", 0.0),
        ("r2", 1.0),
        ("r3", 10.0),
    ]


def test_a_journal_without_its_reader_and_a_broken_one_are_told(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"slotwise_journal":1}\nbroken\n')
    with pytest.raises(TraceError, match="a journal"):
        read(str(path), ScriptOptions())
    with pytest.raises(ValueError, match="journal:2"):
        read(str(path), ScriptOptions(), journal.read)

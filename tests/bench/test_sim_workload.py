"""What simulated clients send: prompts as recorded, their twins, guests, and times."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from slotwise.bench.sim.load import Recorded, Shape, Workload, open_loop
from slotwise.bench.trace import blocks
from slotwise.bench.trace.trace import TraceError
from slotwise.policies.prefix import lcp
from tests.bench.sim_world import agents, call, run, workload, written


def test_a_prompt_is_as_long_as_recorded_and_repeats_what_its_blocks_repeat(
    tmp_path: Path,
) -> None:
    path = written(
        tmp_path,
        call("a", 0, "1-10", 645),
        call("a", 1, "1-20", 1280),
        call("a", 2, "1-8,21-30", 1152),
    )
    first, second, third = Recorded(path, Shape()).asks(0)
    assert [len(ask.row.prompt) for ask in (first, second, third)] == [645, 1280, 1152]
    assert lcp(first.row.prompt, second.row.prompt) == 645  # its rest begins the next block
    assert lcp(second.row.prompt, third.row.prompt) == 8 * 64


def test_an_answer_comes_back_in_a_prompt_that_goes_on(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call("a", 0, "1-10", 640),
        call("a", 1, "1-20", 1280),
        call("a", 2, "1-8,21-30", 1152),
    )
    first, second, third = Recorded(path, Shape()).asks(0)
    assert len(first.row.full) == 640 + 49  # the last token is never fed back
    assert lcp(first.row.full, second.row.prompt) == 640 + 49
    assert lcp(second.row.full, third.row.prompt) == 8 * 64
    assert len(third.row.full) == 1152 + 49


def test_sessions_and_their_twins_share_three_quarters_of_their_head_alone(tmp_path: Path) -> None:
    recorded = Recorded(agents(tmp_path, 2), Shape())
    prompts = [recorded.asks(number)[-1].row.prompt for number in (0, 1, 2)]
    shared = int(0.75 * (3000 + 1096)) // 64 * 64
    assert lcp(prompts[0], prompts[1]) == shared
    assert lcp(prompts[0], prompts[2]) == shared


def test_a_first_user_turn_ends_behind_the_head_and_within_what_is_repeated(
    tmp_path: Path,
) -> None:
    asks = Recorded(agents(tmp_path), Shape()).asks(0)
    ends = {ask.row.first_user_end for ask in asks}
    assert ends == {100 * 64 + 7}
    assert [ask.row.turns for ask in asks] == list(range(1, 9))


def test_a_compacted_conversation_begins_anew(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        call("a", 0, "1-10", 640, tool_tokens=100, system_tokens=28),
        call("a", 1, "1-20", 1280),
        call("a", 2, "1-2,30-40", 832),
    )
    asks = Recorded(path, Shape()).asks(0)
    assert [ask.row.turns for ask in asks] == [1, 2, 1]
    assert asks[2].row.first_user_end == 832


def test_guests_come_with_their_share_of_turns_and_in_their_sizes(tmp_path: Path) -> None:
    work = workload(tmp_path, total=200)
    guests = [ask for ask in work.asks() if ask.guest]
    assert len(guests) / (200 * 8) == pytest.approx(0.15, abs=0.03)
    sizes = [len(guest.row.prompt) for guest in guests]
    assert min(sizes) >= 512 + 256
    assert max(sizes) <= 512 + 1536
    assert {lcp(guests[0].row.prompt, g.row.prompt) for g in guests[1:]} == {512}


def test_a_trace_of_arrivals_is_sent_at_its_times(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,400,10\n"
        "2023-11-16 18:17:05.9799600,300,5\n"
    )
    one = run(open_loop(path, 10, 3.0, Shape()), "llama.cpp", park=0)
    assert [s.arrived for s in one.served] == pytest.approx([0.0, 6.0])
    assert [s.ttft_s for s in one.served] == pytest.approx([0.2, 0.15])


def test_blocks_of_a_mooncake_trace_are_shared_between_requests(tmp_path: Path) -> None:
    path = tmp_path / "mooncake_made.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 1000, "output_length": 2, "hash_ids": [0, 1]},
        {"timestamp": 9000, "input_length": 1200, "output_length": 2, "hash_ids": [0, 2, 3]},
    ]
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in lines))
    one = run(open_loop(path, 10, 1.0, Shape()), "llama.cpp")
    assert [s.cached for s in one.served] == [0, 512]
    assert [len(s.ask.row.prompt) for s in one.served] == [1000, 1200]


@pytest.mark.parametrize(
    ("line", "says"), [("{}", "session"), ("[", "JSON"), ('{"session": "a", "agent": 1}', "t")]
)
def test_a_faulty_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "bad.blocks.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=r"bad\.blocks\.jsonl:1: .*") as error:
        list(blocks.read_blocks(path))
    assert says in str(error.value) or "Error" in str(error.value)


def ask_ids(work: Workload) -> list[str]:
    return [ask.id for session in work.sessions for ask in session]


def test_more_sessions_than_recorded_are_twins(tmp_path: Path) -> None:
    ids = ask_ids(workload(tmp_path, sessions=10, total=15))
    assert len(ids) == len(set(ids)) == 15 * 8


def test_stretched_prompts_repeat_as_much_of_each_other(tmp_path: Path) -> None:
    path = written(tmp_path, call("a", 0, "1-10", 640), call("a", 1, "1-8,21-30", 1152))
    first, second = Recorded(path, Shape(stretch=1.5)).asks(0)
    assert (len(first.row.prompt), len(second.row.prompt)) == (960, 1728)
    assert lcp(first.row.prompt, second.row.prompt) == 8 * 96


def test_a_row_is_made_anew_and_the_same_each_time(tmp_path: Path) -> None:
    """What is kept of a session is a few long rows, not every prompt."""
    recorded = Recorded(agents(tmp_path, count=2, turns=8), Shape())
    asks = recorded.asks(0)
    for ask in asks:
        first, again = ask.row, ask.row
        assert first == again
        assert first is not again
        assert ask.prompt_tokens == len(first.prompt)
    kept = {id(ask.source.trunk) for ask in asks}  # type: ignore[attr-defined]
    assert len(kept) == 1

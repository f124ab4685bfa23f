"""The simulator: what clients send, who chooses, and that a run repeats."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench import arms, block_trace, cost_model, sim_report, simulate
from bench.sim_workload import Recorded, Shape, Workload, closed_loop, open_loop
from bench.simulation import Run, Served
from bench.simulation import simulate as simulated
from bench.trace import TraceError
from policies.params import Params
from policies.prefix import lcp

EVIDENCE = cost_model.load("evidence")
PARAMS = replace(Params(), cost=EVIDENCE.as_policy())
PLAIN_ARMS = (
    "llama.cpp",
    "llama.cpp-no-idle-slots",
    "llama.cpp-np1",
    "round-robin",
    "session-pin",
    "longest-prefix",
)


def call(session: str, turn: int, blocks: str, tokens: int, **changes: Any) -> dict[str, Any]:
    return {
        "session": session,
        "agent": "main",
        "turn": turn,
        "t": 10.0 * turn,
        "in": tokens,
        "out": 50,
        "think_time": 5.0,
        "blocks": blocks,
    } | changes


def written(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "made.blocks.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(record) for record in records))
    return path


def agents(folder: Path, count: int = 6, turns: int = 8) -> Path:
    """Sessions that grow by ten blocks a turn from a head of 64 blocks."""
    return written(
        folder,
        *(
            call(
                f"cc-{s}",
                k,
                f"1-{100 + 10 * k}",
                64 * (100 + 10 * k) + 7,
                **({"tool_tokens": 3000, "system_tokens": 1096} if k == 0 else {}),
            )
            for s in range(count)
            for k in range(turns)
        ),
    )


def workload(folder: Path, seed: int = 1, **shape: Any) -> Workload:
    made = Shape(**({"sessions": 4, "spread_s": 20} | shape))
    return closed_loop(Recorded(agents(folder), made), made, seed)


def run(work: Workload, name: str, slots: int = 2, park: int = 20_000) -> Run:
    [arm] = arms.arms([name], slots, park, PARAMS)
    return simulated(work, arm, EVIDENCE)


def facts(one: Run) -> list[tuple[str, float, float, float, int]]:
    return [(s.ask.id, s.arrived, s.first, s.finished, s.cached) for s in one.served]


# ---------------------------------------------------------------- workloads


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
        list(block_trace.read_blocks(path))
    assert says in str(error.value) or "Error" in str(error.value)


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("name", [*PLAIN_ARMS, "slotwise"])
def test_every_arm_serves_everything_and_the_same_seed_gives_the_same(
    tmp_path: Path, name: str
) -> None:
    work = workload(tmp_path)
    first, again = run(work, name), run(workload(tmp_path), name)
    assert facts(first) == facts(again)
    assert {s.ask.id for s in first.served} == {ask.id for ask in work.asks()}
    assert len(first.sessions_s) == len(work.sessions)
    for s in first.served:
        assert s.arrived <= s.begun <= s.first <= s.finished
        assert 0 <= s.cached < len(s.ask.row.prompt)


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    runs = [facts(run(workload(tmp_path, seed), "slotwise")) for seed in (1, 2)]
    assert runs[0] != runs[1]


def test_a_session_sends_its_next_call_after_the_answer_and_the_pause(tmp_path: Path) -> None:
    one = run(workload(tmp_path), "llama.cpp")
    by_id: dict[str, Served] = {s.ask.id: s for s in one.served}
    for s in one.served:
        session, _, k = s.ask.id.partition(".")
        if k not in ("", "0"):
            before = by_id[f"{session}.{int(k) - 1}"]
            assert s.arrived == pytest.approx(before.finished + 5.0)


def test_no_more_sessions_live_at_a_time_than_were_asked_for(tmp_path: Path) -> None:
    one = run(workload(tmp_path, sessions=2, total=6), "llama.cpp")
    turns = [s for s in one.served if not s.ask.guest]
    spans = [
        (
            min(s.arrived for s in turns if s.ask.client == name),
            max(s.finished for s in turns if s.ask.client == name),
        )
        for name in {s.ask.client for s in turns}
    ]
    at_once = [sum(begun <= at <= ended for begun, ended in spans) for at, _ in spans]
    assert len(spans) == 6
    assert max(at_once) == 2


def test_with_a_slot_for_every_session_slotwise_computes_as_little_as_the_bound(
    tmp_path: Path,
) -> None:
    work = workload(tmp_path, sessions=2, total=2, guest_share=0.0)
    done = sim_report.figures(run(work, "slotwise", slots=2, park=0))
    floor = sim_report.floor(work, EVIDENCE, 2, 0)
    assert done["reuse"] <= floor["reuse"]
    # A second slot reads the head that the first one holds already: the bound shares it.
    assert done["prefill s"] - floor["prefill s"] == pytest.approx(3072 / 2000, abs=0.01)


@pytest.mark.parametrize("name", [*PLAIN_ARMS, "slotwise"])
def test_no_arm_beats_the_floor(tmp_path: Path, name: str) -> None:
    work = workload(tmp_path)
    done = sim_report.figures(run(work, name))
    floor = sim_report.floor(work, EVIDENCE, 2, 20_000)
    for figure in ("TTFT s", "guest TTFT s", "session min", "prefill s"):
        assert done[figure] >= floor[figure] - 1e-9
    assert done["reuse"] <= floor["reuse"] + 1e-9


def test_slotwise_is_the_scheduler_of_the_server() -> None:
    [arm] = arms.arms(["slotwise"], 2, 0, PARAMS)
    assert type(arm.make()).__module__ == "proxy.scheduler"


def test_each_switch_of_the_rules_is_an_arm() -> None:
    names = [arm.name for arm in arms.arms([arms.RULES_OFF], 2, 0, PARAMS)]
    switches = sum(
        knob.metadata["unit"] == "switch"
        for section in fields(PARAMS)
        for knob in fields(getattr(PARAMS, section.name))
    )
    assert len(names) == len(set(names)) == switches
    assert "slotwise-home.enabled" in names


def test_a_switched_rule_is_the_only_difference() -> None:
    changed = dict(arms.switched(PARAMS))["slotwise-guest.enabled"]
    assert not changed.guest.enabled
    assert replace(changed, guest=PARAMS.guest) == PARAMS


# ---------------------------------------------------------------- the command


def test_the_command_prints_a_row_for_each_setup_and_arm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--grid", "2/2/20k,4/2/20k", "--arms", "llama.cpp,slotwise,optimum", "--seeds", "2"]
    assert simulate.main([str(agents(tmp_path)), *options]) == 0
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
    assert simulate.main([*run, "--sessions", "2", "--plot", str(path)]) == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--arms", "llama.cpp,best"], "'best'"),
        (["--cost", "no-such"], "evidence, gb10"),
        (["--policy", "{guest: {guest_max_tokens: -1}}"], "policy.guest.guest_max_tokens"),
        (["--policy", "[1]"], "mapping"),
        (["--profile", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_bad_options_end_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert simulate.main([str(agents(tmp_path, 2, 2)), *options]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.startswith("simulate: ")
    assert printed.err.count("\n") == 1


def test_a_trace_of_texts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("{}")
    assert simulate.main([str(path)]) == 2
    assert "holds texts" in capsys.readouterr().err


def test_a_profile_gives_the_rules_and_the_cost_model_the_seconds(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\npolicy: {queue: {max_running: 3}, guest: {protect_s: 7}}")
    params = simulate._params(path, "{guest: {break_after_s: 1}}", EVIDENCE)
    assert (params.queue.max_running, params.guest.protect_s) == (3, 7)
    assert (params.guest.break_after_s, params.cost) == (1, EVIDENCE.as_policy())


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

"""The simulator's runs: who chooses, that a run repeats, and that no arm beats the floor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slotwise.bench.sim import arms, simulate
from slotwise.bench.sim.simulation import Served
from slotwise.policies.params import KNOBS
from tests.bench.sim_world import EVIDENCE, PARAMS, facts, run, workload

PLAIN_ARMS = (
    "llama.cpp",
    "llama.cpp-no-idle-slots",
    "llama.cpp-np1",
    "round-robin",
    "session-pin",
    "longest-prefix",
)


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
    done = simulate.figures(run(work, "slotwise", slots=2, park=0))
    floor = simulate.floor(work, EVIDENCE, 2, 0)
    assert done["reuse"] <= floor["reuse"]
    # A second slot reads the head that the first one holds already: the bound shares it.
    assert done["prefill s"] - floor["prefill s"] == pytest.approx(3072 / 2000, abs=0.01)


@pytest.mark.parametrize("name", [*PLAIN_ARMS, "slotwise"])
def test_no_arm_beats_the_floor(tmp_path: Path, name: str) -> None:
    work = workload(tmp_path)
    done = simulate.figures(run(work, name))
    floor = simulate.floor(work, EVIDENCE, 2, 20_000)
    for figure in ("TTFT s", "guest TTFT s", "session min", "prefill s"):
        assert done[figure] >= floor[figure] - 1e-9
    assert done["reuse"] <= floor["reuse"] + 1e-9


def test_slotwise_is_the_scheduler_of_the_server() -> None:
    [arm] = arms.arms(["slotwise"], 2, 0, PARAMS)
    assert type(arm.make()).__module__ == "slotwise.proxy.core.scheduler"


def test_each_switch_of_the_rules_is_an_arm() -> None:
    names = [arm.name for arm in arms.arms([arms.RULES_OFF], 2, 0, PARAMS)]
    switches = sum(knob.metadata["unit"] == "switch" for knob in KNOBS.values())
    assert len(names) == len(set(names)) == switches
    assert "slotwise-home" in names


def test_a_switched_rule_is_the_only_difference() -> None:
    changed = dict(arms.switched(PARAMS))["slotwise-guest"]
    assert not changed.guest
    assert replace(changed, guest=PARAMS.guest) == PARAMS

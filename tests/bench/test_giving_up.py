"""Clients that leave: what the engine's model does with their requests, and the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotwise.bench.sim import arms
from slotwise.bench.sim.engine import EngineModel, EngineSetup, Job
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import Run, simulate
from tests.bench.sim_world import EVIDENCE, PARAMS
from tests.bench.test_engine_model import PLAIN, ids, job, serve


def left(one: Job, at: float, told: bool = False, beside: Job | None = None) -> EngineModel:
    """An engine whose client of ``one`` has left by then; ran until ``one`` holds no slot."""
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    for sent in (one, beside):
        if sent is not None:
            engine.submit(sent, 0.0)
    while engine.next_at < at:
        engine.step()
    engine.abandon(one.id, at, told)
    return engine


def freed_at(engine: EngineModel, slot: int = 1) -> float:
    """Of two slots never used the engine takes the higher one first."""
    while engine.slots()[slot][0]:
        now = engine.next_at
        engine.step()
    return now


def test_a_stream_whose_client_left_ends_at_its_next_token() -> None:
    # 100 tokens are read in 0.1 s, then a token comes every 20 ms.
    engine = left(job("a", ids(100), 1000), at=0.31)
    assert freed_at(engine) == pytest.approx(0.32)


def test_a_whole_answer_goes_on_until_a_second_has_passed_without_a_result() -> None:
    engine = left(replace(job("a", ids(100), 1000), streams=False), at=0.31)
    assert freed_at(engine) == pytest.approx(1.31, abs=0.021)


def test_a_whole_answer_beside_a_stream_goes_on_to_its_end() -> None:
    whole = replace(job("a", ids(100), 50), streams=False)
    engine = left(whole, at=0.31, beside=job("b", ids(100, 5000), 200))
    beside_it = replace(job("a", ids(100), 50), streams=False)
    alone = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    alone.submit(beside_it, 0.0)
    alone.submit(job("b", ids(100, 5000), 200), 0.0)
    assert freed_at(engine) == pytest.approx(serve(alone)["a"][1])


@pytest.mark.parametrize(("told", "tokens"), [(True, 200), (False, 1000)])
def test_a_prompt_that_reports_its_progress_is_given_up_at_the_next_batch(
    told: bool, tokens: int
) -> None:
    engine = left(job("a", ids(1000)), at=0.15, told=told)
    freed_at(engine)
    assert engine.slots()[1] == (False, tokens)


# ---------------------------------------------------------------- clients


def ask(name: str, n: int, output: int, first: int = 0, **more: object) -> Ask:
    row = job(name, ids(n, first), output).row
    return Ask(name, row, output, 0.0, **more)  # type: ignore[arg-type]


def served(lane: list[Ask], name: str, slots: int = 2) -> Run:
    [arm] = arms.arms([name], slots, 0, PARAMS)
    return simulate(Workload([lane]), arm, EVIDENCE)


@pytest.mark.parametrize("name", ["llama.cpp", arms.SLOTWISE])
def test_who_gives_up_goes_on_with_the_next_request(name: str) -> None:
    lane = [ask("a", 3000, 5000, gives_up_s=4.0), replace(ask("b", 3000, 20), pause_s=1.0)]
    first, second = served(lane, name).served
    assert first.left
    assert first.finished == 4.0
    assert second.arrived == 5.0
    assert not second.left
    assert second.finished > second.first


@pytest.mark.parametrize("name", ["llama.cpp", arms.SLOTWISE])
def test_who_gives_up_while_it_waits_is_never_served(name: str) -> None:
    long = ask("a", 9000, 900)
    long.beside = [ask("b", 9000, 5, first=1 << 18, gives_up_s=1.0)]
    by_id = {one.ask.id: one for one in served([long], name, slots=1).served}
    assert by_id["b"].left
    assert by_id["b"].begun < 0
    assert by_id["a"].finished > 30

"""What work costs beside other work, on long contexts, and outside the engine's loop."""

from __future__ import annotations

import pytest

from slotwise.bench.sim import arms, cost_model
from slotwise.bench.sim.cost_model import CostModel, Outside
from slotwise.bench.sim.engine import EngineModel, EngineSetup
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import Run, simulate
from slotwise.bench.trace.rows import Row
from slotwise.policies.params import Params
from tests.bench.test_engine_model import PLAIN, ids, job, serve

CROWDED = PLAIN.model_copy(update={"crowded": 1.5})
DEEP = PLAIN.model_copy(update={"decode_depth_s": 1e-4})
OUTSIDE = PLAIN.model_copy(update={"outside": Outside(c_s=0.2, a_s=0.001), "crowded": 1.5})


def test_two_at_work_are_slower_than_one_after_the_other() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), CROWDED)
    engine.submit(job("a", ids(100), pin=0), 0.0)
    engine.submit(job("b", ids(100, 1000), pin=1), 0.0)
    assert engine.next_at == pytest.approx(0.1)  # it begins before the second is there
    times = serve(engine)
    assert [first for first, _ in times.values()] == pytest.approx([0.1, 0.2])

    engine = EngineModel(EngineSetup(2, batch_tokens=100), CROWDED)
    engine.submit(job("a", ids(200), pin=0), 0.0)
    engine.submit(job("b", ids(100, 1000), pin=1), 0.0)
    times = serve(engine)
    # One batch alone, 0.1 s; a's second beside b that waits, 0.15 s; b's alone again.
    assert times["a"][0] == pytest.approx(0.1 + 0.15)
    assert times["b"][0] == pytest.approx(0.1 + 0.15 + 0.1)


def test_a_step_takes_longer_by_what_its_sequences_look_back_on() -> None:
    engine = EngineModel(EngineSetup(1, batch_tokens=100), DEEP)
    engine.submit(job("a", ids(100), 11), 0.0)
    first, last = serve(engine)["a"]
    assert first == pytest.approx(0.1)
    # Ten steps of 0.02 s and 1e-4 s for each of the 101 tokens that the first one looks back on.
    assert last == pytest.approx(0.1 + 10 * (0.02 + 101e-4))


def test_a_batch_with_a_prompt_counts_the_depth_of_the_streams_in_it() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), DEEP)
    engine.submit(job("stream", ids(90), 101, pin=0), 0.0)
    engine.submit(job("prompt", ids(50, 1000), pin=1), 0.05)
    times = serve(engine)
    # 50 tokens of the prompt and one of the stream, 0.051 s, and what that one looks back on.
    assert times["prompt"][0] == pytest.approx(0.09 + 0.051 + 91e-4)


def test_a_prompts_time_counts_from_its_first_batch_with_its_start_in_it() -> None:
    cost = PLAIN.model_copy(update={"prefill": cost_model.Prefill(c_s=0.03, a_s=0.001, b_s=0)})
    engine = EngineModel(EngineSetup(2, batch_tokens=100), cost)
    low, high = job("low", ids(150), pin=0), job("high", ids(50, 1000), pin=1)
    engine.submit(low, 0.0)
    engine.submit(high, 0.01)
    serve(engine)
    assert (low.begun, low.started) == pytest.approx((0.0, 0.0))
    # The slot is its own at the end of the batch at work; its tokens come into the next one.
    assert high.begun == pytest.approx(0.13)
    assert high.started == pytest.approx(0.13)


def two_calls(pause_s: float) -> Workload:
    """Two clients, each with one prompt of 100 tokens and one token of answer."""
    sessions = []
    for number in range(2):
        prompt = ids(100, 1000 * number)
        row = Row(f"{number}", prompt, prompt, 10, 1, 1)
        sessions.append([Ask(f"{number}", row, 1, pause_s * number, says_limit=True)])
    return Workload(sessions)


def served(cost: CostModel, pause_s: float) -> Run:
    [arm] = arms.arms(["llama.cpp"], 2, 0, Params())
    return simulate(two_calls(pause_s), arm, cost)


def test_what_a_request_takes_outside_delays_it_and_stops_nobody() -> None:
    one, other = served(OUTSIDE, pause_s=10.0).served
    for call in (one, other):  # 0.2 s and 100 tokens of 1 ms outside, then 100 of 1 ms
        assert call.begun - call.arrived == pytest.approx(0.3)
        assert call.ttft_s == pytest.approx(0.4)


def test_beside_another_on_its_way_it_takes_longer_outside() -> None:
    one, other = served(OUTSIDE, pause_s=0.1).served
    assert one.begun == pytest.approx(0.3)
    assert other.begun == pytest.approx(0.1 + 1.5 * 0.3)


def test_a_cost_model_without_them_has_none_of_them() -> None:
    assert PLAIN.outside_s(10_000, beside_others=True) == 0
    assert served(PLAIN, pause_s=1.0).served[0].ttft_s == pytest.approx(0.1)

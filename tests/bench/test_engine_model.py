"""The model of an engine does what a real one was seen to do."""

from __future__ import annotations

import pytest

from slotwise.bench.sim import cost_model
from slotwise.bench.sim.cost_model import CostError, CostModel
from slotwise.bench.sim.engine import EngineMisuseError, EngineModel, EngineSetup, Job, RamCache
from slotwise.bench.trace.rows import Row
from slotwise.policies.prefix import EMPTY, Tokens, pack

# A published prefill of 23,581 tokens on GB10: tokens done, seconds.
GB10_CURVE = [
    (4236, 6.68),
    (8332, 13.52),
    (12428, 23.10),
    (16524, 33.49),
    (20620, 45.73),
    (23581, 55.71),
]
PLAIN = cost_model.parse(
    """
about: one ms a token, 20 ms a step
prefill: {c_s: 0, a_s: 0.001, b_s: 0}
decode_step_s: {1: 0.02}
copy_tokens_per_s: 1000
""",
    "plain",
)


def ids(count: int, first: int = 0) -> Tokens:
    return pack(range(first, first + count))


def job(name: str, prompt: Tokens, output: int = 1, pin: int | None = None) -> Job:
    held = prompt.grown(len(prompt), ids(output - 1, 1 << 20).packed)
    return Job(name, Row(name, prompt, held, 0, 1, output), output, pin)


def serve(engine: EngineModel) -> dict[str, tuple[float, float]]:
    """Run it dry; when each job had its first and its last token."""
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    while engine.next_at < float("inf"):
        now = engine.next_at
        for output in engine.step():
            if output.first:
                first[output.job.id] = now
            if output.finished:
                last[output.job.id] = now
    return {name: (first[name], last[name]) for name in first}


def alone(cost: CostModel, n: int, output: int = 1, batch_tokens: int = 100) -> tuple[float, float]:
    engine = EngineModel(EngineSetup(1, batch_tokens=batch_tokens), cost)
    engine.submit(job("a", ids(n), output), 0.0)
    return serve(engine)["a"]


# ---------------------------------------------------------------- costs


@pytest.mark.parametrize(("tokens", "seconds"), GB10_CURVE)
def test_the_gb10_model_reproduces_the_published_prefill_within_3_percent(
    tokens: int, seconds: float
) -> None:
    first, _ = alone(cost_model.load("gb10"), tokens, batch_tokens=2048)
    assert first == pytest.approx(seconds, rel=0.03)


@pytest.mark.parametrize(("running", "in_total"), [(1, 23.79), (4, 22.5)])
def test_the_gb10_model_generates_as_fast_as_published(running: int, in_total: float) -> None:
    engine = EngineModel(EngineSetup(running), cost_model.load("gb10"))
    for number in range(running):
        engine.submit(job(f"{number}", ids(10, 100 * number), 1001), 0.0)
    times = serve(engine).values()
    seconds = max(last for _, last in times) - max(first for first, _ in times)
    assert running * 1000 / seconds == pytest.approx(in_total, rel=0.01)


def test_the_evidence_model_has_the_constants_of_the_evaluation() -> None:
    cost = cost_model.load("evidence")
    assert cost.prefill_s(10_000, 30_000) == pytest.approx(10.0)
    assert [1 / cost.step_s(n) for n in (1, 4, 8)] == pytest.approx([35.0] * 3, rel=1e-4)
    assert cost.copy_tokens_per_s == 200_000


def test_a_cost_model_with_faults_is_refused_with_all_of_them() -> None:
    text = "about: x\nprefill: {c_s: -1, a_s: 0.1, b_s: 0}\ncopy_tokens_per_s: 0"
    with pytest.raises(CostError) as error:
        cost_model.parse(text, "mine.yaml")
    for part in ("mine.yaml", "prefill.c_s", "copy_tokens_per_s", "decode_step_s"):
        assert part in str(error.value)


def test_an_unknown_cost_model_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(CostError, match="evidence, gb10"):
        cost_model.load("no/such.yaml")


# ---------------------------------------------------------------- batches


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    assert alone(PLAIN, 250, 11) == pytest.approx((0.25, 0.25 + 10 * 0.02))


def test_a_prompt_in_a_lower_slot_overtakes_one_in_a_higher_slot() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    engine.submit(job("long", ids(1000), pin=1), 0.0)
    engine.submit(job("short", ids(50, 5000), pin=0), 0.05)
    times = serve(engine)
    # It waits for the batch at work (0.1 s), then comes first in the next one.
    assert times["short"][0] == pytest.approx(0.2)
    assert times["long"][0] == pytest.approx(1.05)


def test_a_prompt_in_a_higher_slot_waits_for_the_one_below() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    engine.submit(job("long", ids(1000), pin=0), 0.0)
    engine.submit(job("short", ids(50, 5000), pin=1), 0.05)
    times = serve(engine)
    assert times["long"][0] == pytest.approx(1.0)
    assert times["short"][0] == pytest.approx(1.05)


def test_a_stream_gets_one_token_a_batch_beside_a_prefill() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    engine.submit(job("stream", ids(10), 101, pin=0), 0.0)
    engine.submit(job("prompt", ids(990, 5000), pin=1), 0.005)
    times = serve(engine)
    # 10 batches of 99 prompt tokens and one of the stream, 0.1 s each; then 90 steps of 0.02 s.
    assert times["prompt"][0] == pytest.approx(0.01 + 10 * 0.1)
    assert times["stream"][1] == pytest.approx(0.01 + 10 * 0.1 + 90 * 0.02)


def test_what_arrives_while_others_generate_waits_for_one_step() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    engine.submit(job("stream", ids(10), 1001, pin=0), 0.0)
    assert engine.next_at == pytest.approx(0.01)
    engine.step()
    engine.submit(job("new", ids(50, 5000), pin=1), 1.0)
    assert engine.next_at == pytest.approx(1.01)  # steps end at 0.01 + n * 0.02
    assert serve(engine)["new"][0] == pytest.approx(1.01 + 0.051)


def test_a_request_waits_in_the_engine_while_every_slot_is_at_work() -> None:
    engine = EngineModel(EngineSetup(1, batch_tokens=100), PLAIN)
    for number in range(3):
        engine.submit(job(f"{number}", ids(100, 1000 * number)), 0.0)
    assert [first for first, _ in serve(engine).values()] == pytest.approx([0.1, 0.2, 0.3])


# ---------------------------------------------------------------- slots


def cached(engine: EngineModel, prompt: Tokens, pin: int | None = None) -> tuple[int, int]:
    """Serve one more prompt; the slot it got and the tokens it reused."""
    one = job("x", prompt, 1, pin)
    now = max((slot.released for slot in engine._slots), default=0.0)
    engine.submit(one, max(now, 0.0) + 1)
    serve(engine)
    return one.slot, one.cached


def test_the_engine_takes_the_slot_with_the_longest_prefix_else_the_oldest() -> None:
    engine = EngineModel(EngineSetup(3, batch_tokens=100), PLAIN)
    assert cached(engine, ids(100)) == (2, 0)  # never used: the highest id
    assert cached(engine, ids(100, 1000)) == (1, 0)
    assert cached(engine, ids(120)) == (2, 100)
    assert cached(engine, ids(100, 2000)) == (0, 0)
    assert cached(engine, pack([*range(1000, 1009), *range(9000, 9091)])) == (1, 0 + 9)


def test_a_tenth_of_the_prompt_in_common_is_too_little_to_be_chosen_for() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    cached(engine, ids(100))
    assert cached(engine, pack([*range(10), *range(5000, 5090)]))[0] == 0
    assert cached(engine, pack([*range(11), *range(6000, 6089)])) == (1, 11)


def test_an_identical_prompt_is_computed_to_one_token() -> None:
    engine = EngineModel(EngineSetup(1, batch_tokens=100), PLAIN)
    cached(engine, ids(100))
    assert cached(engine, ids(100)) == (0, 99)


def test_a_pin_to_a_slot_at_work_is_an_error_of_the_caller() -> None:
    engine = EngineModel(EngineSetup(2, batch_tokens=100), PLAIN)
    engine.submit(job("a", ids(150), pin=0), 0.0)
    engine.submit(job("b", ids(100, 1000), pin=0), 0.0)
    with pytest.raises(EngineMisuseError):
        engine.step()


def test_a_displaced_conversation_comes_back_from_the_ram_cache() -> None:
    engine = EngineModel(EngineSetup(1, park_tokens=1000, batch_tokens=100), PLAIN)
    cached(engine, ids(100), 0)
    cached(engine, ids(100, 1000), 0)
    assert cached(engine, ids(150), 0) == (0, 100)
    assert engine.copy_s == pytest.approx((100 + 100 + 100) / 1000)  # two saved, one loaded


def test_an_empty_slot_is_not_filled_from_the_ram_cache_for_a_pin() -> None:
    setup = EngineSetup(2, park_tokens=1000, batch_tokens=100)
    engine = EngineModel(setup, PLAIN)
    cached(engine, ids(100), 0)
    cached(engine, ids(100, 1000), 0)
    assert cached(engine, ids(150), 1) == (1, 0)


@pytest.mark.parametrize(("snapshots", "parked"), [(True, 100), (False, 0)])
def test_idle_slots_are_published_at_each_launch_unless_told_otherwise(
    snapshots: bool, parked: int
) -> None:
    engine = EngineModel(
        EngineSetup(2, park_tokens=1000, idle_snapshots=snapshots, batch_tokens=100), PLAIN
    )
    cached(engine, ids(100), 0)
    cached(engine, ids(100, 1000), 1)
    assert engine.ram.tokens == parked
    assert engine.copy_s == pytest.approx(parked / 1000)


def test_a_slot_that_was_emptied_saves_nothing_and_is_filled_from_the_cache() -> None:
    cached = {}
    for empties in (True, False):
        engine = EngineModel(EngineSetup(1, 1500, idle_snapshots=False), PLAIN)
        for name, prompt in (("a", ids(1000)), ("b", ids(1000, 10_000))):
            engine.submit(job(name, prompt, pin=0), 0.0 if name == "a" else 5.0)
            serve(engine)
        back = job("a2", ids(1100), pin=0)
        back.empties = empties
        engine.submit(back, 10.0)
        serve(engine)
        cached[empties] = back.cached
    assert cached == {True: 1000, False: 0}


# ---------------------------------------------------------------- RAM cache


def test_what_an_entry_contains_is_not_stored_again() -> None:
    ram = RamCache(1000)
    assert ram.save(ids(100)) == 100
    assert ram.save(ids(80)) == 0
    assert ram.save(ids(100)) == 0
    assert ram.save(EMPTY) == 0


def test_an_entry_that_the_new_one_contains_is_dropped() -> None:
    ram = RamCache(1000)
    ram.save(ids(80))
    ram.save(ids(100))
    assert [len(entry) for entry in ram.entries] == [100]
    assert ram.tokens == 100


def test_the_oldest_entries_go_first_and_what_is_too_large_is_not_stored() -> None:
    ram = RamCache(250)
    for n in range(3):
        ram.save(ids(100, 1000 * n))
    assert [entry.ids()[0] for entry in ram.entries] == [1000, 2000]
    assert ram.save(ids(251, 5000)) == 0


def test_loading_takes_the_entry_out_and_only_a_better_one() -> None:
    ram = RamCache(1000)
    ram.save(ids(100))
    prompt = ids(200)
    assert ram.load(ids(100), prompt) is None  # the slot holds as much
    assert ram.load(pack([*range(60), 7777]), prompt) is not None
    assert ram.tokens == 0
    assert ram.load(EMPTY, prompt) is None


def test_an_entry_of_which_little_would_be_kept_is_spared() -> None:
    ram = RamCache(1000)
    ram.save(ids(400))
    assert ram.load(EMPTY, pack([*range(99), 9999])) is None
    assert ram.load(EMPTY, pack([*range(100), 9999])) is not None

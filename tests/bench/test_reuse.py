"""On the real engine slotwise reuses what its slots allow: the main promise, measured."""

from __future__ import annotations

import importlib.util
from statistics import fmean

import pytest
from rich.console import Console

from slotwise.bench.run import engines
from slotwise.bench.run.compare import CTX_TOKENS, Comparison, measure
from slotwise.bench.sim import bounds
from slotwise.bench.trace import trace, workload
from slotwise.bench.trace.rows import total
from slotwise.policies.params import Params
from tests.bench.one_by_one import rendered, reused

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("xllamacpp"), reason="no embedded engine (xllamacpp)"
)
SLOTS = 4
# Which session goes on next is a draw that no rule foresees, while the optimum knows it. So single
# orders lie 0.1 to 1.8 points below it, and what is held is the mean of a fixed few;
# five are in docs/benchmarks.md.
SEEDS = (1, 2)
needs_traces = pytest.mark.skipif(
    not trace.traces_dir().is_dir(),
    reason=f"no traces in {trace.traces_dir()} ({trace.TRACES_VARIABLE})",
)


@pytest.mark.slow
@needs_traces
@pytest.mark.timeout(600)
def test_four_live_sessions_on_four_slots_reuse_within_a_point_of_the_optimum() -> None:
    below = []
    for seed in SEEDS:
        plan = Comparison(
            moments=workload.moments("tau_airline", live=SLOTS, seed=seed),
            live=SLOTS,
            slots=SLOTS,
            concurrent=False,
            max_tokens=4,
        )
        server = engines.slotwise(engines.tiny_model(), SLOTS, SLOTS * CTX_TOKENS)
        slotwise, optimum, infinite = measure(plan, {"slotwise": server}, Console(quiet=True))[
            "rows"
        ]
        assert slotwise["prompt tokens"] == optimum["prompt tokens"]
        assert slotwise["reuse"] <= optimum["reuse"] <= infinite["reuse"]
        below.append(optimum["reuse"] - slotwise["reuse"])
    assert fmean(below) <= 0.01, below


@pytest.mark.slow
@needs_traces
@pytest.mark.parametrize("think_s", [0.1, 10.0])
def test_over_many_orders_the_average_is_within_a_point_of_the_optimum(think_s: float) -> None:
    calls = trace.read("tau_airline")
    tokenizer = engines.tiny_model().path.with_name("tokenizer.json")
    below = []
    for seed in range(1, 9):
        rows = rendered(workload.interleave(calls, SLOTS, seed), tokenizer)
        found = reused(rows, SLOTS, Params(), think_s)
        below.append((bounds.slots(rows, SLOTS) - found) / total(rows))
    assert min(below) >= 0
    assert fmean(below) <= 0.01, below

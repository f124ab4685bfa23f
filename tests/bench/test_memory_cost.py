"""What requests cost in memory beside what they reserved: the small run, and how it is judged."""

from __future__ import annotations

import pytest

from slotwise.bench.cost.memory_cost import MIB, MemoryCost, MemoryOutcome, measure
from slotwise.bench.run import engines


@pytest.mark.slow
def test_on_the_real_engine_no_request_costs_more_than_it_reserved() -> None:
    outcome = measure(engines.tiny_model(), requests=6, tokens=3000, slots=2, ctx=8192)
    assert outcome.faults() == []
    assert all(c.reserved > 0 for c in outcome.costs)
    # Without keys and values: those of a prompt are more than all that a later one reserves.
    assert outcome.at_start > outcome.kv
    assert max(c.reserved for c in outcome.costs[1:]) < 3 * MIB


def test_a_broken_promise_is_said_with_its_figures() -> None:
    outcome = MemoryOutcome(
        at_start=50 * MIB,
        kv=64 * MIB,
        tokens=1000,
        costs=(MemoryCost(10 * MIB, 40 * MIB), MemoryCost(MIB, MIB)),
    )
    assert outcome.faults() == [
        "1 requests made more grow than they reserved: one took 40.0 MiB of 10.0 MiB reserved",
        "all together cost more than they reserved: 41.0 MiB grown, 11.0 MiB reserved",
        "the engine had not taken its keys and values: 50.0 MiB at its start, "
        "64.0 MiB of keys and values",
    ]
    assert outcome.lines()[-3:] == outcome.faults()

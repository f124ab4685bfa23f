"""What is replayed is simulated: the same prompts, heads, pauses."""

from __future__ import annotations

import importlib.util
from itertools import count

import pytest
from rich.console import Console

from slotwise.bench.run import engines
from slotwise.bench.run.scripts import Wanted, of_calls
from slotwise.bench.run.served import Bench
from slotwise.bench.suite import calibrate
from slotwise.bench.suite.calibrate import Prompts
from slotwise.bench.trace import workload
from slotwise.policies.prefix import lcp, pack

ENGINE = importlib.util.find_spec("xllamacpp")
needs_engine = pytest.mark.skipif(not ENGINE, reason="no embedded engine (xllamacpp)")


def test_what_is_replayed_is_simulated_token_by_token() -> None:
    calls = list(workload.conversation("a", 2, 10, 5))
    script = of_calls(calls, Wanted(order="file", most_output=4, think_s=3.0))
    first, second = script.sessions[0]
    prompts = {first.id: pack(range(50)), second.id: pack(range(90))}
    known = Prompts(prompts, {first.id: 40, second.id: 40})
    more = count(1)
    made = calibrate.as_workload(script, known, 0.5, lambda: next(more) / 1000)
    asks = made.sessions[0]
    assert [ask.row.prompt for ask in asks] == list(prompts.values())
    assert [(ask.row.turns, ask.row.first_user_end) for ask in asks] == [(1, 40), (2, 40)]
    assert [len(ask.row.full) - len(ask.row.prompt) for ask in asks] == [3, 3]
    assert all(ask.says_limit and not ask.client for ask in asks)
    assert second.pause_s > 0
    assert [ask.pause_s for ask in asks] == [0.0, second.pause_s * 0.5 + 0.001]


def test_strangers_are_as_long_and_share_nothing() -> None:
    one, other = pack(range(50)), pack(range(90))
    apart = calibrate.strangers({"a": one, "b": other}).tokens
    assert [len(apart["a"]), len(apart["b"])] == [50, 90]
    assert lcp(apart["a"], apart["b"]) == lcp(apart["a"], one) == 0
    assert apart["a"].ids()[1:] == one.ids()[1:]


@needs_engine
def test_a_head_ends_with_the_first_user_turn_and_not_with_the_answers_beginning() -> None:
    bench = Bench(engines.tiny_model(), ctx=4096, console=Console(stderr=True, quiet=True))
    script = of_calls(list(workload.conversation("a", 2, 10, 5)), Wanted(order="file"))
    first, second = script.sessions[0]
    known = calibrate.prompts(bench, script)
    assert known.heads[first.id] == known.heads[second.id] < len(known.tokens[first.id])
    assert lcp(known.tokens[first.id], known.tokens[second.id]) >= known.heads[first.id]

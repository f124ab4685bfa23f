"""The same calls on a bare engine, one at a time and together."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest
from rich.console import Console

from slotwise.bench.run import client, compare, engines
from slotwise.bench.run.compare import Comparison, measure
from slotwise.bench.trace.workload import conversation, conversations_with_titles, interleave

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("xllamacpp"), reason="no embedded engine (xllamacpp)"
)


@pytest.fixture(scope="module")
def model() -> engines.Model:
    return engines.tiny_model()


def plan(concurrent: bool) -> Comparison:
    calls = [c for n in range(2) for c in conversation(f"s{n}", 3, words_per_turn=100)]
    moments = [[call] for call in interleave(calls, 2, 1)]
    return Comparison(moments, 2, 2, concurrent=concurrent, max_tokens=4)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_bare_engine_is_measured_beside_both_bounds(
    model: engines.Model, concurrent: bool
) -> None:
    flags = ("-np", "2", "-c", "8192", "--cache-ram", "0")
    servers = {"bare": engines.bare(model, flags)}
    result = measure(plan(concurrent), servers, Console(stderr=True, quiet=True))
    bare, optimum, infinite = result["rows"]
    assert bare["prompt tokens"] == optimum["prompt tokens"] == infinite["prompt tokens"]
    # Two conversations on two slots: each next turn finds the one before.
    assert 0.4 < bare["reuse"] <= optimum["reuse"] <= infinite["reuse"]
    assert bare["TTFT p50 ms"] is not None
    assert "--cache-ram 0" in result["launch"]["bare"][0]


def test_moments_keep_their_calls_together_in_one_order_or_in_a_lane_per_conversation() -> None:
    moments = conversations_with_titles(count=2, turns=2, words_per_turn=5)
    one = Comparison(moments, 2, 2, concurrent=False, max_tokens=4)
    assert one.lanes() == [[[0, 1], [2, 3], [4, 5], [6, 7]]]
    two = Comparison(moments, 2, 2, concurrent=True, max_tokens=4)
    assert two.lanes() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_an_engine_that_cannot_start_is_told_with_its_own_words(model: engines.Model) -> None:
    with (
        pytest.raises(engines.ServerError, match="--no-such-flag"),
        engines.bare(model, ("--no-such-flag",)),
    ):
        pass


def test_a_refused_call_is_an_error_with_the_engines_answer(model: engines.Model) -> None:
    async def refused(url: str) -> None:
        async with client.connection() as connection:
            await client.chat(connection, url, {"messages": "x", "stream": True})

    with (
        engines.bare(model, ("-np", "1", "-c", "1024")) as server,
        pytest.raises(client.CallError, match=r"^400: .*messages"),
    ):
        asyncio.run(refused(server.url))


def test_an_unknown_trace_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["no-such-trace"]) == 2
    assert "no-such-trace: no such trace" in capsys.readouterr().err

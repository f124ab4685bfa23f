"""Which reports of an engine the scheduler learns its costs from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.cost import prefill_s, step_s
from slotwise.policies.params import Cost
from slotwise.proxy.core.events import EngineLost, EngineReady, RequestProgressed
from slotwise.proxy.core.scheduler import Scheduler
from tests.proxy.script import PLAIN_COST, arrived, dispatches, finished, scheduler, text

TOLD_S = 4.0  # of a prompt of 1000 tokens, which is 1 s by the first values


def costs(s: Scheduler) -> Cost:
    return s.cost("p")


def learn(s: Scheduler, id: str, now: float, **told: Any) -> None:
    """The request ends; ``told`` are the engine's own times."""
    s.handle(replace(finished(id, 1000, 0, 101), **told), now)


def begin(s: Scheduler, id: str, now: float, **more: Any) -> None:
    assert dispatches(s.handle(arrived(id, text((id, 1000)), **more), now))


def timed(s: Scheduler) -> Cost:
    """But for the length of answers, which every end tells."""
    return replace(costs(s), expected_output=PLAIN_COST.expected_output)


def read(s: Scheduler, id: str, now: float) -> None:
    s.handle(RequestProgressed(id, 1000, 0), now)


def test_a_prompt_read_alone_is_learned_from() -> None:
    s = scheduler()
    begin(s, "a", 0)
    learn(s, "a", 5, prefill_s=TOLD_S)
    assert prefill_s(costs(s), 0, 1000) > 1.5


def test_two_prompts_read_together_tell_nothing_of_one() -> None:
    s = scheduler(cold=False)
    begin(s, "a", 0)
    begin(s, "b", 1)
    learn(s, "a", 5, prefill_s=TOLD_S)
    learn(s, "b", 6, prefill_s=TOLD_S)
    assert timed(s) == PLAIN_COST


def test_a_prompt_beside_an_answer_is_learned_from() -> None:
    s = scheduler()
    begin(s, "a", 0)
    read(s, "a", 1)
    begin(s, "b", 2)
    learn(s, "b", 7, prefill_s=TOLD_S)
    assert prefill_s(costs(s), 0, 1000) > 1.5


def test_an_engine_that_does_not_say_changes_nothing() -> None:
    s = scheduler()
    begin(s, "a", 0)
    s.handle(finished("a", 1000, None, 100), 5)
    assert timed(s) == PLAIN_COST


def test_how_long_answers_are_is_learned_where_no_limit_is_named() -> None:
    s = scheduler(cost=Cost())
    for k in range(40):
        begin(s, f"a{k}", 10 * k)
        s.handle(finished(f"a{k}", 1000, None, 100), 10 * k + 5)
    assert 100 < costs(s).expected_output < 150
    before = costs(s).expected_output
    begin(s, "b", 900, max_tokens=5)
    s.handle(finished("b", 1000, None, 5), 905)
    assert costs(s).expected_output == before


def test_a_new_engine_of_the_profile_is_taken_to_be_as_fast() -> None:
    s = scheduler()
    begin(s, "a", 0)
    learn(s, "a", 5, prefill_s=TOLD_S)
    known = costs(s)
    s.handle(EngineLost("e", "exited"), 6)
    s.handle(EngineReady("e", "p", (100_000,), None, True), 7)
    assert costs(s) == known


def test_an_answer_tells_of_a_step_for_as_many_as_ran() -> None:
    """Two at a time, each token takes as long for both as the first values have it."""
    s = scheduler(order=False, cost=replace(PLAIN_COST, decode_s=0.02, decode_more_s=0.04))
    now = 0.0
    for k in range(40):
        begin(s, f"a{k}", now)
        read(s, f"a{k}", now + 1)
        begin(s, f"b{k}", now + 1)
        read(s, f"b{k}", now + 2)
        learn(s, f"a{k}", now + 8, decode_s=7.0)  # one second of it is b's prompt
        learn(s, f"b{k}", now + 8, decode_s=6.0)
        now += 100
    assert step_s(costs(s), 1) == pytest.approx(0.020, rel=0.1)
    assert step_s(costs(s), 2) == pytest.approx(0.060, rel=0.1)


def test_what_a_prompt_beside_it_took_is_not_the_answers() -> None:
    """Two seconds of generation, half a second of them another's prompt."""
    first = Cost(0, 5e-4, 0, 0.015, 0, 10)
    s = scheduler(cost=first)
    begin(s, "a", 0)
    read(s, "a", 1)
    begin(s, "b", 2)
    learn(s, "a", 3, decode_s=2.0)
    assert step_s(costs(s), 1) == pytest.approx(0.015, rel=0.01)

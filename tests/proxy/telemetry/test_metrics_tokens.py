"""What ``/metrics`` says of a prompt's tokens: reused, computed and why, or not known."""

from __future__ import annotations

import pytest

from slotwise.policies.attribution import RECOMPUTED, SECTIONS, Share
from slotwise.policies.attribution import Cause as Why
from slotwise.policies.types import Rule
from slotwise.proxy.core.events import EngineReady, Failure, RequestArrived, RequestFailed
from slotwise.proxy.telemetry.metrics import Metrics
from tests.proxy.counted import (
    PROMPT_TOKENS,
    dispatch,
    finished,
    nonzero,
    request,
    run,
    samples,
    value,
)
from tests.proxy.history.test_explain import changed, record


def test_prompt_tokens_are_split_as_the_engine_reports(metrics: Metrics) -> None:
    run(metrics, "a", finished("a"))
    # label values in the order engine, profile, rule, slot, source
    assert nonzero(metrics, PROMPT_TOKENS) == {
        "p-0/p/home/0/cached": 7,
        "p-0/p/home/0/evaluated": 3,
    }
    assert value(metrics, "slotwise_expected_cached_tokens_total", profile="p") == 6


def test_streamed_and_whole_answers_count_the_same() -> None:
    """Field report R69: ``prompt_n`` leaves the cached out, ``usage.prompt_tokens`` has them in;
    the driver hands over the same event for both, so the counters are the same."""
    told = []
    for stream in (True, False):
        metrics = Metrics(["p"])
        metrics.observe(EngineReady("p-0", "p", (100,), None, pins=True), [], now=0)
        arrived = RequestArrived(request("a", stream=stream))
        metrics.observe(arrived, [dispatch("a")], now=1)
        metrics.observe(finished("a"), [], now=2)
        told.append(samples(metrics))
    assert told[0] == told[1]


@pytest.mark.parametrize(("prompt", "cached"), [(None, None), (10, None), (None, 7)])
def test_what_the_engine_did_not_say_is_unknown_not_zero(
    metrics: Metrics, prompt: int | None, cached: int | None
) -> None:
    """Field report R69."""
    run(metrics, "a", finished("a", prompt, cached))
    assert nonzero(metrics, PROMPT_TOKENS) == {"p-0/p/home/0/unknown": 10}
    assert value(metrics, "slotwise_expected_cached_tokens_total", profile="p") == 0


def test_a_request_that_failed_after_dispatch_is_unknown(metrics: Metrics) -> None:
    run(metrics, "a", RequestFailed("a", Failure.CLIENT_GONE))
    assert nonzero(metrics, PROMPT_TOKENS) == {"p-0/p/home/0/unknown": 10}


@pytest.mark.parametrize(
    "failure",
    [RequestFailed("a", Failure.REFUSED), RequestFailed("a", Failure.ENGINE_LOST, started=False)],
)
def test_a_prompt_that_no_engine_took_is_not_counted(
    metrics: Metrics, failure: RequestFailed
) -> None:
    run(metrics, "a", failure)
    assert nonzero(metrics, PROMPT_TOKENS) == {}


def test_tokens_count_under_the_slot_the_engine_used(metrics: Metrics) -> None:
    run(metrics, "a", finished("a", id_slot=1))
    assert set(nonzero(metrics, PROMPT_TOKENS)) == {"p-0/p/home/1/cached", "p-0/p/home/1/evaluated"}


def test_a_slot_the_engine_does_not_have_makes_no_series(metrics: Metrics) -> None:
    before = len(samples(metrics))
    run(metrics, "a", finished("a", id_slot=99))
    assert len(samples(metrics)) == before


def test_an_unpinned_request_whose_slot_is_not_told_has_slot_unknown() -> None:
    metrics = Metrics(["p"])
    metrics.observe(EngineReady("p-0", "p", (100,), None, pins=False), [], now=0)
    before = len(samples(metrics))
    run(metrics, "a", finished("a"), id_slot=-1, rule=Rule.UNPINNED)
    assert set(nonzero(metrics, PROMPT_TOKENS)) == {
        "p-0/p/unpinned/unknown/cached",
        "p-0/p/unpinned/unknown/evaluated",
    }
    assert len(samples(metrics)) == before


def test_what_was_computed_again_counts_by_cause_and_section(metrics: Metrics) -> None:
    shares = (
        Share(Why.CACHED, "tools", 200, 0),
        Share(Why.CACHED, "system", 14, 0),
        Share(Why.CHANGED, "system", 86, 1),
        Share(Why.CHANGED, "user", 50, 1),
        Share(Why.NEW, "user", 9, 1),
        Share(Why.MIN_ONE, "gibberish", 1, 1),
    )
    metrics.attributed(changed(shares=shares, bound=300, avoided_s=2.5))
    assert nonzero(metrics, "slotwise_recomputed_tokens_total") == {
        "p/changed/system": 136,  # all that the difference in the system text took with it
        "p/new/user": 9,
        "p/min_one/unknown": 1,
    }
    assert value(metrics, "slotwise_reuse_bound_tokens_total", profile="p") == 300
    assert value(metrics, "slotwise_prefill_seconds_avoided_total", profile="p") == 2.5


def test_what_is_not_known_is_not_counted_as_computed_again(metrics: Metrics) -> None:
    before = samples(metrics)
    metrics.attributed(record((Why.UNKNOWN, 50), cached=None, bound=None))
    assert samples(metrics) == before


def test_every_cause_and_section_is_there_from_the_start(metrics: Metrics) -> None:
    before = len(samples(metrics))
    for why in RECOMPUTED:
        for section in SECTIONS:
            metrics.attributed(changed(shares=(Share(why, section, 1, 1),), changed=None))
    assert len(samples(metrics)) == before
    assert len(nonzero(metrics, "slotwise_recomputed_tokens_total")) == 6 * 7

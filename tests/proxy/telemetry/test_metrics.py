"""What ``/metrics`` says after a script of events of requests, waits, engines and slots."""

from __future__ import annotations

import pytest

from slotwise.launcher.process.supervisor import Cause
from slotwise.policies.types import Reason, Rule, SlotId
from slotwise.proxy.core.events import (
    EngineLost,
    Failure,
    Mismatch,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    SlotsReported,
)
from slotwise.proxy.core.snapshot import SlotStatus, Waiting
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


def test_known_label_sets_start_at_zero(metrics: Metrics) -> None:
    labels = {"profile": "p", "engine": "p-0", "slot": "1", "rule": "guest", "source": "cached"}
    assert value(metrics, PROMPT_TOKENS, **labels) == 0
    assert value(metrics, "slotwise_requests_total", profile="p", rule="home", code="200") == 0
    assert value(metrics, "slotwise_pin_mismatches_total", engine="p-0") == 0
    count = "slotwise_queue_wait_seconds_count"
    assert value(metrics, count, profile="p", reason="home_busy") == 0
    last = "slotwise_time_to_first_token_seconds_bucket"
    assert value(metrics, last, profile="p", rule="new", le="600.0") == 0


def test_there_are_no_created_series_and_no_instance_label(metrics: Metrics) -> None:
    run(metrics, "a", finished("a"))
    body = metrics.exposition()[0].decode()
    assert "_created" not in body
    assert "instance=" not in body
    assert {line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")} == {
        "slotwise_prompt_tokens_total",
        "slotwise_expected_cached_tokens_total",
        "slotwise_recomputed_tokens_total",
        "slotwise_reuse_bound_tokens_total",
        "slotwise_prefill_seconds_avoided_total",
        "slotwise_normalized_total",
        *(f"slotwise_memory_{name}_bytes" for name in ("available", "floor", "hard_floor")),
        *("slotwise_memory_reserved_bytes", "slotwise_memory_sample_age_seconds"),
        *("slotwise_reclaims_total", "slotwise_reclaimed_bytes_total"),
        *("slotwise_admissions_total", "slotwise_engine_memory_bytes", "slotwise_role_state"),
        *("slotwise_memory_part_bytes", "slotwise_engine_lru_selections_total"),
        "slotwise_requests_total",
        "slotwise_queue_wait_seconds",
        "slotwise_time_to_first_token_seconds",
        "slotwise_time_per_output_token_seconds",
        "slotwise_regret_seconds_total",
        "slotwise_hold_seconds_total",
        "slotwise_home_waits_total",
        "slotwise_promotions_total",
        "slotwise_working_set_ratio",
        "slotwise_fairness_jain_index",
        "slotwise_sessions",
        "slotwise_tokens_local",
        "slotwise_requests_waiting",
        "slotwise_requests_running",
        "slotwise_slot_resident_tokens",
        "slotwise_slot_busy",
        "slotwise_pin_mismatches_total",
        "slotwise_engine_up",
        "slotwise_engine_restarts_total",
        "slotwise_build_info",
    }


def test_waits_are_counted_at_dispatch_and_at_refusal(metrics: Metrics) -> None:
    run(metrics, "a", finished("a"))
    refuse = Refuse("b", 503, "queue_timeout", "", wait_reason=Reason.HELD, waited_s=600)
    metrics.observe(RequestArrived(request("b")), [refuse], now=3)
    assert nonzero(metrics, "slotwise_queue_wait_seconds_sum") == {
        "p/home_busy": 1.5,
        "p/held": 600,
    }


def test_the_first_token_counts_under_the_rule_that_placed_it(metrics: Metrics) -> None:
    metrics.observe(RequestArrived(request("a")), [dispatch("a")], now=1)
    metrics.first_token("a", 2.5)
    metrics.first_token("nobody", 9.0)
    assert nonzero(metrics, "slotwise_time_to_first_token_seconds_sum") == {"p/home": 2.5}


def test_answers_of_unknown_profiles_and_odd_codes_make_few_series(metrics: Metrics) -> None:
    metrics.answered("p", Rule.HOME, 200)
    for n in range(50):
        metrics.answered(f"model-{n}", Rule.NONE, 404)
        metrics.answered("p", Rule.NONE, 1000 + n)
    assert nonzero(metrics, "slotwise_requests_total") == {
        "200/p/home": 1,
        "404/unknown/none": 50,
        "other/p/none": 50,
    }


def test_restarts_count_by_cause_and_a_story_makes_no_series(metrics: Metrics) -> None:
    before = len(samples(metrics))
    metrics.engine_restarted("p-0", "hung")
    for n in range(50):
        metrics.engine_restarted("p-0", f"exited with status {n}")
    assert nonzero(metrics, "slotwise_engine_restarts_total") == {"p-0/hung": 1, "p-0/other": 50}
    assert len(samples(metrics)) == before


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_the_launcher_names_has_its_series(metrics: Metrics, cause: Cause) -> None:
    metrics.engine_restarted("p-0", cause.value)
    assert nonzero(metrics, "slotwise_engine_restarts_total") == {f"p-0/{cause.value}": 1}


def test_gauges_tell_what_is_so_now(metrics: Metrics) -> None:
    metrics.observe(RequestArrived(request("a")), [dispatch("a")], now=1)
    waits = Waiting("b", "p", Reason.HOME_BUSY, 0, 1.0, "")
    slot = SlotStatus(SlotId("p-0", 1), "p", "unproven", 50, 100, None, False, 1, 0.0)
    metrics.sync([waits], [slot])
    assert nonzero(metrics, "slotwise_requests_waiting") == {"p/home_busy": 1}
    assert nonzero(metrics, "slotwise_requests_running") == {"p-0": 1}
    assert nonzero(metrics, "slotwise_slot_resident_tokens") == {"p-0/1": 50}
    assert nonzero(metrics, "slotwise_slot_busy") == {"p-0/1": 1}
    metrics.observe(finished("a"), [], now=2)
    metrics.sync([], [])
    for name in ("requests_waiting", "requests_running", "slot_resident_tokens", "slot_busy"):
        assert nonzero(metrics, f"slotwise_{name}") == {}


def test_an_engine_is_up_from_ready_to_lost(metrics: Metrics) -> None:
    assert value(metrics, "slotwise_engine_up", engine="p-0") == 1
    metrics.observe(EngineLost("p-0", "exit"), [], now=5)
    assert value(metrics, "slotwise_engine_up", engine="p-0") == 0


def test_only_mismatches_about_pins_count_as_such(metrics: Metrics) -> None:
    """Field report R39."""
    slot = SlotId("p-0", 0)
    for id, told in (("a", 1), ("b", 0), ("c", None)):
        metrics.observe(RequestArrived(request(id)), [dispatch(id)], now=1)
        mismatch = Mismatch(slot, id, "as the scheduler words it")
        metrics.observe(finished(id, id_slot=told), [mismatch], now=2)
    assert value(metrics, "slotwise_pin_mismatches_total", engine="p-0") == 1
    report = SlotsReported("p-0", 3.0, ())
    metrics.observe(report, [Mismatch(slot, "", "holds fewer")], now=3)
    assert value(metrics, "slotwise_pin_mismatches_total", engine="p-0") == 2


def test_nothing_is_kept_of_requests_that_ended(metrics: Metrics) -> None:
    """Memory is bounded: every ending forgets its request, and a late cancel does no harm."""
    run(metrics, "a", finished("a"))
    run(metrics, "b", RequestFailed("b", Failure.TIMEOUT))
    metrics.observe(RequestArrived(request("c")), [Refuse("c", 429, "full", "")], now=3)
    metrics.observe(RequestArrived(request("d")), [], now=3)
    metrics.observe(RequestCancelled("d"), [], now=4)
    metrics.observe(RequestArrived(request("e")), [dispatch("e")], now=5)
    metrics.observe(RequestCancelled("e"), [], now=6)  # ignored: it runs, its end comes
    metrics.observe(RequestFailed("e", Failure.CLIENT_GONE), [], now=7)
    metrics.count()
    assert metrics._requests.known == {}
    assert metrics._requests.running == {"p-0": 0}


def test_what_is_noted_is_counted_before_long_and_in_order(metrics: Metrics) -> None:
    for n in range(1000):
        run(metrics, f"r{n}", finished(f"r{n}"))
        assert len(metrics._noted) < 256
    metrics.observe(EngineLost("p-0", "crashed"), [], now=3)
    metrics.engine_state("p-0", up=True)  # came after the loss, so it holds
    assert value(metrics, "slotwise_engine_up", engine="p-0") == 1
    assert nonzero(metrics, PROMPT_TOKENS)["p-0/p/home/0/cached"] == 7000


def test_build_info_names_the_engine_builds_once_known(metrics: Metrics) -> None:
    def builds() -> list[str]:
        labels = [dict(ls) for name, ls in samples(metrics) if name == "slotwise_build_info"]
        assert all(one["python"].startswith("3.") for one in labels)
        return sorted(one["llama"] for one in labels)

    assert builds() == [""]
    metrics.engine_build("b11434")
    metrics.engine_build("b11434")
    assert builds() == ["b11434"]
    metrics.engine_build("b11500")
    assert builds() == ["b11434", "b11500"]

"""The names, labels and meaning of every series on ``/metrics``; ``metrics`` feeds them.

Dashboards and alerts live by these names: they are fixed. A llama-server process is an ``engine``
here, since Prometheus keeps ``instance`` for the target it scrapes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from slotwise.policies.attribution import RECOMPUTED, SECTIONS
from slotwise.policies.order import Promotion
from slotwise.policies.regret import Obstacle
from slotwise.policies.types import Reason, Rule
from slotwise.proxy.chat.normalize import PARTS
from slotwise.proxy.core.events import EngineReady, HoldResult, HomeWait
from slotwise.proxy.core.snapshot import SessionState, Standing

UNKNOWN = "unknown"
RESTART_REASONS = (
    "exited",
    "hung",
    "silent",
    "not_started",
    "not_ready",
    "refused",
    "unloaded",
    "other",
)
_SOURCES = ("cached", "evaluated", UNKNOWN)
_PINNED_RULES = (Rule.HOME, Rule.BRANCH, Rule.SESSION, Rule.GUEST, Rule.NEW, Rule.AFFINITY)
_PLACED_CODES = (200, 499)  # 499: the client left
_NEVER_PLACED_CODES = (400, 429, 499, 503)


def of_profile(series: Series, profile: str) -> None:
    """All of a profile, whatever its engines are."""
    series.expected_cached_tokens.labels(profile)
    series.reuse_bound_tokens.labels(profile)
    series.prefill_seconds_avoided.labels(profile)
    _rules_of_profile(series, profile)
    for part in PARTS:
        series.normalized.labels(profile, part)
    for cause in RECOMPUTED:
        for section in SECTIONS:
            series.recomputed_tokens.labels(profile, cause, section)
    for code in _NEVER_PLACED_CODES:
        series.requests.labels(profile, Rule.NONE, code)
    for rule in (*_PINNED_RULES, Rule.UNPINNED):
        for code in _PLACED_CODES:
            series.requests.labels(profile, rule, code)
        series.time_to_first_token.labels(profile, rule)
    for reason in Reason:
        series.queue_wait.labels(profile, reason)
        series.waiting.labels(profile, reason)


def _rules_of_profile(series: Series, profile: str) -> None:
    """Those of the scheduling rules."""
    series.time_per_output_token.labels(profile)
    show(series, Standing(profile, 0.0, 1.0, dict.fromkeys(SessionState, 0)))
    for obstacle in Obstacle:
        series.regret_seconds.labels(profile, obstacle)
    for hold in HoldResult:
        series.hold_seconds.labels(profile, hold)
    for wait in HomeWait:
        series.home_waits.labels(profile, wait)
    for promotion in Promotion:
        series.promotions.labels(profile, promotion)


def show(series: Series, one: Standing) -> None:
    """Where a profile stands now."""
    series.working_set_ratio.labels(one.profile).set(one.working_set)
    series.fairness.labels(one.profile).set(one.fairness)
    for state, count in one.sessions.items():
        series.sessions.labels(one.profile, state).set(count)


def of_engine(series: Series, event: EngineReady) -> None:
    """All of an engine, now that its slots are known."""
    engine = event.engine
    series.pin_mismatches.labels(engine)
    series.engine_lru_selections.labels(engine)
    for reason in RESTART_REASONS:
        series.engine_restarts.labels(engine, reason)
    rules = _PINNED_RULES if event.pins else (Rule.UNPINNED,)
    slots = [str(id_slot) for id_slot in range(len(event.windows))]
    for slot in slots if event.pins else [*slots, UNKNOWN]:
        for rule in rules:
            for source in _SOURCES:
                series.prompt_tokens.labels(event.profile, engine, slot, rule, source)


# a timestamp beside every counter would double the series
disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 450, 600)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)


class Series:
    """Every series of one registry, one attribute each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        own: Any = {"namespace": "slotwise", "registry": registry}
        self.prompt_tokens = Counter(
            "prompt_tokens_total",
            "Prompt tokens as the engine reports them; unknown: it did not, our own count.",
            ("profile", "engine", "slot", "rule", "source"),
            **own,
        )
        self.expected_cached_tokens = Counter(
            "expected_cached_tokens_total",
            "Cached tokens that were expected of the requests whose cached tokens are reported.",
            ("profile",),
            **own,
        )
        self.recomputed_tokens = Counter(
            "recomputed_tokens_total",
            "Prompt tokens that were computed, by cause and by the section they lie in; changed: "
            "by the section in which the first difference lies.",
            ("profile", "reason", "section"),
            **own,
        )
        self.reuse_bound_tokens = Counter(
            "reuse_bound_tokens_total",
            "Prompt tokens that a cache which never forgets would have served, of the requests "
            "whose cached tokens are reported.",
            ("profile",),
            **own,
        )
        self.prefill_seconds_avoided = Counter(
            "prefill_seconds_avoided_total",
            "Seconds of prefill that the cache saved, by the cost model.",
            ("profile",),
            **own,
        )
        self.normalized = Counter(
            "normalized_total",
            "Requests in which a part was made equal to their like, by part.",
            ("profile", "part"),
            **own,
        )
        self.requests = Counter(
            "requests_total", "Answers by HTTP status.", ("profile", "rule", "code"), **own
        )
        self.queue_wait = Histogram(
            "queue_wait_seconds",
            "From arrival to dispatch or refusal, by what was waited for last.",
            ("profile", "reason"),
            buckets=_BUCKETS_S,
            **own,
        )
        self.time_to_first_token = Histogram(
            "time_to_first_token_seconds",
            "From arrival to the first token.",
            ("profile", "rule"),
            buckets=_BUCKETS_S,
            **own,
        )
        self.time_per_output_token = Histogram(
            "time_per_output_token_seconds",
            "Of an answer of two tokens or more, as the engine times it.",
            ("profile",),
            buckets=_TOKEN_BUCKETS_S,
            **own,
        )
        self._of_rules(own)
        self.tokens_local = Gauge(
            "tokens_local",
            "1 while prompts are encoded (tokenizer) or rendered (template) without the engine.",
            ("profile", "part"),
            **own,
        )
        self.waiting = Gauge(
            "requests_waiting", "Requests that wait now.", ("profile", "reason"), **own
        )
        self.running = Gauge("requests_running", "Requests at work now.", ("engine",), **own)
        self._of_engines(own)
        for metric in vars(self).values():
            # Looked up a dozen times per request; label sets are few and stay.
            metric.labels = cache(metric.labels)
        self.build_info = Gauge("build_info", "What runs.", ("version", "python", "llama"), **own)

    def _of_rules(self, own: Any) -> None:
        profile, by_reason, by_result = ("profile",), ("profile", "reason"), ("profile", "result")
        self.regret_seconds = Counter(
            "regret_seconds_total",
            "Seconds lost against the best slot at once, by what stood in the way.",
            by_reason,
            **own,
        )
        self.hold_seconds = Counter(
            "hold_seconds_total",
            "Seconds idle slots were kept for their owners, by how that ended.",
            by_result,
            **own,
        )
        self.home_waits = Counter(
            "home_waits_total", "Waits for a busy home, by what came of them.", by_result, **own
        )
        self.promotions = Counter(
            "promotions_total", "Requests that went first because they waited.", by_reason, **own
        )
        self.working_set_ratio = Gauge(
            "working_set_ratio", "Live conversations over what stays warm.", profile, **own
        )
        self.fairness = Gauge(
            "fairness_jain_index", "Of what the keys were served lately; 1: alike.", profile, **own
        )
        self.sessions = Gauge(
            "sessions", "Remembered conversations, by state.", ("profile", "state"), **own
        )

    def _of_engines(self, own: Any) -> None:
        slot = ("engine", "slot")
        self.slot_resident_tokens = Gauge(
            "slot_resident_tokens", "Tokens whose KV the slot is believed to hold.", slot, **own
        )
        self.slot_busy = Gauge(
            "slot_busy", "1: at work, or its last request's end is not proven.", slot, **own
        )
        self.pin_mismatches = Counter(
            "pin_mismatches_total", "The engine used another slot than told.", ("engine",), **own
        )
        self.engine_up = Gauge("engine_up", "1: the engine is ready.", ("engine",), **own)
        self.engine_lru_selections = Counter(
            "engine_lru_selections_total",
            "The engine chose a slot by itself, the one unused longest.",
            ("engine",),
            **own,
        )
        self.engine_restarts = Counter(
            "engine_restarts_total", "Restarts of an engine.", ("engine", "reason"), **own
        )

"""The label values that are known beforehand: their series are there from the start, at 0.

A series that appears with its first count looks to a query as if nothing had happened before it.
The values come from fixed sets, from the configuration and from the slots an engine has, so no
client can add a series.
"""

from __future__ import annotations

from slotwise.policies.attribution import RECOMPUTED, SECTIONS
from slotwise.policies.types import Reason, Rule
from slotwise.proxy.chat.normalize import PARTS
from slotwise.proxy.core.events import EngineReady
from slotwise.proxy.telemetry import rule_series
from slotwise.proxy.telemetry.series import Series

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
    rule_series.start_at_zero(series, profile)
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

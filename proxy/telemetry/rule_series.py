"""What feeds the series of the scheduling rules: losses, waits, holds, fairness, conversations."""

from __future__ import annotations

from slotwise.policies.order import Promotion
from slotwise.policies.regret import Obstacle
from slotwise.proxy.core.actions import Dispatch, HoldEnded, HoldResult, HomeWait
from slotwise.proxy.core.events import RequestFinished
from slotwise.proxy.core.standing import SessionState, Standing
from slotwise.proxy.telemetry.series import Series


def start_at_zero(series: Series, profile: str) -> None:
    """Every label set of a profile is there from the start."""
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


def placed(series: Series, profile: str, action: Dispatch) -> None:
    """A request was placed."""
    for loss in action.regret:
        series.regret_seconds.labels(profile, loss.obstacle).inc(loss.seconds)
    if action.promoted is not None:
        series.promotions.labels(profile, action.promoted).inc()
    if action.home_wait is not None:
        series.home_waits.labels(profile, action.home_wait).inc()


def hold_ended(series: Series, action: HoldEnded) -> None:
    """A slot is not kept any more."""
    series.hold_seconds.labels(action.profile, action.result).inc(action.kept_s)


def generated(series: Series, profile: str, event: RequestFinished) -> None:
    """An answer ended; one of a single token has no time between tokens."""
    seconds, tokens = event.decode_s, event.completion_tokens
    if seconds is not None and tokens is not None and tokens > 1:
        # The first token is the prompt's.
        series.time_per_output_token.labels(profile).observe(seconds / (tokens - 1))


def show(series: Series, one: Standing) -> None:
    """Where a profile stands now."""
    series.working_set_ratio.labels(one.profile).set(one.working_set)
    series.fairness.labels(one.profile).set(one.fairness)
    for state, count in one.sessions.items():
        series.sessions.labels(one.profile, state).set(count)

"""What feeds the series of the scheduling rules: losses, waits, holds, fairness, conversations."""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.policies.types import Reason, Request
from slotwise.proxy.core.events import (
    Dispatch,
    Failure,
    HoldEnded,
    Refuse,
    RequestFailed,
    RequestFinished,
)
from slotwise.proxy.telemetry.series import UNKNOWN, Series


@dataclass(slots=True)
class _Request:
    """What is remembered of a request from its arrival to its end."""

    profile: str
    n_tokens: int
    dispatch: Dispatch | None = None


class RequestSeries:
    """Counts requests, and remembers those that have not ended."""

    def __init__(self, series: Series) -> None:
        self.slots: dict[str, int] = {}  # of each engine, how many
        self.running: dict[str, int] = {}  # requests at work, by engine
        self.known: dict[str, _Request] = {}  # by id
        self._series = series

    def arrived(self, request: Request) -> None:
        """It waits now."""
        self.known[request.id] = _Request(request.profile, len(request.tokens))

    def cancelled(self, id: str) -> None:
        """Its client left; one that is at work already ends in another way."""
        waiting = self.known.get(id)
        if waiting and waiting.dispatch is None:
            del self.known[id]

    def refused(self, action: Refuse) -> None:
        """It waited in vain."""
        request = self.known.pop(action.id, None)
        if request:
            self._waited(request.profile, action.wait_reason, action.waited_s)

    def dispatched(self, action: Dispatch) -> None:
        """It was placed on an engine."""
        request = self.known.get(action.id)
        if request is None:
            return
        request.dispatch = action
        engine = action.slot.engine
        self.running[engine] = self.running.get(engine, 0) + 1
        profile = request.profile
        self._waited(profile, action.wait_reason, action.waited_s)
        placed(self._series, profile, action)

    def first_token(self, id: str, seconds: float) -> None:
        """The first token of a running request came ``seconds`` after its arrival."""
        request = self.known.get(id)
        if request and request.dispatch:
            self._series.time_to_first_token.labels(request.profile, request.dispatch.rule).observe(
                seconds
            )

    def finished(self, event: RequestFinished) -> None:
        """Its engine's last word of it."""
        request, dispatch = self._end(event.id)
        if request is None or dispatch is None:
            return
        generated(self._series, request.profile, event)
        reported, cached = event.prompt_tokens, event.cached_tokens
        if reported is None or cached is None:
            self._count(request, dispatch, event.id_slot, UNKNOWN, request.n_tokens)
            return
        self._count(request, dispatch, event.id_slot, "cached", cached)
        self._count(request, dispatch, event.id_slot, "evaluated", max(0, reported - cached))
        # only beside a report, so that expected and cached can be compared
        self._series.expected_cached_tokens.labels(request.profile).inc(dispatch.expected_cached)

    def failed(self, event: RequestFailed) -> None:
        """It ended without that."""
        request, dispatch = self._end(event.id)
        if request is None or dispatch is None:
            return
        # what never reached the engine, or was turned down by it, was not computed at all
        if event.started and event.failure is not Failure.REFUSED:
            self._count(request, dispatch, None, UNKNOWN, request.n_tokens)

    def _waited(self, profile: str, reason: Reason, waited_s: float) -> None:
        self._series.queue_wait.labels(profile, reason).observe(waited_s)

    def _end(self, id: str) -> tuple[_Request | None, Dispatch | None]:
        request = self.known.pop(id, None)
        if request is None or request.dispatch is None:
            return request, None
        self.running[request.dispatch.slot.engine] -= 1
        return request, request.dispatch

    def _count(
        self, request: _Request, dispatch: Dispatch, told_slot: int | None, source: str, n: int
    ) -> None:
        """Add prompt tokens under the slot the engine says it used, else where it was sent."""
        engine, sent_to = dispatch.slot
        exists = told_slot is not None and 0 <= told_slot < self.slots.get(engine, 0)
        used = told_slot if exists else sent_to
        slot = UNKNOWN if used == -1 else str(used)
        self._series.prompt_tokens.labels(request.profile, engine, slot, dispatch.rule, source).inc(
            n
        )


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

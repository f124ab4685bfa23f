"""When to ask an engine for ``/slots`` while a slot's end is not proven.

A stream whose client left ends at its next token or batch, so the answer is near: the first
question comes at once, the next after as long as it has taken so far. llama-server notices that
the client of a whole (not streamed) answer left when a second has passed without a result for
anybody, and each question begins that second anew: there the questions keep more than a second
apart, or they would keep the abandoned answer alive.
"""

from __future__ import annotations

from dataclasses import dataclass

UNNOTICED_S = 1.25
"""For so long an engine that has nothing to say may not notice that a client left."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: from the wish to the first question, between two questions at most (and at least,
    where a whole answer was abandoned), and how long busy slots may stand still while some slot's
    end is not proven."""

    between_s: float = UNNOTICED_S
    delay_s: float = 0.02
    still_s: float = 300.0


class Asking:
    """The questions of one engine."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._begun: float | None = None  # s, since when a slot's end is not proven
        self._asked_at = float("-inf")

    def wish(self, now: float, whole: bool) -> float:
        """When to ask next, where a slot's end is not proven as of now, or not any more.
        ``whole``: for one of them that of an answer that does not stream."""
        pace, begun = self._pace, self._begun
        if begun is None:
            begun = self._begun = now
            if now >= self._asked_at + pace.between_s:
                return now + pace.delay_s
        if whole:
            return now + pace.between_s
        between_s = min(max(self._asked_at - begun, pace.delay_s), pace.between_s)
        return max(now + pace.delay_s, self._asked_at + between_s)

    def asked(self, now: float) -> None:
        """A question was sent."""
        self._asked_at = now

    def proven(self) -> None:
        """Nothing is left to ask for."""
        self._begun = None

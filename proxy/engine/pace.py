"""When an engine is asked for ``/slots``: soon after a wish, and no oftener than it is safe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: from the wish to the first question, between two questions at most, and how long
    busy slots may stand still while some slot's end is not proven."""

    between_s: float = 2.0
    delay_s: float = 0.02
    still_s: float = 300.0


class Asking:
    """The questions of one engine."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._begun: float | None = None  # s, since when a slot's end is not proven
        self.asked_at = float("-inf")  # s, the last question

    def next_at(self, now: float) -> float:
        """When to ask next, where somebody wishes it now."""
        if self._begun is None:
            self._begun = now
        pace = self._pace
        between_s = min(max(self.asked_at - self._begun, pace.delay_s), pace.between_s)
        return max(now + pace.delay_s, self.asked_at + between_s)

    def asked(self, now: float) -> None:
        """A question was sent."""
        self.asked_at = now

    def proven(self) -> None:
        """Nothing is left to ask for."""
        self._begun = None

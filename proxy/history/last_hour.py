"""What became of the prompt tokens of the last hour: sums by the minute, so that it stays small."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from slotwise.policies.attribution import Cause
from slotwise.proxy.history.record import Record

SPAN_S = 3600
_MINUTE_S = 60


@dataclass(slots=True)
class Sums:
    """Of some requests that ended."""

    requests: int = 0
    prompt_tokens: int = 0
    reported: int = 0  # of them: tokens of requests whose cached tokens the engine reported
    bound: int = 0  # tokens that a cache which never forgets would have served
    avoided_s: float = 0.0
    lost_s: float = 0.0  # computing what need not have been computed
    tokens: Counter[Cause] = field(default_factory=Counter)

    def add(self, record: Record) -> None:
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens
        if record.cached is not None:
            self.reported += record.prompt_tokens
        self.bound += record.bound or 0
        self.avoided_s += record.avoided_s
        self.lost_s += record.lost_s()
        self.tokens.update(record.tokens())

    def join(self, other: Sums) -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.reported += other.reported
        self.bound += other.bound
        self.avoided_s += other.avoided_s
        self.lost_s += other.lost_s
        self.tokens.update(other.tokens)


class LastHour:
    """One profile's sums. Times are times of day (s); a minute leaves as a whole."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Sums]] = deque(maxlen=SPAN_S // _MINUTE_S)

    def add(self, record: Record) -> None:
        """A request that ended at ``record.time``."""
        minute = int(record.time // _MINUTE_S)
        if not self._minutes or self._minutes[-1][0] < minute:
            self._minutes.append((minute, Sums()))
        # A clock that was set back puts it into the newest minute: nothing is lost.
        self._minutes[-1][1].add(record)

    def sums(self, time: float) -> Sums:
        """Of the hour before ``time``."""
        first = int(time // _MINUTE_S) - SPAN_S // _MINUTE_S
        total = Sums()
        for minute, sums in self._minutes:
            if minute > first:
                total.join(sums)
        return total

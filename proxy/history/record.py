"""One request that ended, and what became of each token of its prompt. Plain data, no prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotwise.policies.attribution import AVOIDABLE, Cause, Share, Span
from slotwise.policies.regret import Loss
from slotwise.policies.types import Reason, Rule, SlotId
from slotwise.proxy.core.events import Failure


@dataclass(frozen=True, slots=True)
class Known:
    """What the shell saw of a request; None: not known."""

    client: str | None = None
    ttft_s: float | None = None  # since its arrival
    prefill_s: float | None = None  # as the engine reports
    decode_s: float | None = None  # as the engine reports
    finish: str | None = None  # the engine's reason


@dataclass(frozen=True, slots=True)
class Changed:
    """The first difference to the conversation so far. Token ids, at most 24 of each side."""

    position: int
    section: str
    message: int  # index in the request; -1: none
    in_answer: bool  # the answer came back otherwise: what it was before is not known
    lead: tuple[int, ...]  # what both have before it
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Displaced:
    """By which request, and at what time of day (s); empty: the engine ended."""

    by: str
    time: float


@dataclass(frozen=True, slots=True)
class Record:
    """One dispatched request that ended. Tokens of all causes add up to ``prompt_tokens``."""

    id: str
    profile: str
    session: str
    kind: str
    key: str
    time: float  # s, time of day at its end
    slot: SlotId
    rule: Rule
    prompt_tokens: int
    expected_cached: int
    cached: int | None  # None: the engine did not say
    spans: tuple[Span, ...]
    shares: tuple[Share, ...]
    bound: int | None  # tokens that a cache which never forgets would have served
    avoided_s: float
    changed: Changed | None
    displaced: Displaced | None  # what is ``evicted``: where known
    wait_s: float  # from arrival to dispatch
    out_tokens: int | None
    failure: Failure | None
    cache_prompt: bool  # False: the client asked for no reuse
    known: Known
    took_s: float = 0.0  # from arrival to end
    why: str = ""  # the numbers it was placed on
    wait_reason: Reason = Reason.NONE  # what it waited for last
    regret: tuple[Loss, ...] = ()  # against the best slot at once

    def tokens(self) -> dict[Cause, int]:
        """Tokens by cause, the causes that have some."""
        counts: dict[Cause, int] = {}
        for span in self.spans:
            counts[span.cause] = counts.get(span.cause, 0) + span.end - span.start
        return counts

    def lost_s(self) -> float:
        """Seconds spent on what need not have been computed."""
        return sum(share.seconds for share in self.shares if share.cause in AVOIDABLE)


def times(record: Record) -> dict[str, Any]:
    """How long each part of it took and what was waited for, as plain data; seconds."""
    known = record.known
    return {
        "wait_s": round(record.wait_s, 3),
        "wait_reason": record.wait_reason.value,
        "regret_s": {loss.obstacle.value: round(loss.seconds, 3) for loss in record.regret},
        "ttft_s": known.ttft_s,
        "prefill_s": known.prefill_s,
        "decode_s": known.decode_s,
        "took_s": round(record.took_s, 3),
        "out_tokens": record.out_tokens,
    }

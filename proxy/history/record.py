"""One request that ended, and what became of each token of its prompt. Plain data, no prompt."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from slotwise.policies.attribution import (
    AVOIDABLE,
    NO_SECTION,
    Attribution,
    Cause,
    Earlier,
    Facts,
    Share,
    Span,
    attribute,
    avoided_s,
    section_at,
    shares,
)
from slotwise.policies.params import Cost
from slotwise.policies.prefix import Tokens
from slotwise.policies.regret import Loss
from slotwise.policies.types import Reason, Request, Rule, SlotId
from slotwise.proxy.core.events import Dispatch, Failure, RequestFailed, RequestFinished
from slotwise.proxy.history.computed import Chain, Prompt


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
class DisplacedBy:
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
    displaced: DisplacedBy | None  # what is ``evicted``: where known
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


SHOWN_IDS = 24  # of each side of a difference
LEAD_IDS = 8  # before it
_ID_BYTES = 4


@dataclass(slots=True)
class Account:
    """A request between its arrival and its end; the later fields are set at its dispatch."""

    request: Request
    arrived: float  # s
    dispatch: Dispatch | None = None
    digests: Chain = ()
    earlier: Prompt | None = None
    common: int = 0  # tokens shared with the earlier prompt
    ever: int = 0  # longest prefix on record as computed, in tokens
    displaced: DisplacedBy | None = None  # what became of that prefix, where known
    processed: int = 0  # tokens of the prompt computed so far
    known: Known = field(default_factory=Known)


def finished(account: Account, event: RequestFinished, cost: Cost, time: float) -> Record:
    """The record of a request whose final event was read at ``time``."""
    n, cached = len(account.request.tokens), event.cached_tokens
    reported = n if event.prompt_tokens is None else event.prompt_tokens
    record = _unattributed(account, reported, time, event.completion_tokens)
    if cached is None:
        return record
    cached = min(max(cached, 0), reported)
    if reported != n:
        return _partly(record, cached, cost)
    return _attributed(record, account, cached, cost)


def failed(account: Account, event: RequestFailed, time: float) -> Record:
    """The record of a request that ended in any other way: of no token is it known what became
    of it."""
    n = len(account.request.tokens)
    return replace(_unattributed(account, n, time, event.generated), failure=event.failure)


def touched(event: RequestFailed) -> bool:
    """Whether the engine may have changed what the slot held."""
    return event.started and event.failure is not Failure.REFUSED


def _unattributed(account: Account, n: int, time: float, out_tokens: int | None) -> Record:
    request, dispatch = account.request, account.dispatch
    assert dispatch is not None
    return Record(
        id=request.id,
        profile=request.profile,
        session=request.session,
        kind=request.kind,
        key=request.key,
        time=time,
        slot=dispatch.slot,
        rule=dispatch.rule,
        prompt_tokens=n,
        expected_cached=dispatch.expected_cached,
        cached=None,
        spans=_spans((Cause.UNKNOWN, 0, n)),
        shares=(),
        bound=None,
        avoided_s=0.0,
        changed=None,
        displaced=None,
        wait_s=dispatch.waited_s,
        out_tokens=out_tokens,
        failure=None,
        cache_prompt=request.cache_prompt,
        known=account.known,
        why=dispatch.why,
        wait_reason=dispatch.wait_reason,
        regret=dispatch.regret,
    )


def _attributed(record: Record, account: Account, cached: int, cost: Cost) -> Record:
    found = attribute(_facts(account, cached))
    is_evicted = any(span.cause is Cause.EVICTED for span in found.spans)
    return replace(
        record,
        cached=cached,
        spans=found.spans,
        shares=shares(found.spans, account.request.sections, cost),
        bound=found.bound,
        avoided_s=avoided_s(cost, record.prompt_tokens, cached),
        changed=_changed(account, found),
        displaced=account.displaced if is_evicted else None,
    )


def _partly(record: Record, cached: int, cost: Cost) -> Record:
    """The engine counts another number of prompt tokens than the proxy: positions do not agree, so
    beyond what it reports as cached no cause can be told."""
    n = record.prompt_tokens
    spans = _spans((Cause.CACHED, 0, cached), (Cause.UNKNOWN, cached, n))
    return replace(
        record,
        cached=cached,
        spans=spans,
        shares=shares(spans, (), cost),
        bound=cached,
        avoided_s=avoided_s(cost, n, cached),
    )


def _spans(*cuts: tuple[Cause, int, int]) -> tuple[Span, ...]:
    return tuple(Span(*cut) for cut in cuts if cut[2] > cut[1])


def _facts(account: Account, cached: int) -> Facts:
    request, dispatch, earlier = account.request, account.dispatch, account.earlier
    assert dispatch is not None
    compared: Earlier | None = None
    if earlier is not None:
        length = len(earlier.tokens)
        compared = Earlier(length, earlier.computed, account.common, earlier.answer)
    # With a session known, an answer behind any but its earlier prompt is another session's.
    ours = not request.session or (compared is not None and dispatch.here >= compared.length)
    return Facts(
        n=len(request.tokens),
        cached=cached,
        here=dispatch.here,
        tail=dispatch.tail if ours else 0,
        elsewhere=dispatch.elsewhere,
        ever=account.ever,
        earlier=compared,
        sections=request.sections,
    )


def _changed(account: Account, found: Attribution) -> Changed | None:
    if found.difference is None:
        return None
    position, in_answer = found.difference
    section = section_at(account.request.sections, position)
    unknown = "assistant" if in_answer else NO_SECTION
    before: tuple[int, ...] = ()
    if account.earlier is not None and not in_answer:
        before = _ids(account.earlier.tokens, position, SHOWN_IDS)
    lead = min(position, LEAD_IDS)
    return Changed(
        position=position,
        section=section.name if section else unknown,
        message=section.message if section else -1,
        in_answer=in_answer,
        lead=_ids(account.request.tokens, position - lead, lead),
        before=before,
        after=_ids(account.request.tokens, position, SHOWN_IDS),
    )


def _ids(tokens: Tokens, start: int, count: int) -> tuple[int, ...]:
    """At most ``count`` ids from ``start`` on."""
    packed = tokens.packed[start * _ID_BYTES : (start + count) * _ID_BYTES]
    return tuple(Tokens(packed).ids())

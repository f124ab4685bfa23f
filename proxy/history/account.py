"""The account of one request: what was known when it was dispatched, and from that its record."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slotwise.policies.attribution import (
    NO_SECTION,
    Attribution,
    Cause,
    Earlier,
    Facts,
    Span,
    attribute,
    avoided_s,
    section_at,
    shares,
)
from slotwise.policies.params import Cost
from slotwise.policies.prefix import Tokens
from slotwise.policies.types import Request
from slotwise.proxy.core.actions import Dispatch
from slotwise.proxy.core.events import Failure, RequestFailed, RequestFinished
from slotwise.proxy.history.computed import Chain, Prompt
from slotwise.proxy.history.record import Changed, Displaced, Known, Record

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
    displaced: Displaced | None = None  # what became of that prefix, where known
    processed: int = 0  # tokens of the prompt computed so far
    known: Known = field(default_factory=Known)


def finished(account: Account, event: RequestFinished, cost: Cost, time: float) -> Record:
    """The record of a request whose final event was read at ``time``."""
    n, cached = len(account.request.tokens), event.cached_tokens
    told = n if event.prompt_tokens is None else event.prompt_tokens
    record = _unattributed(account, told, time, event.completion_tokens)
    if cached is None:
        return record
    cached = min(max(cached, 0), told)
    if told != n:
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

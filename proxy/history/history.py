"""What became of every request: fed like the metrics, it gives one :class:`Record` per ending.

Kept are the last prompt of each conversation (to see what changed), the digests of all that was
ever computed (to tell what is new from what was displaced) and the last records. All of it is in
memory and bounded, and the records hold no prompt: only the few token ids around a difference.

Facts are taken at the moment of the dispatch: what others compute meanwhile was not there to be
used. Times are seconds on the caller's clock; ``offset_s`` turns them into the time of day.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from slotwise.policies.attribution import Cause
from slotwise.policies.params import Cost
from slotwise.policies.prefix import lcp
from slotwise.policies.types import SlotId
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineLost,
    Event,
    Failure,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
)
from slotwise.proxy.history import record as account
from slotwise.proxy.history.computed import (
    BLOCK_TOKENS,
    DEFAULT_MOST,
    Blocks,
    Prompt,
    Prompts,
    chain,
)
from slotwise.proxy.history.record import Account, Displaced, Record

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


DEFAULT_KEEP_BYTES = 64 * 2**20
_MOST_RECORDS = 1000
_MOST_DISPLACED = 4096


class History:
    """All that is remembered of one proxy's requests."""

    def __init__(
        self,
        cost_of: Callable[[str], Cost],
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        *,
        offset_s: float = 0.0,
        most_blocks: int = DEFAULT_MOST,
    ) -> None:
        """``cost_of``: what work costs now, by the profile's name. ``keep_bytes`` bounds the
        prompts that are kept, ``offset_s`` is the time of day at 0."""
        self._cost_of = cost_of
        self._offset_s = offset_s
        self._open: dict[str, Account] = {}
        self._prompts = Prompts(keep_bytes)
        self._blocks = Blocks(most_blocks)
        self._displaced: OrderedDict[str, Displaced] = OrderedDict()
        self._held_by: dict[SlotId, str] = {}  # whose prompt a slot last computed
        self._records: deque[Record] = deque(maxlen=_MOST_RECORDS)
        self._hours: defaultdict[str, LastHour] = defaultdict(LastHour)  # by profile

    # ------------------------------------------------------------ what happens

    def observe(self, event: Event, actions: Iterable[Action], now: float) -> Record | None:
        """Take one ``handle`` call of the scheduler; returns the record of what it ended."""
        record: Record | None = None
        match event:
            case RequestArrived(request=request):
                self._open[request.id] = Account(request, now)
            case RequestCancelled(id=id):
                waiting = self._open.get(id)
                if waiting and waiting.dispatch is None:
                    del self._open[id]
            case RequestProgressed(id=id, processed=processed):
                if id in self._open:
                    self._open[id].processed = max(self._open[id].processed, processed)
            case RequestFinished():
                record = self._finished(event, now)
            case RequestFailed():
                record = self._failed(event, now)
            case EngineLost(engine=engine):
                self._lost(engine, now)
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatched(action, now)
            elif isinstance(action, Refuse):
                self._open.pop(action.id, None)
        if record is not None:
            self._records.append(record)
            self._hours[record.profile].add(record)
        return record

    def note(self, id: str, **known: Any) -> None:
        """What the shell learns of a request before its end: fields of :class:`Known`; None:
        nothing new. A request that is not open is ignored."""
        entry = self._open.get(id)
        if entry is not None:
            new = {name: value for name, value in known.items() if value is not None}
            entry.known = replace(entry.known, **new)

    # ------------------------------------------------------------ what can be asked

    def record(self, id: str) -> Record | None:
        """The record of one request; None: not ended, or too long ago."""
        return next((r for r in reversed(self._records) if r.id == id), None)

    def records(self, session: str | None = None, last: int | None = None) -> list[Record]:
        """The newest ``last`` records, of one session or of all, oldest first."""
        found = (r for r in reversed(self._records) if session is None or r.session == session)
        return list(islice(found, last))[::-1]

    def last_hour(self, profile: str, now: float) -> Sums:
        """What became of the tokens of the requests that ended in the hour before ``now``."""
        return self._hours[profile].sums(self.time_of_day(now))

    def time_of_day(self, now: float) -> float:
        """Seconds since the epoch."""
        return now + self._offset_s

    def kept(self) -> dict[str, int]:
        """What is held in memory, for the status page."""
        return {
            "records": len(self._records),
            "prompts": len(self._prompts),
            "prompt_bytes": self._prompts.kept_bytes,
            "blocks": len(self._blocks),
        }

    # ------------------------------------------------------------ the parts

    def _dispatched(self, action: Dispatch, now: float) -> None:
        """Take down what is known of the prompt at this moment."""
        entry = self._open.get(action.id)
        if entry is None:
            return
        request = entry.request
        entry.dispatch = action
        earlier = entry.earlier = self._prompts.last(request)
        shared = 0
        if earlier is not None:
            entry.common = lcp(request.tokens, earlier.tokens)
            shared = entry.common // BLOCK_TOKENS
        entry.digests = chain(
            request.profile, request.tokens, earlier.digests[:shared] if earlier else ()
        )
        entry.ever, owner = self._blocks.longest(entry.digests, len(request.tokens))
        if earlier is not None and min(entry.common, earlier.computed) >= entry.ever:
            owner = earlier.id
        entry.displaced = self._displaced.get(owner) if owner is not None else None
        if action.displaces is not None:
            self._displace(action.displaces, Displaced(action.id, now + self._offset_s))

    def _finished(self, event: RequestFinished, now: float) -> Record | None:
        entry = self._ended(event.id)
        if entry is None:
            return None
        cost = self._cost_of(entry.request.profile)
        made = account.finished(entry, event, cost, now + self._offset_s)
        self._computed(entry, len(entry.request.tokens), event.completion_tokens or 0)
        return replace(made, took_s=now - entry.arrived)

    def _failed(self, event: RequestFailed, now: float) -> Record | None:
        entry = self._ended(event.id)
        if entry is None or entry.dispatch is None:
            return None
        if account.touched(event):
            n = len(entry.request.tokens)
            computed = n if event.generated else min(entry.processed, n)
            self._computed(entry, computed, event.generated)
        elif entry.dispatch.displaces is not None:
            self._displaced.pop(entry.dispatch.displaces, None)  # it is still there
        if event.failure is Failure.ENGINE_LOST:
            self._displace(event.id, Displaced("", now + self._offset_s))
        made = account.failed(entry, event, now + self._offset_s)
        return replace(made, took_s=now - entry.arrived)

    def _ended(self, id: str) -> Account | None:
        """Close the account of a dispatched request."""
        entry = self._open.pop(id, None)
        return entry if entry is not None and entry.dispatch is not None else None

    def _computed(self, entry: Account, computed: int, generated: int) -> None:
        """The engine has computed so much of this prompt, then an answer, whose last token is
        sampled and never fed back."""
        if not computed or entry.dispatch is None:
            return
        request = entry.request
        self._blocks.add(entry.digests, len(request.tokens), computed, request.id)
        answer = max(0, generated - 1)
        prompt = Prompt(request.id, request.tokens, entry.digests, computed, answer)
        self._prompts.keep(request, prompt)
        self._held_by[entry.dispatch.slot] = request.id

    def _lost(self, engine: str, now: float) -> None:
        for slot in [slot for slot in self._held_by if slot.engine == engine]:
            self._displace(self._held_by.pop(slot), Displaced("", now + self._offset_s))

    def _displace(self, id: str, displaced: Displaced) -> None:
        self._displaced[id] = displaced
        self._displaced.move_to_end(id)
        if len(self._displaced) > _MOST_DISPLACED:
            self._displaced.popitem(last=False)

"""Who waits: conversations and keys as they are remembered, and the requests in the queue."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slotwise.policies import continuation
from slotwise.policies.affinity import EXPIRE_S
from slotwise.policies.order import Class
from slotwise.policies.params import Params
from slotwise.policies.ram_cache import RamCache
from slotwise.policies.regret import Loss, Obstacle, waiting_for
from slotwise.policies.types import SIDE_JOB, Match, Parked, Reason, Request, Wait, WaitingView
from slotwise.policies.working_set import Context, counts
from slotwise.proxy.core.mirror import SlotMirror

_MOST_CONTEXTS = 512
_MOST_KEYS = 1024
_HALF_LIFE_S = 60.0  # of what a key was served
BACKGROUND_KINDS = (SIDE_JOB, "summary")


class Contexts:
    """The conversations of one profile, the least recently seen first; bounded."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Context] = OrderedDict()
        # Those that count as live: mostly few, where hundreds are remembered. Each decision
        # weighs them all.
        self._counted: OrderedDict[str, Context] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def sessions(self) -> list[str]:
        """Their ids."""
        return list(self._known)

    def counted(self) -> Iterable[Context]:
        """Those that take part in the working set."""
        return self._counted.values()

    def arrived(self, request: Request, now: float) -> tuple[Context, bool]:
        """The request's conversation, and whether this is the first that is seen of it.

        Side jobs and requests without a session have none: a new one is made, and forgotten.
        """
        if not request.session or request.kind in BACKGROUND_KINDS:
            return Context(now, len(request.tokens), request.turns), False
        self._forget(now)
        context = self._known.get(request.session)
        is_new = context is None
        if context is None:
            context = self._known[request.session] = Context(now)
        context.last_seen = now
        context.tokens = len(request.tokens)
        context.turns = max(context.turns + 1, request.turns)
        context.open += 1
        self._seen(request.session, context)
        return context, is_new

    def ended(self, request: Request, now: float, calling: bool = False) -> None:
        """The request was answered, or its client left. ``calling``: the answer asked for tools."""
        context = self._known.get(request.session)
        if context is None or request.kind in BACKGROUND_KINDS:
            return
        context.open = max(0, context.open - 1)
        context.last_seen = now
        context.calling = calling
        self._seen(request.session, context)

    def _seen(self, session: str, context: Context) -> None:
        """It changed: it is the last one now, and counts or does not."""
        self._known.move_to_end(session)
        self._counted.pop(session, None)
        if counts(context):
            self._counted[session] = context

    def _forget(self, now: float) -> None:
        while self._known:
            session, context = next(iter(self._known.items()))
            old = not context.open and now - context.last_seen >= EXPIRE_S
            if not old and len(self._known) < _MOST_CONTEXTS:
                return
            del self._known[session]
            self._counted.pop(session, None)


class KeyService:
    """What each key was served lately: seconds of the engine's work, by the costs, decayed."""

    def __init__(self) -> None:
        self._served: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def of(self, key: str, now: float) -> float:
        """Seconds."""
        amount, at = self._served.get(key, (0.0, now))
        return amount * math.pow(0.5, max(0.0, now - at) / _HALF_LIFE_S)

    def all(self, now: float) -> dict[str, float]:
        """Seconds, by key."""
        return {key: self.of(key, now) for key in self._served}

    def add(self, key: str, seconds: float, now: float) -> None:
        amount = self.of(key, now) + seconds
        self._served[key] = (amount, now)
        self._served.move_to_end(key)
        if len(self._served) > _MOST_KEYS:
            self._served.popitem(last=False)


_LEAST_RECHECK_S = 1e-3  # a timer that cannot fire at the very same time again


@dataclass(slots=True, eq=False)
class Waiter:
    """A request between its arrival and its placement."""

    view: WaitingView
    deadline: float  # s
    context: Context  # its conversation
    versions: list[int] = field(default_factory=list)  # of the mirrors it was compared with
    epoch: int = -1  # the sum of them
    ram_caches: dict[str, RamCache] = field(default_factory=dict)  # as they were looked into
    reason: Reason = Reason.NONE
    why: str = ""
    recheck: float | None = None  # s
    place: Class = Class.NEWCOMER  # in the line, as of the last decision
    home_busy: bool = False  # it has waited for its home
    overtaken_by: set[str] = field(default_factory=set)  # requests that came later and run
    returns: int | None = None  # conversations that had come back when it was first held
    since: float = 0.0  # when it began to wait for what it waits for now (s)
    _lost_s: dict[Obstacle, float] = field(default_factory=dict)

    def compare(
        self,
        mirrors: list[SlotMirror],
        ram_caches: Mapping[str, RamCache],
        epoch: int,
        params: Params,
    ) -> None:
        """Bring the matches up to date: only slots whose view changed are compared again.

        ``epoch`` is the sum of the mirrors' versions: they only grow, so an equal sum means that
        nothing changed.
        """
        if epoch == self.epoch:
            return
        versions, matches, request = self.versions, self.view.matches, self.view.request
        self.epoch = epoch
        changed = False
        shared = 0
        for index, mirror in enumerate(mirrors):
            if versions[index] != mirror.version:
                changed = True
                versions[index] = mirror.version
                content = mirror.content
                # What it shared with the content before, or shares with another slot's: often
                # all of them share the client's head, and part behind it.
                guess = matches[index].lcp or shared
                matches[index] = continuation.match(
                    request, content.view, content.session, params, guess
                )
                shared = matches[index].lcp
        if changed:
            self.view.owns = continuation.owns(matches)
        for name, ram_cache in ram_caches.items():
            if self.ram_caches.get(name) is not ram_cache:
                self._look_into(name, ram_cache)

    def _look_into(self, engine: str, ram_cache: RamCache) -> None:
        self.ram_caches[engine] = ram_cache
        self.view.parked.pop(engine, None)
        shared, state = ram_cache.best(self.view.request.tokens)
        if state is not None:
            self.view.parked[engine] = Parked(shared, state)

    def restart(self, mirrors: list[SlotMirror]) -> None:
        """The set of slots changed: every comparison is to be made anew."""
        self.versions = [-1] * len(mirrors)
        self.epoch = -1
        self.view.matches = [Match(0, False, False, "stranger")] * len(mirrors)
        self.view.owns = False
        self.view.parked = {}
        self.ram_caches = {}

    def hold(self, verdict: Wait, now: float, returns: int = 0) -> None:
        """It goes on waiting, for this reason."""
        if verdict.reason is not self.reason:
            self._waited(now)
            self.reason = verdict.reason
            if verdict.reason is Reason.HELD and self.returns is None:
                self.returns = returns
            self.home_busy |= verdict.reason is Reason.HOME_BUSY
        self.why = verdict.why
        self.recheck = None
        if verdict.recheck_s is not None:
            self.recheck = now + max(_LEAST_RECHECK_S, verdict.recheck_s)

    def overtaken(self, by: str, now: float) -> None:
        """A request that came later was placed first."""
        if not self.overtaken_by:
            self._waited(now)
        self.overtaken_by.add(by)

    def overtaker_ended(self, id: str, now: float) -> None:
        """If that one was placed first, it is not in the way any more."""
        if self.overtaken_by == {id}:
            self._waited(now)
        self.overtaken_by.discard(id)

    def lost(self, now: float) -> list[Loss]:
        """The seconds it has waited, by what for."""
        self._waited(now)
        return [Loss(obstacle, seconds) for obstacle, seconds in self._lost_s.items() if seconds]

    def _waited(self, now: float) -> None:
        obstacle = waiting_for(self.reason, bool(self.overtaken_by))
        if obstacle is not None:
            self._lost_s[obstacle] = self._lost_s.get(obstacle, 0.0) + now - self.since
        self.since = now

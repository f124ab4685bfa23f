"""What the scheduler remembers of conversations and of keys, beyond what a slot shows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

from slotwise.policies.affinity import EXPIRE_S
from slotwise.policies.types import SIDE_JOB, Request
from slotwise.policies.working_set import Context, counts

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


class Services:
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

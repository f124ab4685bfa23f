"""The scheduler and the history before a model engine that keeps real answers, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from slotwise.policies.attribution import Cause
from slotwise.policies.prefix import lcp, pack
from slotwise.policies.types import Request, Section
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineLost,
    EngineReady,
    Event,
    Failure,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    Tick,
)
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.history.history import DEFAULT_KEEP_BYTES, History
from slotwise.proxy.history.record import Record
from tests.proxy.script import params

OFFSET_S = 1000.0
# A second passes with every event: no request waits for more conversations to end.
_AT_ONCE: dict[str, Any] = {"keep": False}
Part = tuple[str, Sequence[int]]  # the name of a section, its token ids


def ids(name: str, n: int) -> list[int]:
    """Token ids that only this name has."""
    start = crc32(name.encode())
    return [(start + 7919 * k) % 1_000_003 for k in range(n)]


class World:
    """One profile ``p``, one engine ``e``; a request is sent, computed and ended at once."""

    def __init__(self, slots: int = 2, keep_bytes: int = DEFAULT_KEEP_BYTES, **policy: Any) -> None:
        knobs = params(**{**_AT_ONCE, **policy})
        self.scheduler = Scheduler({"p": knobs})
        self.history = History(self.scheduler.cost, keep_bytes, offset_s=OFFSET_S, most_blocks=4096)
        self.now = 0.0
        self.slots = slots
        self.requests: dict[str, Request] = {}  # that have not ended
        self.running: dict[str, tuple[int, int, list[int]]] = {}  # slot, reused, held before
        self.placed_at: dict[str, float] = {}
        self.start_engine()

    def start_engine(self) -> None:
        self.content: list[list[int]] = [[] for _ in range(self.slots)]
        self.feed(EngineReady("e", "p", (100_000,) * self.slots, None, pins=True))

    def lose_engine(self) -> None:
        self.feed(EngineLost("e", "exited"))

    def feed(self, event: Event) -> Record | None:
        self.now += 1
        actions: list[Action] = self.scheduler.handle(event, self.now)
        for action in actions:
            if isinstance(action, Dispatch):
                self._start(action)
        return self.history.observe(event, actions, self.now)

    def arrive(self, id: str, parts: Sequence[Part], session: str = "", **more: Any) -> Request:
        """``parts`` make the prompt and its sections; the first user's end is found in them."""
        row: list[int] = []
        sections: list[Section] = []
        first_user_end = 0
        for message, (name, part) in enumerate(parts):
            row += part
            sections.append(Section(name, message, len(row)))
            if name == "user" and not first_user_end:
                first_user_end = len(row)
        turns = 1 + sum(name == "assistant" for name, _ in parts)
        request = Request(
            id=id,
            profile="p",
            tokens=pack(row),
            first_user_end=first_user_end,
            turns=turns,
            max_tokens=None,
            stream=True,
            session=session,
            sections=tuple(sections),
            **{"key": "k", **more},
        )
        self.requests[id] = request
        self.feed(RequestArrived(request))
        return request

    def _start(self, dispatch: Dispatch) -> None:
        request, slot = self.requests[dispatch.id], dispatch.slot.id_slot
        before = self.content[slot]
        cached = min(lcp(pack(before), request.tokens), len(request.tokens) - 1)
        self.content[slot] = request.tokens.ids()[:cached]
        self.running[dispatch.id] = (slot, cached, before)
        self.placed_at[dispatch.id] = self.now + OFFSET_S

    def until_placed(self, id: str) -> None:
        """What must wait for its slot waits."""
        while id not in self.running:
            assert self.now < 10_000
            self.feed(Tick())

    def finish(
        self, id: str, answer: Sequence[int] = (1,), cached: int | None = None, **told: Any
    ) -> Record:
        """The engine is done; it reports what it reused, unless ``cached`` says otherwise."""
        self.until_placed(id)
        request, (slot, reused, _) = self.requests.pop(id), self.running.pop(id)
        self.content[slot] = [*request.tokens.ids(), *answer[:-1]]
        n = told.get("prompt_tokens", len(request.tokens))
        reported = reused if cached is None else cached
        said = None if told.get("silent") else reported
        record = self.feed(RequestFinished(id, n, said, len(answer), None))
        assert record is not None
        return record

    def fail(self, id: str, failure: Failure, processed: int = 0, **how: Any) -> Record:
        self.until_placed(id)
        request, (slot, _, before) = self.requests.pop(id), self.running.pop(id)
        if failure is Failure.REFUSED:
            self.content[slot] = before
        if processed:
            self.content[slot] = request.tokens.ids()[:processed]
            self.feed(RequestProgressed(id, processed, 0))
        record = self.feed(RequestFailed(id, failure, **how))
        assert record is not None
        return record

    def ask(
        self,
        id: str,
        parts: Sequence[Part],
        session: str = "",
        answer: Sequence[int] = (1,),
        cached: int | None = None,
        **more: Any,
    ) -> Record:
        """A request that runs at once and finishes."""
        self.arrive(id, parts, session, **more)
        return self.finish(id, answer, cached)


def by_cause(record: Record) -> dict[str, int]:
    """Tokens of each cause; they add up to the prompt, or the test ends here."""
    counts = record.tokens()
    assert sum(counts.values()) == record.prompt_tokens
    assert counts.get(Cause.CACHED, 0) == (record.cached or 0)
    return {cause.value: count for cause, count in counts.items()}


TOOLS = ("tools", ids("tools", 200))
SYSTEM = ("system", ids("system", 100))
USER = ("user", ids("user", 50))
ANSWER = ids("answer", 40)
FIRST: list[Part] = [TOOLS, SYSTEM, USER]
SECOND: list[Part] = [*FIRST, ("assistant", ANSWER), ("user", ids("more", 30))]
N = 350  # tokens of FIRST
# the least recently used slot takes whatever comes
BLIND: dict[str, Any] = dict.fromkeys(("home", "guest", "affinity"), False)

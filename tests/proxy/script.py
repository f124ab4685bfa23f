"""Short scripts of events for the scheduler: builders with defaults for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slotwise.policies.params import Cost, Params
from slotwise.policies.prefix import Tokens, pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Action,
    Dispatch,
    EngineReady,
    Failure,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    SlotReport,
    SlotsReported,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.scheduler import Scheduler

# One millisecond a token and nothing else, so that seconds in a test are easy to foresee.
PLAIN_COST = Cost(prefill_c_s=0, prefill_a_s=1e-3, prefill_b_s=0, decode_s=0.01, expected_output=10)
# The same where answers are expected to take long: whoever comes later stands in a long line.
LONG_ANSWERS = replace(PLAIN_COST, expected_output=100_000)
HEAD = ("head", 1000)  # a client's system text and tools


def params(**policy: Any) -> Params:
    """Parameters with plain costs and room to run, and what ``policy`` says."""
    return replace(Params(max_running=8, cost=PLAIN_COST), **policy)


def scheduler(
    slots: int = 2,
    window: int | Sequence[int] = 100_000,
    pool: int | None = None,
    pins: bool = True,
    **policy: Any,
) -> Scheduler:
    """A scheduler with one profile ``p`` and one ready engine ``e``."""
    s = Scheduler({"p": params(**policy)})
    windows = (window,) * slots if isinstance(window, int) else tuple(window)
    s.handle(EngineReady("e", "p", windows, pool, pins), 0.0)
    return s


def text(*parts: tuple[str, int]) -> Tokens:
    """Token ids from named parts: ``("head", 100)`` is 100 ids that only ``head`` has."""
    return pack(
        (sum(name.encode()) * 7919 + len(name) * 104729 + k) % 1_000_003
        for name, n in parts
        for k in range(n)
    )


def arrived(
    id: str,
    tokens: Tokens,
    first_user_end: int | None = None,
    turns: int = 1,
    max_tokens: int | None = None,
    stream: bool = True,
    key: str = "k",
) -> RequestArrived:
    """A request; by default its whole prompt is its first user turn."""
    end = len(tokens) if first_user_end is None else first_user_end
    return RequestArrived(Request(id, "p", tokens, end, turns, max_tokens, stream, key))


def finished(
    id: str, prompt: int | None = None, cached: int | None = None, out: int | None = 1
) -> RequestFinished:
    return RequestFinished(id, prompt, cached, out, None)


def failed(id: str, failure: Failure = Failure.CLIENT_GONE, generated: int = 0) -> RequestFailed:
    return RequestFailed(id, failure, generated)


def cancelled(id: str) -> RequestCancelled:
    return RequestCancelled(id)


def slots(asked_at: float, *reports: tuple[int, bool, int]) -> SlotsReported:
    """A ``/slots`` reply: (id_slot, busy, tokens held) each."""
    return SlotsReported("e", asked_at, tuple(SlotReport(*r) for r in reports))


def dispatches(actions: list[Action]) -> list[tuple[str, int, str]]:
    """(request, id_slot, rule) of each dispatch."""
    return [(a.id, a.slot.id_slot, a.rule.value) for a in actions if isinstance(a, Dispatch)]


def serve(s: Scheduler, event: RequestArrived, now: float, out: int = 1) -> int:
    """A request that is placed at once and finishes at once; returns its slot."""
    placed = dispatches(s.handle(event, now))
    assert [id for id, _, _ in placed] == [event.request.id], placed
    s.handle(finished(event.request.id, len(event.request.tokens), out=out), now)
    return placed[0][1]


def next_wake(actions: list[Action]) -> float | None:
    """When the scheduler asked to be woken, the latest word of these actions."""
    return next((a.at for a in reversed(actions) if isinstance(a, WakeAt)), None)


def tick(s: Scheduler, now: float) -> list[Action]:
    return s.handle(Tick(), now)


def chat(name: str, turn: int, head: tuple[str, int] = HEAD) -> tuple[tuple[str, int], ...]:
    """The parts of a conversation's prompt: head, first user turn, then 300 tokens a turn."""
    later = [(f"{name}{k}", 300) for k in range(2, turn + 1)]
    return (head, (f"{name}1", 200), *later)


def turn(id: str, name: str, n: int, key: str = "k") -> RequestArrived:
    """Arrival of turn ``n`` of a conversation; its first user turn ends at token 1200."""
    return arrived(id, text(*chat(name, n)), first_user_end=1200, turns=n, key=key)


def in_session(id: str, session: str, *parts: tuple[str, int], turns: int = 2) -> RequestArrived:
    """A turn of a client that names its session; the first user turn ends with the second part."""
    request = arrived(id, text(*parts), parts[0][1] + parts[1][1], turns).request
    return RequestArrived(replace(request, session=session))


def resident(s: Scheduler, name: str, at: float, turns: int = 3, n: int = 20_000) -> int:
    """A long conversation of several turns; returns its slot."""
    return serve(s, arrived(f"{name}@{at}", text((name, n)), n // 2, turns), at)


def title(id: str, n: int = 300) -> RequestArrived:
    """A title job: one short turn that shares nothing."""
    return arrived(id, text((f"title {id}", n)))


def of(event: RequestArrived, **changes: object) -> RequestArrived:
    """The same arrival with other fields of its request."""
    return RequestArrived(replace(event.request, **changes))  # type: ignore[arg-type]

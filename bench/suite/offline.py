"""Reuse by choice of slot alone: rules compared in virtual time, without an engine.

Requests come one at a time and an engine does exactly as told: a slot holds the last prompt it
served (and its answer), and a new prompt reuses the common prefix. What is left is the choice of
slot, which is what is compared: slotwise's own scheduler object against the plain rules that other
servers use, and against the bounds of what any choice could reach.

    python -m slotwise.bench.suite.offline --tokenizer tokenizer.json [TRACE ...] [--pairs 4/4,8/4]
        [--answers]
    python -m slotwise.bench.suite.offline claude_code.blocks [--replaced]
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from slotwise.bench.sim import bounds
from slotwise.bench.sim import load as asks
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.trace import trace, workload
from slotwise.bench.trace.report import (
    count,
    mapping,
    markdown_table,
    pairs,
    parser_of,
    seconds,
)
from slotwise.bench.trace.rows import Renderer, Row, total
from slotwise.policies.params import Params, from_mapping
from slotwise.policies.prefix import EMPTY, Tokens, lcp
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Dispatch,
    EngineReady,
    RequestArrived,
    RequestFinished,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.scheduler import Scheduler

TRACES = ("tau_airline", "sweagent", "miniswe", "opendevin", "oasst", "mix")
MIX = ("tau_airline", "sweagent", "miniswe", "opendevin", "oasst")
PAIRS = "4/4,8/4,8/8,4/2"
WINDOW_TOKENS = 131072
TIMER_LATE_S = 1e-3  # as real timers are


@dataclass(slots=True)
class Slot:
    """What a slot holds, and since which request."""

    held: Tokens = EMPTY
    session: str | None = None
    last_used: int = -1


Choice = Callable[[Row, list[Slot]], int]
"""Which slot a request takes."""


def longest_prefix(row: Row, slots: list[Slot]) -> int:
    """The slot with the longest common prefix; among equals the least recently used."""
    return max(
        range(len(slots)), key=lambda n: (lcp(row.prompt, slots[n].held), -slots[n].last_used)
    )


def llama_server(row: Row, slots: list[Slot], similarity: float = 0.1) -> int:
    """llama-server's rule: the longest prefix if it is over a tenth of the prompt, else LRU."""
    best, found = 0, 0
    for n, slot in enumerate(slots):
        common = lcp(row.prompt, slot.held)
        if common > found:
            best, found = n, common
    return best if found > similarity * len(row.prompt) else _oldest(slots)


def session_pin(row: Row, slots: list[Slot]) -> int:
    """The slot the session used last while it holds it still, else LRU."""
    for n, slot in enumerate(slots):
        if slot.session == row.session:
            return n
    return _oldest(slots)


def _oldest(slots: list[Slot]) -> int:
    return min(range(len(slots)), key=lambda n: slots[n].last_used)


def reuse(rows: Sequence[Row], slots: int, choose: Choice) -> int:
    """Prompt tokens reused when each request takes the slot that ``choose`` names."""
    held = [Slot() for _ in range(slots)]
    found = 0
    for number, row in enumerate(rows):
        slot = held[choose(row, held)]
        found += bounds.reusable(row.prompt, slot.held)
        slot.held, slot.session, slot.last_used = row.full, row.session, number
    return found


class Slotwise:
    """The real scheduler in virtual time, as a choice of slot.

    ``think_s``: virtual time between one request's end and the next one's arrival. ``timed``: the
    rows' own times instead, with what else is recorded of them.
    """

    def __init__(
        self,
        slots: int,
        params: Params,
        think_s: float,
        timed: Sequence[tuple[float, Ask]] | None = None,
    ) -> None:
        self._now = 0.0
        self._timed = timed
        self._think_s = think_s
        self._number = 0
        self.rules: dict[str, int] = {}  # how often each rule placed a request
        self.held_s = 0.0  # virtual time that requests waited for a slot
        self._scheduler = Scheduler({"bench": params})
        self._scheduler.handle(
            EngineReady("e0", "bench", (WINDOW_TOKENS,) * slots, None, True), self._now
        )

    def __call__(self, row: Row, slots: list[Slot]) -> int:
        """Let the request arrive, wait as long as the scheduler says, finish it at once."""
        tool_calls, session = False, ""
        if self._timed is None:
            self._now += self._think_s
        else:
            at, ask = self._timed[self._number]
            self._now = max(self._now, at)
            tool_calls, session = ask.tool_calls, row.session
        self._number += 1
        request = Request(
            id=f"r{self._number}",
            profile="bench",
            tokens=row.prompt,
            first_user_end=row.first_user_end,
            turns=row.turns,
            max_tokens=row.max_tokens,
            stream=True,
            key="bench",
            session=session,
        )
        dispatch = self._placed(RequestArrived(request))
        slot = slots[dispatch.slot.id_slot]
        self._now += 1.0  # the request's own run
        self._scheduler.handle(
            RequestFinished(
                id=dispatch.id,
                prompt_tokens=len(row.prompt),
                cached_tokens=bounds.reusable(row.prompt, slot.held),
                completion_tokens=len(row.full) - len(row.prompt) + 1,
                id_slot=dispatch.slot.id_slot,
                tool_calls=tool_calls,
            ),
            self._now,
        )
        self.rules[dispatch.rule] = self.rules.get(dispatch.rule, 0) + 1
        self.held_s += dispatch.waited_s
        return dispatch.slot.id_slot

    def _placed(self, event: RequestArrived) -> Dispatch:
        actions = self._scheduler.handle(event, self._now)
        for _ in range(1000):
            wakes = []
            for action in actions:
                if isinstance(action, Dispatch):
                    return action
                if isinstance(action, WakeAt):
                    wakes.append(action.at)
            if not wakes:
                break
            self._now = max(self._now, min(wakes)) + TIMER_LATE_S
            actions = self._scheduler.handle(Tick(), self._now)
        raise RuntimeError(f"{event.request!r} was never placed: {actions}")


def compare(
    rows: Sequence[Row],
    slots: int,
    params: Params,
    think_s: float,
    timed: Sequence[tuple[float, Ask]] | None = None,
) -> dict[str, float | str]:
    """Reuse ratio by rule, and both bounds, for one order of requests."""
    tokens = max(total(rows), 1)
    slotwise = Slotwise(slots, params, think_s, timed)
    result: dict[str, float | str] = {"slotwise": reuse(rows, slots, slotwise) / tokens}
    for choice in (longest_prefix, llama_server, session_pin):
        result[choice.__name__] = reuse(rows, slots, choice) / tokens
    optimum = bounds.slots(rows, slots)
    result["optimum"] = optimum / tokens
    result["of optimum"] = float(result["slotwise"]) * tokens / optimum if optimum else 1.0
    result["infinite"] = bounds.infinite(rows) / tokens
    result["rules"] = " ".join(f"{rule}:{n}" for rule, n in sorted(slotwise.rules.items()))
    result["held_s"] = slotwise.held_s / max(len(rows), 1)
    return result


def one_at_a_time(load: Workload, run_s: float = 1.0) -> list[tuple[float, Ask]]:
    """The turns of a closed loop in the order in which an engine would get them that serves each
    at once, within ``run_s``; with the time at which each comes. Guests are left out."""
    later, heap = deque(load.sessions), list[tuple[float, int, list[Ask], int]]()
    came: list[tuple[float, Ask]] = []

    def begin(now: float) -> None:
        if later:
            session = later.popleft()
            heapq.heappush(heap, (now + session[0].pause_s, len(later), session, 0))

    for _ in range(load.live or len(later)):
        begin(0.0)
    now = 0.0
    while heap:
        at, number, session, k = heapq.heappop(heap)
        now = max(now, at)
        came.append((now, session[k]))
        now += run_s
        if k + 1 < len(session):
            heapq.heappush(heap, (now + session[k + 1].pause_s, number, session, k + 1))
        else:
            begin(now)
    return came


def block_rows(
    name: str, live: int, seed: int, replaced: bool
) -> tuple[list[Row], list[tuple[float, Ask]]]:
    """Turns of a trace without text, ``live`` sessions of it or, ``replaced``, all its sessions
    with so many at a time."""
    shape = asks.Shape(sessions=live, total=None if replaced else live, guest_share=0)
    recorded = asks.Recorded(trace.find(name), shape)
    timed = one_at_a_time(asks.closed_loop(recorded, shape, seed))
    return [ask.row for _, ask in timed], timed


def calls_of(name: str) -> list[trace.Call]:
    """The calls of a trace; ``mix`` is one of several."""
    names = MIX if name == "mix" else (name,)
    return [call for part in names for call in trace.read(part)]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        params, faults = from_mapping(options.policy)
        if faults:
            raise ValueError(f"--policy: {'; '.join(faults)}")
        table = _table(options, params)
    except (ValueError, OSError) as error:
        print(f"slotwise.bench.suite.offline: {error}", file=sys.stderr)
        return 2
    print(markdown_table(table))
    return 0


def _table(options: argparse.Namespace, params: Params) -> list[dict[str, Any]]:
    jobs = [(name, live, slots) for name in options.traces for live, slots in options.pairs]
    table = []
    for name, live, slots in track(jobs, "replaying", console=Console(stderr=True), transient=True):
        timed: list[tuple[float, Ask]] | None = None
        if name.endswith(".blocks"):
            rows, timed = block_rows(name, live, options.seed, options.replaced)
        else:
            rows = _text_rows(name, live, options)
        shown = {"trace": name, "live/slots": f"{live}/{slots}", "calls": len(rows)}
        table.append({**shown, **compare(rows, slots, params, options.think, timed)})
    return table


def _text_rows(name: str, live: int, options: argparse.Namespace) -> list[Row]:
    if options.tokenizer is None:
        raise ValueError(f"--tokenizer: {name} is a trace of texts, name a tokenizer.json")
    calls = workload.interleave(calls_of(name), live, options.seed)[: options.calls]
    return Renderer(options.tokenizer).rows(calls, options.answers)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("slotwise.bench.suite.offline", __doc__)
    parser.add_argument("traces", nargs="*", default=TRACES, help="trace names; mix = several")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json, for traces of texts")
    parser.add_argument(
        "--replaced", action="store_true", help="when a session ends, the next begins"
    )
    parser.add_argument("--pairs", type=pairs, default=PAIRS, help="live/slots (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=count, help="the first so many calls only")
    parser.add_argument("--think", type=seconds, default=10.0, help="s between calls (%(default)s)")
    parser.add_argument("--answers", action="store_true", help="slots hold the recorded answers")
    parser.add_argument(
        "--policy", type=mapping, default={}, help="policy section as YAML, e.g. '{guest: {..}}'"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""What one scheduling decision costs: 64 requests wait for 8 slots, every prompt 60,000 tokens.

    python -m slotwise.bench.cost.decide_bench

The waiting prompts share a head with what the slots hold, a third of them is the next turn of a
slot's conversation, and all slots are at work with room left to run more, so that each event walks
the whole queue through the whole decision tree. Times are printed beside one naive comparison, a
Python loop over two equal prompts: a scheduler that compared naively would need 512 of those.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from slotwise.bench.trace.report import count, markdown_table, parser_of
from slotwise.policies.params import Params
from slotwise.policies.prefix import Tokens, pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Dispatch,
    EngineReady,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    Tick,
)
from slotwise.proxy.core.scheduler import Scheduler

PROMPT_TOKENS = 60_000
HEAD_TOKENS = 20_000
WINDOW_TOKENS = 131_072
PROFILE = "bench"
NAIVE = "one naive comparison"


@dataclass(frozen=True, slots=True)
class Size:
    """Of the situation that is timed."""

    waiting: int = 64
    slots: int = 8
    tokens: int = PROMPT_TOKENS
    rounds: int = 101


class Situation:
    """A scheduler whose slots are all at work, with a full queue."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._random = random.Random(1)
        self._now = 0.0
        self._count = 0
        self._head = self._random.choices(range(100_000), k=min(HEAD_TOKENS, size.tokens // 3))
        params = Params(max_running=size.slots * 2, max_waiting=size.waiting * 8, cold=False)
        self._scheduler = Scheduler({PROFILE: params})
        windows = (WINDOW_TOKENS,) * size.slots
        self.handle(EngineReady("engine", PROFILE, windows, None, True))
        self.running = [self.arrive(self.prompt()) for _ in range(size.slots)]
        for number in range(size.waiting):
            continues = self.running[number % size.slots].tokens if number % 3 == 0 else None
            self.arrive(self.prompt(continues))

    def handle(self, event: Event) -> list[Any]:
        """Feed one event, a hundredth of a second after the one before."""
        self._now += 0.01
        return list(self._scheduler.handle(event, self._now))

    def prompt(self, continues: Tokens | None = None) -> Tokens:
        """A new prompt with the common head, or one that goes on from another."""
        start = continues.ids()[:-100] if continues else self._head
        missing = self._size.tokens - len(start)
        return pack([*start, *self._random.choices(range(100_000), k=missing)])

    def request(self, tokens: Tokens) -> Request:
        """A request for this prompt; making it costs nothing that is timed."""
        self._count += 1
        return Request(
            id=f"r{self._count}",
            profile=PROFILE,
            tokens=tokens,
            first_user_end=len(self._head) + 1,
            turns=2,
            max_tokens=512,
            stream=True,
            key="bench",
        )

    def arrive(self, tokens: Tokens) -> Request:
        """Let a request arrive."""
        request = self.request(tokens)
        self.handle(RequestArrived(request))
        return request

    def waiting(self) -> int:
        """How many wait."""
        return len(self._scheduler.waiting(self._now))

    def turnover(self, event: RequestFinished) -> Request:
        """Feed the end of a request, which frees its slot for another; returns that one."""
        actions = self.handle(event)
        placed = next(action for action in actions if isinstance(action, Dispatch))
        return Request(placed.id, PROFILE, pack([]), 0, 1, None, True, "bench")


def median_ms(rounds: int, prepare: Callable[[], Any], work: Callable[[Any], Any]) -> float:
    """Median time of ``work`` alone, each time with what ``prepare`` made."""
    times = []
    for _ in range(rounds):
        given = prepare()
        begun = time.perf_counter()
        work(given)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def naive_lcp(a: list[int], b: list[int]) -> int:
    """What a straightforward scheduler would do for each pair."""
    common = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        common += 1
    return common


def measure(size: Size) -> list[dict[str, Any]]:
    """One row per case: name, median in ms, and how many naive comparisons that is."""
    ids = list(range(size.tokens))
    naive_ms = median_ms(min(size.rounds, 21), ids.copy, lambda copy: naive_lcp(ids, copy))
    cases = {
        NAIVE: naive_ms,
        "nothing new, all memoised": _memoised(size),
        "one new request": _one_new(size),
        "one slot changed": _one_slot_changed(size),
    }
    return [
        {"case": case, "median ms": ms, "naive comparisons": ms / naive_ms}
        for case, ms in cases.items()
    ]


def _memoised(size: Size) -> float:
    situation = Situation(size)
    return median_ms(size.rounds, Tick, situation.handle)


def _one_new(size: Size) -> float:
    """Each round one more request arrives, and leaves again untimed."""
    situation = Situation(size)
    arrived: list[Request] = []

    def prepare() -> RequestArrived:
        if arrived:
            situation.handle(RequestCancelled(arrived[-1].id))
        arrived.append(situation.request(situation.prompt()))
        return RequestArrived(arrived[-1])

    return median_ms(size.rounds, prepare, situation.handle)


def _one_slot_changed(size: Size) -> float:
    """Each round one request ends and another takes its slot: a new content for all to compare."""
    situation = Situation(size)
    running = list(situation.running)

    def prepare() -> RequestFinished:
        while situation.waiting() <= size.waiting:
            situation.arrive(situation.prompt())
        return RequestFinished(
            running.pop(0).id, size.tokens, size.tokens - 1, 100, None, prefill_s=0.1, decode_s=4.0
        )

    def work(event: RequestFinished) -> None:
        running.append(situation.turnover(event))

    return median_ms(min(size.rounds, 31), prepare, work)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = parser_of("slotwise.bench.cost.decide_bench", __doc__)
    parser.add_argument("--waiting", type=count, default=64)
    parser.add_argument("--slots", type=count, default=8)
    parser.add_argument("--tokens", type=count, default=PROMPT_TOKENS)
    parser.add_argument("--rounds", type=count, default=101)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rows = measure(Size(options.waiting, options.slots, options.tokens, options.rounds))
    print(orjson.dumps(rows).decode() if options.json else markdown_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())

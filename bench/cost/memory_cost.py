"""What admitted requests cost in memory, beside what their reserves said: ``python -m
slotwise.bench.cost.memory_cost``.

Long prompts, each new, one after the other through slotwise on a real engine with the tiny model.
Measured is what the processes of engine and slotwise have of their own (no file pages, which
MemAvailable counts as available); the reserve is what ``/slotwise/status`` says while the request
runs. Three promises are held against each other:

* no request makes more grow than it reserved, a page of the allocators aside;
* all of them together cost no more than they reserved together;
* keys and values are counted once: the engine has all of them at its start, no reserve has them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import psutil

from slotwise.bench.run import engines
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.trace.report import count, parser_of

MIB = 2**20
SLACK_BYTES = 2 * MIB  # of one request: allocators take pages in pieces, and give them back late
KV_BYTES_PER_TOKEN = 512  # of the tiny model
_POLL_S = 0.02
_LIMIT_S = 600.0
_SETTLED_S, _SETTLE_LIMIT_S = 3.0, 60.0


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """One request: what it reserved, and what grew from before it to after it (bytes)."""

    reserved: int
    grown: int


@dataclass(frozen=True, slots=True)
class MemoryOutcome:
    """All requests of a run; sizes in bytes."""

    at_start: int  # of the engine, ready
    kv: int  # of all its slots
    tokens: int  # of one prompt
    costs: tuple[MemoryCost, ...]

    def faults(self) -> list[str]:
        """Which promises were broken, in words; none: all hold."""
        found = []
        over = [c for c in self.costs if c.grown > c.reserved + SLACK_BYTES]
        if over:
            worst = max(over, key=lambda c: c.grown - c.reserved)
            reported = f"one took {_mib(worst.grown)} of {_mib(worst.reserved)} reserved"
            found.append(f"{len(over)} requests made more grow than they reserved: {reported}")
        if self.grown > self.reserved:
            reported = f"{_mib(self.grown)} grown, {_mib(self.reserved)} reserved"
            found.append(f"all together cost more than they reserved: {reported}")
        if self.at_start < self.kv:
            reported = f"{_mib(self.at_start)} at its start, {_mib(self.kv)} of keys and values"
            found.append(f"the engine had not taken its keys and values: {reported}")
        return found

    @property
    def grown(self) -> int:
        return sum(cost.grown for cost in self.costs)

    @property
    def reserved(self) -> int:
        return sum(cost.reserved for cost in self.costs)

    def lines(self) -> list[str]:
        """The run in words."""
        later = self.costs[1:] or self.costs
        kv_of_one = self.tokens * KV_BYTES_PER_TOKEN
        return [
            f"{len(self.costs)} requests of {self.tokens:,} tokens, one after the other",
            f"engine at its start        {_mib(self.at_start)}, "
            f"keys and values of all slots {_mib(self.kv)}",
            f"reserved by the first      {_mib(self.costs[0].reserved)} (with first-use scratch)",
            f"grown by the first         {_mib(self.costs[0].grown)}",
            f"reserved by a later one    {_mib(max(c.reserved for c in later))} at most; "
            f"its keys and values are {_mib(kv_of_one)} more",
            f"grown by a later one       {_mib(max(c.grown for c in later))} at most, "
            f"{_mib(sum(c.grown for c in later) // len(later))} in the mean",
            f"grown by all               {_mib(self.grown)} of {_mib(self.reserved)} reserved",
            *(self.faults() or ["every reserve held"]),
        ]


def measure(
    model: Model, requests: int, tokens: int, slots: int = 4, ctx: int = 32768
) -> MemoryOutcome:
    """Run them; raises ``bench.engines.ServerError`` where a server does not start."""
    with (
        engines.slotwise(model, slots, slots * ctx) as server,
        httpx.Client(base_url=server.url, timeout=_LIMIT_S) as client,
    ):
        vocabulary = client.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
        draw = random.Random(1)
        processes = _processes(server)
        _settled(processes)
        at_start = _own(processes[1:])
        costs = []
        for _ in range(requests):
            # Of ids that are no special tokens; each prompt shares nothing with another.
            prompt = [draw.randrange(vocabulary // 2, vocabulary) for _ in range(tokens)]
            costs.append(_cost(client, prompt, processes))
    return MemoryOutcome(at_start, slots * ctx * KV_BYTES_PER_TOKEN, tokens, tuple(costs))


def _settled(processes: Sequence[psutil.Process]) -> None:
    """Return once nothing grows any more: the start goes on behind the ready line."""
    until = time.monotonic() + _SETTLE_LIMIT_S
    size, since = _own(processes), time.monotonic()
    while time.monotonic() - since < _SETTLED_S and time.monotonic() < until:
        time.sleep(_POLL_S)
        now = _own(processes)
        if abs(now - size) > MIB:
            size, since = now, time.monotonic()


def _cost(client: httpx.Client, prompt: list[int], processes: list[psutil.Process]) -> MemoryCost:
    before = _own(processes)
    done = threading.Event()
    answers: list[httpx.Response] = []

    def send() -> None:
        try:
            body = {"prompt": prompt, "n_predict": 4, "stream": True}
            answers.append(client.post("/completion", json=body))
        finally:
            done.set()

    sending = threading.Thread(target=send)
    sending.start()
    reserved = 0
    while not done.wait(_POLL_S):
        reported = client.get("/slotwise/status").json()["memory"]["reserved_bytes"]
        reserved = max(reserved, reported)
    sending.join()
    if not answers or answers[0].status_code != httpx.codes.OK:
        raise engines.ServerError(
            f"a request failed: {answers[0].text if answers else 'no answer'}"
        )
    return MemoryCost(reserved, max(0, _own(processes) - before))


def _processes(server: Server) -> list[psutil.Process]:
    """slotwise, then what it started."""
    own = psutil.Process(server.pid)
    return [own, *own.children(recursive=True)]


def _own(processes: Sequence[psutil.Process]) -> int:
    """Memory that is the processes' own, in bytes."""
    found = [process.memory_info() for process in processes]
    return sum(info.rss - info.shared for info in found)


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.1f} MiB"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; status 1 where a promise was broken."""
    parser = parser_of("slotwise.bench.cost.memory_cost", __doc__)
    parser.add_argument("--requests", type=count, default=100, help="(%(default)s)")
    parser.add_argument("--tokens", type=count, default=30_000, help="of a prompt (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        outcome = measure(engines.tiny_model(), given.requests, given.tokens)
    except engines.ServerError as error:
        print(f"memory_cost: {error}", file=sys.stderr)
        return 1
    print("\n".join(outcome.lines()))
    return 1 if outcome.faults() else 0


if __name__ == "__main__":
    sys.exit(main())

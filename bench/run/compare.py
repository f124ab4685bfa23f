"""The same calls on bare engines and through slotwise: how much of every prompt was reused.

Sessions of a recorded trace are interleaved (or calls of a shape that matters are made up:
``titles``, ``newsroom``); every arm gets the same calls in the same order with their recorded
histories, on an engine of its own. Reuse is what the *engine* reports. Beside it
stand the two bounds on the same tokens: what N slots could reach at best, and an infinite cache.

    python -m slotwise.bench.run.compare tau_airline --live 4 --slots 4 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import httpx
import orjson
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.run import client, engines
from slotwise.bench.run.client import Answer
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.sim import bounds
from slotwise.bench.trace import workload
from slotwise.bench.trace.report import count, markdown_table, parser_of, percentile
from slotwise.bench.trace.rows import Row, rows_of, total
from slotwise.bench.trace.trace import Call
from slotwise.bench.trace.workload import Moment

CTX_TOKENS = 32768  # a slot's window
CACHE_RAM_MIB = 8192  # llama-server's own default
MAX_TOKENS = 32
SLOTWISE = "slotwise"
Servers = Mapping[str, AbstractContextManager[Server]]
"""By the name of an arm what starts its server."""
Noted = Callable[[httpx.AsyncClient, Server, list[Answer]], Awaitable[None]]
"""Called after each moment with its answers."""
_BEST_USE, _INFINITE = "bound: best use of", "bound: infinite cache"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is measured.

    One moment after the other, or with ``concurrent`` as many lanes as sessions are live: a lane
    sends a session's next moment as soon as its previous one has ended.
    """

    moments: list[Moment]
    live: int
    slots: int
    concurrent: bool
    max_tokens: int

    @property
    def calls(self) -> list[Call]:
        """All calls in the order they were drawn in."""
        return [call for moment in self.moments for call in moment]

    def lanes(self) -> list[list[list[int]]]:
        """Per lane its moments, as numbers of calls."""
        numbers = iter(range(len(self.calls)))
        lanes: dict[str, list[list[int]]] = {}
        for moment in self.moments:
            lane = moment[0].session if self.concurrent else ""
            lanes.setdefault(lane, []).append([next(numbers) for _ in moment])
        return list(lanes.values())


@dataclass(slots=True)
class Result:
    """What one arm did; its answers in the order of the calls."""

    name: str
    launch_lines: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(answer.prompt_tokens for answer in self.answers)

    @property
    def cached_tokens(self) -> int:
        return sum(answer.cached_tokens for answer in self.answers)

    def reuse(self) -> float:
        """Cached over all prompt tokens, as the engine reports them."""
        return self.cached_tokens / max(self.prompt_tokens, 1)


def arms(model: Model, slots: int, binary: str | None, ctx: int = CTX_TOKENS) -> Servers:
    """Bare engine as it comes, with explicit slots, without RAM cache; slotwise without and with.

    A bare engine started without ``-np`` makes four slots over one unified KV.
    """
    context = ("-c", str(slots * ctx))
    explicit = (*context, "-np", str(slots))
    without = (*explicit, "--cache-ram", "0")
    with_cache = engines.slotwise(model, slots, slots * ctx, CACHE_RAM_MIB, binary)
    return {
        "bare, plain defaults": engines.bare(model, context, binary),
        f"bare -np {slots}": engines.bare(model, explicit, binary),
        f"bare -np {slots} --cache-ram 0": engines.bare(model, without, binary),
        SLOTWISE: engines.slotwise(model, slots, slots * ctx, 0, binary),
        f"slotwise, RAM cache {CACHE_RAM_MIB} MiB": with_cache,
    }


async def send_all(
    server: Server, plan: Comparison, progress: Progress, result: Result, noted: Noted | None
) -> None:
    """Send every call and add its answer to the result."""
    calls, lanes = plan.calls, plan.lanes()
    task = progress.add_task(result.name, total=len(calls))
    answers: dict[int, Answer] = {}

    async def one(connection: httpx.AsyncClient, number: int) -> None:
        request = client.body(calls[number], plan.max_tokens)
        answers[number] = await client.chat(connection, server.url, request)
        progress.advance(task)

    async def worker(connection: httpx.AsyncClient) -> None:
        while lanes:
            for moment in lanes.pop(0):
                await client.together([one(connection, number) for number in moment])
                if noted is not None:
                    await noted(connection, server, [answers[number] for number in moment])

    begun = time.perf_counter()
    async with client.connection() as connection:
        workers = plan.live if plan.concurrent else 1
        await client.together([worker(connection) for _ in range(workers)])
    result.wall_s = time.perf_counter() - begun
    result.answers = [answers[number] for number in range(len(calls))]
    progress.remove_task(task)


async def token_rows(server: Server, plan: Comparison, progress: Progress) -> list[Row]:
    """The calls in the tokens of the engine's own template and tokenizer."""
    task = progress.add_task("tokens for the bounds", total=len(plan.calls))
    prompts = []
    async with client.connection() as connection:
        for call in plan.calls:
            prompts.append(await client.tokens(connection, server.url, call))
            progress.advance(task)
    progress.remove_task(task)
    return rows_of(prompts, [call.session for call in plan.calls])


def run_all(
    plan: Comparison, servers: Servers, console: Console, noted: Noted | None = None
) -> tuple[list[Result], list[Row]]:
    """Run every arm; what each did, and the calls in tokens."""
    results: list[Result] = []
    rows: list[Row] = []
    with Progress(console=console, transient=True) as progress:
        for name, start in servers.items():
            with start as server:
                results.append(Result(name, server.launch_lines))
                asyncio.run(send_all(server, plan, progress, results[-1], noted))
                rows = rows or asyncio.run(token_rows(server, plan, progress))
    return results, rows


def figures(result: Result) -> dict[str, Any]:
    """One row of the table."""
    ttft_ms = [answer.ttft_s * 1000 for answer in result.answers]
    return {
        "arm": result.name,
        "prompt tokens": result.prompt_tokens,
        "cached": result.cached_tokens,
        "reuse": result.reuse(),
        "wall s": round(result.wall_s, 1),
        "TTFT p50 ms": _whole(percentile(ttft_ms, 50)),
        "TTFT p95 ms": _whole(percentile(ttft_ms, 95)),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def bound_rows(rows: Sequence[Row], slots: int) -> list[dict[str, Any]]:
    """Both bounds. They hold for the drawn order; calls that run together may be served in
    another."""
    prompt = total(rows)
    found = {
        f"{_BEST_USE} {slots} slots": bounds.slots(rows, slots),
        _INFINITE: bounds.infinite(rows),
    }
    blank = {"wall s": None, "TTFT p50 ms": None, "TTFT p95 ms": None}
    return [
        {"arm": name, "prompt tokens": prompt, "cached": reused, "reuse": reused / max(prompt, 1)}
        | blank
        for name, reused in found.items()
    ]


def measure(plan: Comparison, servers: Servers, console: Console) -> dict[str, Any]:
    """Run every arm; the table's rows and each arm's launch lines."""
    results, tokens = run_all(plan, servers, console)
    rows = [*map(figures, results), *bound_rows(tokens, plan.slots)]
    return {"rows": rows, "launch": {one.name: one.launch_lines for one in results}}


def below_optimum(result: dict[str, Any], seed: int) -> dict[str, Any]:
    """One order of calls: what slotwise reused of it, and how far below the best use of the
    slots that is, in points."""
    by_name = {row["arm"]: row["reuse"] for row in result["rows"]}
    optimum = next(reuse for name, reuse in by_name.items() if name.startswith(_BEST_USE))
    return {
        "seed": seed,
        SLOTWISE: by_name[SLOTWISE],
        "best use of the slots": optimum,
        "infinite cache": by_name[_INFINITE],
        "points below": 100 * (optimum - by_name[SLOTWISE]),
    }


def orders(options: argparse.Namespace, first: dict[str, Any], console: Console) -> list[Any]:
    """The same sessions in other orders, through slotwise alone, and the mean of all."""
    found = [below_optimum(first, options.seed)]
    for seed in range(options.seed + 1, options.seed + options.seeds):
        plan, every = _wanted(options, seed)
        alone = {SLOTWISE: every[SLOTWISE]}
        found.append(below_optimum(measure(plan, alone, console), seed))
    means = {name: fmean(row[name] for row in found) for name in found[0]}
    return [*found, means | {"seed": "mean"}]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        plan, every = _wanted(options, options.seed)
        wanted = options.arm or [""]
        chosen = {name: arm for name, arm in every.items() if any(n in name for n in wanted)}
        result = measure(plan, chosen, console)
        if options.seeds > 1:
            result["orders"] = orders(options, result, console)
    except (ValueError, OSError, engines.ServerError, client.CallError) as error:
        print(f"slotwise.bench.run.compare: {error}", file=sys.stderr)
        return 2
    result["command"] = shlex.join(
        ["python", "-m", "slotwise.bench.run.compare", *(argv or sys.argv[1:])]
    )
    if options.json:
        print(orjson.dumps(result).decode())
    else:
        _show(result, options)
    return 0


def _wanted(options: argparse.Namespace, seed: int) -> tuple[Comparison, Servers]:
    """The calls in the order of this seed, and every arm."""
    model = engines.gemma_model() if options.model == "gemma" else engines.tiny_model()
    moments = workload.moments(options.trace, options.live, seed)[: options.calls]
    plan = Comparison(moments, options.live, options.slots, options.concurrent, options.max_tokens)
    return plan, arms(model, options.slots, options.binary, options.ctx)


def _show(result: dict[str, Any], options: argparse.Namespace) -> None:
    print(markdown_table(result["rows"]))
    if "orders" in result:
        print(f"\n{markdown_table(result['orders'])}")
    print(f"\n`{result['command']}`, seed {options.seed}\n")
    for name, lines in result["launch"].items():
        print(f"- {name}:")
        for line in lines:
            print(f"  `{line}`")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("slotwise.bench.run.compare", __doc__)
    add = parser.add_argument
    add("trace", help="a trace file, a name in SLOTWISE_TRACES, titles or newsroom")
    add("--live", type=count, default=4, help="sessions live at a time (%(default)s)")
    add("--slots", type=count, default=4, help="slots of every engine (%(default)s)")
    add("--seed", type=int, default=1, help="of the order of calls (%(default)s)")
    add("--seeds", type=count, default=1, help="then so many orders through slotwise (%(default)s)")
    add("--calls", type=count, help="only so many moments (calls sent together)")
    add("--concurrent", action="store_true", help="live sessions send at the same time")
    add("--max-tokens", type=count, default=MAX_TOKENS, help="of each answer (%(default)s)")
    add("--ctx", type=count, default=CTX_TOKENS, help="window of a slot, tokens (%(default)s)")
    add("--model", choices=("tiny", "gemma"), default="tiny")
    add("--binary", help="a llama-server binary in place of the embedded engine")
    add("--arm", action="append", help="only arms with this in their name; may repeat")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

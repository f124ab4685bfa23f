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
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import httpx
import orjson
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.run import client, engines
from slotwise.bench.run.engines import Model, Server
from slotwise.bench.sim import bounds
from slotwise.bench.trace import workload
from slotwise.bench.trace.report import count, markdown_table, parser_of, percentile
from slotwise.bench.trace.rows import rows_of, total
from slotwise.bench.trace.trace import Call
from slotwise.bench.trace.workload import Moment

CTX_TOKENS = 32768  # a slot's window
CACHE_RAM_MIB = 8192  # llama-server's own default
MAX_TOKENS = 32
SLOTWISE = "slotwise"
_BEST_USE, _INFINITE = "bound: best use of", "bound: infinite cache"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the calls; ``start`` makes its server."""

    name: str
    start: AbstractContextManager[Server]


@dataclass(frozen=True, slots=True)
class Plan:
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


def arms(model: Model, slots: int, binary: str | None, ctx: int = CTX_TOKENS) -> Iterator[Arm]:
    """Bare engine as it comes, with explicit slots, without RAM cache; slotwise without and with.

    A bare engine started without ``-np`` makes four slots over one unified KV.
    """
    context = ("-c", str(slots * ctx))
    explicit = (*context, "-np", str(slots))
    yield Arm("bare, plain defaults", engines.bare(model, context, binary))
    yield Arm(f"bare -np {slots}", engines.bare(model, explicit, binary))
    without = (*explicit, "--cache-ram", "0")
    yield Arm(f"bare -np {slots} --cache-ram 0", engines.bare(model, without, binary))
    yield Arm(SLOTWISE, engines.slotwise(model, slots, slots * ctx, 0, binary))
    yield Arm(
        f"slotwise, RAM cache {CACHE_RAM_MIB} MiB",
        engines.slotwise(model, slots, slots * ctx, CACHE_RAM_MIB, binary),
    )


async def send_all(
    server: Server, plan: Plan, progress: Progress, title: str
) -> tuple[list[client.Answer], float]:
    """All answers in the order of the calls, and the wall time in seconds."""
    calls, lanes = plan.calls, plan.lanes()
    task = progress.add_task(title, total=len(calls))
    answers: dict[int, client.Answer] = {}

    async def one(connection: httpx.AsyncClient, number: int) -> None:
        request = client.body(calls[number], plan.max_tokens)
        answers[number] = await client.chat(connection, server.url, request)
        progress.advance(task)

    async def worker(connection: httpx.AsyncClient) -> None:
        while lanes:
            for moment in lanes.pop(0):
                await client.together([one(connection, number) for number in moment])

    begun = time.perf_counter()
    async with client.connection() as connection:
        workers = plan.live if plan.concurrent else 1
        await client.together([worker(connection) for _ in range(workers)])
    wall_s = time.perf_counter() - begun
    progress.remove_task(task)
    return [answers[number] for number in range(len(calls))], wall_s


def figures(name: str, answers: Sequence[client.Answer], wall_s: float) -> dict[str, Any]:
    """One row of the table."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers)
    ttft_ms = [answer.ttft_s * 1000 for answer in answers]
    return {
        "arm": name,
        "prompt tokens": prompt,
        "cached": cached,
        "reuse": cached / max(prompt, 1),
        "wall s": round(wall_s, 1),
        "TTFT p50 ms": _whole(percentile(ttft_ms, 50)),
        "TTFT p95 ms": _whole(percentile(ttft_ms, 95)),
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


async def bound_rows(server: Server, plan: Plan, progress: Progress) -> list[dict[str, Any]]:
    """Both bounds, on the tokens of the engine's own template and tokenizer.

    They hold for the drawn order; calls that run together may be served in another.
    """
    calls = plan.calls
    task = progress.add_task("tokens for the bounds", total=len(calls))
    prompts = []
    async with client.connection() as connection:
        for call in calls:
            prompts.append(await client.tokens(connection, server.url, call))
            progress.advance(task)
    progress.remove_task(task)
    rows = rows_of(prompts, [call.session for call in calls])
    prompt = total(rows)
    found = {
        f"{_BEST_USE} {plan.slots} slots": bounds.slots(rows, plan.slots),
        _INFINITE: bounds.infinite(rows),
    }
    blank = {"wall s": None, "TTFT p50 ms": None, "TTFT p95 ms": None}
    return [
        {"arm": name, "prompt tokens": prompt, "cached": reused, "reuse": reused / max(prompt, 1)}
        | blank
        for name, reused in found.items()
    ]


def measure(plan: Plan, chosen: Sequence[Arm], console: Console) -> dict[str, Any]:
    """Run every arm; the table's rows and each arm's launch lines."""
    rows: list[dict[str, Any]] = []
    bound: list[dict[str, Any]] = []
    launch: dict[str, list[str]] = {}
    with Progress(console=console, transient=True) as progress:
        for arm in chosen:
            with arm.start as server:
                answers, wall_s = asyncio.run(send_all(server, plan, progress, arm.name))
                launch[arm.name] = server.launch_lines
                if not bound:
                    bound = asyncio.run(bound_rows(server, plan, progress))
            rows.append(figures(arm.name, answers, wall_s))
    return {"rows": [*rows, *bound], "launch": launch}


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
        alone = [arm for arm in every if arm.name == SLOTWISE]
        found.append(below_optimum(measure(plan, alone, console), seed))
    means = {name: fmean(row[name] for row in found) for name in found[0]}
    return [*found, means | {"seed": "mean"}]


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = _parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        plan, every = _wanted(options, options.seed)
        chosen = [a for a in every if not options.arm or any(n in a.name for n in options.arm)]
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


def _wanted(options: argparse.Namespace, seed: int) -> tuple[Plan, list[Arm]]:
    """The calls in the order of this seed, and every arm."""
    model = engines.gemma_model() if options.model == "gemma" else engines.tiny_model()
    moments = workload.moments(options.trace, options.live, seed)[: options.calls]
    plan = Plan(moments, options.live, options.slots, options.concurrent, options.max_tokens)
    return plan, list(arms(model, options.slots, options.binary, options.ctx))


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

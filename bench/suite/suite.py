"""``slotwise bench``: the measurements that the claims rest on, each written to a file of its own.

    slotwise bench [--only newsroom ...] [--quick] [--list]

Every measurement runs bare engines and slotwise in front of one, with the tiny model (random
weights, real llama-server), and writes ``bench/results/NAME.md``: every figure, the launch lines,
the seed and the command. ``--quick`` takes a part of the calls, to see that it runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from slotwise.bench.floor import report as floor_report
from slotwise.bench.run import client, engines
from slotwise.bench.run.sender import ReplayError
from slotwise.bench.run.served import Bench
from slotwise.bench.sim import simulate
from slotwise.bench.suite import reality, tables
from slotwise.bench.trace.report import markdown_table

_TRACE, _HEAVIER = "claude_code.blocks", "claude_code_300.blocks"
_GRID = "4/4/90k,8/8/90k,8/4/90k,16/8/350k"
_HEAVY_GRID = "8/4/90k,16/8/350k"
_ARMS = "llama.cpp,llama.cpp-no-idle-slots,session-pin,slotwise,optimum"
_SHOWN = ("TTFT s", "p95 s", "guest TTFT s", "session min", "reuse", "longest wait s")
_SHOWN_RATIOS = ("TTFT s/base", "guest TTFT s/base", "session min/base")


def _table(*more: str, seeds: int, name: str = _TRACE, grid: str = _GRID) -> str:
    """One run of the simulator: its command, and the columns that matter of its table."""
    words = [name, "--grid", grid, "--arms", _ARMS, "--seeds", str(seeds), *more]
    shown = [
        {"sessions/slots/park": row["setup"], "arm": row["arm"]}
        | {name: row[name] for name in (*_SHOWN, *_SHOWN_RATIOS)}
        for row in simulate.rows(words)
    ]
    return f"`slotwise simulate {shlex.join(words)}`\n\n{markdown_table(shown)}"


def claude_code(bench: Bench, quick: bool) -> str:
    """Every setup on both cost models, and with longer prompts."""
    seeds = 1 if quick else 10
    parallel = ("--policy", "{max_running: 8}")
    parts = (
        "The first 40 calls of 40 recorded Claude Code sessions in a random order, so many of them "
        "live at a time: answers of 1,500 tokens at most, pauses of 600 s, a guest of 768 to "
        "2,048 tokens on 15 % of the turns, three quarters of tools and system text shared. Means "
        "over seeds; `/base` is the ratio to llama.cpp's default. `optimum` is what no schedule "
        "can beat: nobody waits, each request has the engine for itself, and nothing that a cache "
        "ever held is read again; its reuse is the best for the room that slots and park have.",
        "## As recorded",
        "Prefill 2,000 tokens a second, decode 35 for each sequence, state copies 200,000. As on a "
        "real machine slotwise's engine has batches of 512 tokens, the others of 2,048.",
        _table(*parallel, seeds=seeds),
        "## Prompts half as long again",
        "In the evaluation that published these cost figures llama.cpp's default came to a first "
        "token after 94 s at 8/4 and 184 s at 16/8, on 380 sessions of the same source. The 40 of "
        "this trace load the engine less; with prompts 1.5 times as long they come near to that.",
        _table(*parallel, "--stretch", "1.5", seeds=seeds),
        "## A 125B model on GB10",
        "As many requests run at a time as by default: beside another one each takes as long as "
        "both in turn.",
        _table("--cost", "gb10", seeds=min(seeds, 3)),
        "## 300 heavier sessions",
        "Sessions of the same source that nothing was tuned on, in one random order.",
        _table(*parallel, seeds=1, name=_HEAVIER, grid="8/4/90k" if quick else _HEAVY_GRID),
    )
    return "\n\n".join(parts)


RESULTS = Path(__file__).resolve().parents[1] / "results"
Measure = Callable[[Bench, bool], str]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement: what it shows, and what makes the body of its file."""

    what: str
    measure: Measure


SUITE: Mapping[str, Measurement] = {
    "newsroom": Measurement("66 one-shot calls with a long common preamble", tables.newsroom),
    "agents": Measurement("two agent sessions at once and one after the other", tables.agents),
    "titles": Measurement("three conversations with title jobs, no RAM cache", tables.titles),
    "ram-cache": Measurement("reuse against the size of the RAM cache", tables.ram_cache),
    "mixed": Measurement("recorded agents and chats mixed, with a RAM cache", tables.mixed),
    "mixed-no-ram": Measurement("the same without a RAM cache", tables.mixed_without),
    "alone": Measurement("one recorded agent at a time, as many as slots", tables.alone),
    "collapse": Measurement("when four slots lose what one slot keeps", tables.collapse),
    "claude-code": Measurement("Claude Code sessions under load, simulated", claude_code),
    "floor": Measurement("never worse than the engine alone: many workloads", floor_report.measure),
    "simulator": Measurement("the simulator against the engine", reality.reality),
}


def add_parser(commands: Any) -> None:
    """Add the command to ``add_subparsers()`` of a command line."""
    parser = commands.add_parser("bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--only", action="append", metavar="NAME", help="only this one; may repeat")
    add("--quick", action="store_true", help="a part of the calls; for a look, not for a claim")
    add("--out", type=Path, metavar="DIR", help="where the files go (bench/results)")
    add("--binary", help="a llama-server binary in place of the embedded engine")
    add("--ablate", action="store_true", help="floor: what each switch of the rules wins and costs")
    add("--list", action="store_true", help="say what there is and end")


def run(options: argparse.Namespace) -> int:
    """The command; returns its exit status."""
    if options.list:
        for name, entry in SUITE.items():
            print(f"{name:<12} {entry.what}")
        return 0
    names = options.only or list(SUITE)
    if options.ablate and names != ["floor"]:
        print("bench: --ablate goes with --only floor", file=sys.stderr)
        return 2
    unknown = [name for name in names if name not in SUITE]
    if unknown:
        print(f"bench: {unknown[0]!r} is not one of {', '.join(SUITE)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # engines are ended in any case
    try:
        bench = Bench(engines.tiny_model(), binary=options.binary)
        for name in names:
            _one(name, bench, options)
    except (ValueError, OSError, engines.ServerError, client.CallError, ReplayError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _one(name: str, bench: Bench, options: argparse.Namespace) -> None:
    Console(stderr=True).print(f"{name}: {SUITE[name].what}", highlight=False)
    load, begun = os.getloadavg()[0], time.monotonic()
    measure = floor_report.ablate if options.ablate else SUITE[name].measure
    body = measure(bench, options.quick)
    seconds = time.monotonic() - begun
    words = ["slotwise", "bench", "--only", name]
    words += [f"--{said}" for said in ("ablate", "quick") if getattr(options, said)]
    if options.binary:
        words += ["--binary", Path(options.binary).name]
    what = SUITE[name].what
    head = f"# {what[0].upper()}{what[1:]}\n\n`{shlex.join(words)}`\n\n"
    text = f"{head}{body}\n\n{_machine(load)} Took {seconds:.0f} s.\n"
    folder: Path = options.out or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    more = [said for said in ("ablate", "quick") if getattr(options, said)]
    path = folder / f"{'-'.join([name, *more])}.md"
    path.write_text(text, "utf-8")
    print(f"{text}\nwritten: {path}\n")


def _machine(load: float) -> str:
    """Where it was measured, in words."""
    engine = metadata.version("xllamacpp")
    cores = psutil.cpu_count()
    return (
        f"Measured on {cores} cores ({platform.machine()}), one engine thread, embedded engine "
        f"xllamacpp {engine}, tiny model; load {load:.1f} before it began, "
        f"{os.getloadavg()[0]:.1f} at its end."
    )

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

from slotwise.bench import client, engines, suite_mixed, suite_reality, suite_simulated, suite_slots
from slotwise.bench.floor import report as floor_report
from slotwise.bench.sender import ReplayError
from slotwise.bench.served import Bench

RESULTS = Path(__file__).resolve().parent / "results"
Measure = Callable[[Bench, bool], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement: what it shows, and what makes the body of its file."""

    what: str
    measure: Measure


SUITE: Mapping[str, Entry] = {
    "newsroom": Entry("66 one-shot calls with a long common preamble", suite_slots.newsroom),
    "agents": Entry("two agent sessions at once and one after the other", suite_slots.agents),
    "titles": Entry("three conversations with title jobs, no RAM cache", suite_slots.titles),
    "ram-cache": Entry("reuse against the size of the RAM cache", suite_slots.ram_cache),
    "mixed": Entry("recorded agents and chats mixed, with a RAM cache", suite_mixed.mixed),
    "mixed-no-ram": Entry("the same without a RAM cache", suite_mixed.mixed_without),
    "alone": Entry("one recorded agent at a time, as many as slots", suite_mixed.alone),
    "collapse": Entry("when four slots lose what one slot keeps", suite_mixed.collapse),
    "claude-code": Entry("Claude Code sessions under load, simulated", suite_simulated.claude_code),
    "floor": Entry("never worse than the engine alone: many workloads", floor_report.measure),
    "simulator": Entry("the simulator against the engine", suite_reality.reality),
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

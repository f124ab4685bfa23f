"""``slotwise simulate``: arms against each other on a recorded workload, in virtual time.

    slotwise simulate claude_code.blocks --arms llama.cpp,slotwise --sessions 8 \\
        --slots 4 --park 90k --cost evidence --seeds 10

Figures are means over seeds; times are virtual. ``--grid 4/4/90k,8/4/90k`` runs several setups
of sessions/slots/parked tokens, one after the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import Progress

from slotwise.bench import arms, cost_model, sim_report, sim_rows, sim_workload, trace
from slotwise.bench.block_trace import is_block_trace, knows_sessions
from slotwise.bench.command_line import between, count, mapping
from slotwise.bench.cost_model import CostModel
from slotwise.bench.report import markdown_table
from slotwise.bench.sim_workload import Workload
from slotwise.bench.simulation import SimulationError, simulate
from slotwise.policies.params import Params, from_mapping

ARMS = "llama.cpp,llama.cpp-no-idle-slots,session-pin,longest-prefix,slotwise,optimum"
_SIZES = {"k": 1000, "m": 1_000_000}
_FACTOR = between(0.001, 1e6)


@dataclass(frozen=True, slots=True)
class Setup:
    """How many sessions meet how much memory."""

    sessions: int
    slots: int
    park_tokens: int

    def __str__(self) -> str:
        return f"{self.sessions}/{self.slots}/{_short(self.park_tokens)}"


def add_parser(commands: Any) -> None:
    """Add the command to ``add_subparsers()`` of a command line."""
    parser = commands.add_parser("simulate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _arguments(parser)


def run(options: argparse.Namespace) -> int:
    """The command; returns its exit status."""
    try:
        rows, speed = _rows(options)
        print(markdown_table(rows))
        print(f"\n{speed}")
        if options.plot is not None:
            sim_report.plot(rows, options.plot)
    except (ValueError, OSError, SimulationError, argparse.ArgumentTypeError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    return 0


def rows(argv: Sequence[str]) -> list[dict[str, Any]]:
    """The table of the command with these arguments, a row for each setup and arm."""
    parser = argparse.ArgumentParser(prog="simulate")
    _arguments(parser)
    return _rows(parser.parse_args(argv))[0]


@dataclass(slots=True)
class _Speed:
    """How fast the simulator itself is, in seconds of one core."""

    requests: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        a_second = self.requests / max(self.seconds, 1e-9)
        return f"{self.requests:,} requests in {self.seconds:.1f} s: {a_second:,.0f} a second"

    def timed(self, workload: Workload, arm: arms.Arm, cost: CostModel) -> dict[str, float]:
        begun = time.process_time()
        done = simulate(workload, arm, cost)
        self.seconds += time.process_time() - begun
        self.requests += len(done.served)
        return sim_report.figures(done)


def _rows(options: argparse.Namespace) -> tuple[list[dict[str, Any]], _Speed]:
    path = trace.find(options.trace)
    if not is_block_trace(path):
        raise trace.TraceError(path, None, "holds texts; simulated are block traces and arrivals")
    cost = cost_model.load(options.cost)
    params = _params(options.profile, options.policy, cost)
    setups = options.grid or [Setup(options.sessions, options.slots, options.park)]
    names = [name for name in options.arms.split(",") if name]
    if not names:
        raise ValueError(f"arms: expected at least one, got {options.arms!r}")
    chosen = {setup: _arms(names, setup, params) for setup in setups}
    with_floor = arms.OPTIMUM in names
    speed = _Speed()
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        each = sum(len(of_setup) + with_floor for of_setup in chosen.values())
        task = progress.add_task("simulating", total=each * _seeds(path, options))
        for setup in setups:
            found: dict[str, list[dict[str, float]]] = {}
            for workload in _workloads(path, setup, options):
                for arm in chosen[setup]:
                    progress.update(task, description=f"{setup} {arm.name}")
                    found.setdefault(arm.name, []).append(speed.timed(workload, arm, cost))
                    progress.advance(task)
                if with_floor:
                    floor = sim_report.floor(workload, cost, setup.slots, setup.park_tokens)
                    found.setdefault(arms.OPTIMUM, []).append(floor)
                    progress.advance(task)
            rows += sim_report.compared(_averaged(str(setup), found))
    return rows, speed


def _averaged(setup: str, found: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    return [
        {"setup": setup, "arm": name, **sim_report.averaged(runs)} for name, runs in found.items()
    ]


def _arms(names: Sequence[str], setup: Setup, params: Params) -> list[arms.Arm]:
    wanted = [name for name in names if name != arms.OPTIMUM]
    if not params.cache_tokens:  # a profile may say otherwise
        params = replace(params, cache_tokens=setup.park_tokens)
    return arms.arms(wanted, setup.slots, setup.park_tokens, params)


def _workloads(path: Path, setup: Setup, options: argparse.Namespace) -> Iterator[Workload]:
    """One for each seed; a trace at its recorded times is the same for all of them."""
    total = setup.sessions if options.once else None
    shape = sim_rows.Shape(
        sessions=setup.sessions, total=total, calls=options.calls, stretch=options.stretch
    )
    if _is_open(path, options):
        yield sim_workload.open_loop(path, options.requests, options.slower, shape)
        return
    recorded = sim_workload.Recorded(path, shape)
    for seed in range(1, _seeds(path, options) + 1):
        yield sim_workload.closed_loop(recorded, shape, seed)


def _is_open(path: Path, options: argparse.Namespace) -> bool:
    """Whether calls come at their recorded times; not every trace knows its sessions."""
    return bool(options.open) or not knows_sessions(path)


def _seeds(path: Path, options: argparse.Namespace) -> int:
    return 1 if _is_open(path, options) else int(options.seeds)


def _params(profile: Path | None, policy: str, cost: CostModel) -> Params:
    """The profile's rules, with the cost model's first values unless it names its own."""
    given: Any = {}
    if profile is not None:
        given = yaml.safe_load(profile.read_text("utf-8"))
        if not isinstance(given, dict):
            raise ValueError(f"{profile}: expected a mapping")
        given = given.get("policy") or {}
    if not isinstance(given, dict):
        raise ValueError("policy: expected a mapping")
    given = {**given, **mapping(policy)}
    params, faults = from_mapping(given)
    if faults:
        raise ValueError("; ".join(faults))
    given_rates = {"prefill_tps", "decode_tps"} & given.keys()
    return params if given_rates else replace(params, cost=cost.as_policy())


def _arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", help="a block trace or arrivals: a file or its name")
    add("--profile", type=Path, help="slotwise's rules: the policy section of this profile")
    add("--policy", default="", help="more of them, as YAML: '{max_running: 3}'")
    add("--arms", default=ARMS, help=f"({ARMS}), also {arms.RULES_OFF}")
    add("--sessions", type=count, default=8, help="live at a time (%(default)s)")
    add("--slots", type=count, default=4, help="of the engine (%(default)s)")
    add("--park", type=_tokens, default=90_000, help="tokens of the RAM cache (90k)")
    add("--grid", type=_setups, help="sessions/slots/park of several setups: 4/4/90k,8/4/90k")
    add("--cost", default="evidence", help=f"{', '.join(cost_model.known())} or a YAML file")
    add("--seeds", type=count, default=10, help="runs to average (%(default)s)")
    add("--calls", type=count, default=40, help="of a session, the first so many (%(default)s)")
    add("--stretch", type=_FACTOR, default=1.0, help="prompts are so many times as long (1)")
    add("--once", action="store_true", help="as many sessions as are live, then nothing more")
    add("--open", action="store_true", help="calls at their recorded times")
    add("--slower", type=_FACTOR, default=1.0, help="recorded times are stretched by this (1)")
    add("--requests", type=count, default=1000, help="of a trace at recorded times (%(default)s)")
    add("--plot", type=_picture, help="bars as a .png or .svg file")


def _picture(text: str) -> Path:
    if not text.endswith((".png", ".svg")):
        raise argparse.ArgumentTypeError(f"expected a .png or .svg file, got {text[-40:]!r}")
    return Path(text)


def _setups(text: str) -> list[Setup]:
    setups = []
    for part in text.split(","):
        numbers = part.split("/")
        if len(numbers) != 3:
            raise argparse.ArgumentTypeError(f"expected sessions/slots/park, got {part[:30]!r}")
        setups.append(Setup(count(numbers[0]), count(numbers[1]), _tokens(numbers[2])))
    return setups


def _tokens(text: str) -> int:
    scale = _SIZES.get(text[-1:].lower(), 1)
    digits = text if scale == 1 else text[:-1]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 9):
        raise argparse.ArgumentTypeError(f"expected tokens such as 90k, got {text[:20]!r}")
    return int(digits) * scale


def _short(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens and tokens % 1000 == 0 else str(tokens)


def main(argv: Sequence[str] | None = None) -> int:
    """The command by itself; returns its exit status."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())

"""``slotwise simulate``: arms against each other on a recorded workload, in virtual time.

    slotwise simulate claude_code.blocks --arms llama.cpp,slotwise --sessions 8 \\
        --slots 4 --park 90k --cost evidence --seeds 10

Figures are means over seeds; times are virtual. ``--grid 4/4/90k,8/4/90k`` runs several setups
of sessions/slots/parked tokens, one after the other.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, overload

import yaml
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.sim import arms, bounds, cost_model, load
from slotwise.bench.sim.cost_model import CostModel
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import Run, SimulationError, simulate
from slotwise.bench.trace import trace
from slotwise.bench.trace.blocks import is_block_trace, knows_sessions
from slotwise.bench.trace.report import between, count, mapping, markdown_table, percentile
from slotwise.bench.trace.rows import Row
from slotwise.policies.params import Params, from_mapping

BASELINE = "llama.cpp"
_RATIOS = ("TTFT s", "guest TTFT s", "session min")
_PLOTTED = ("TTFT s", "guest TTFT s", "session min", "reuse")


def figures(run: Run) -> dict[str, float]:
    """One run's figures. A turn is a request of a session; guests are counted apart."""
    waits = [s.begun - s.arrived for s in run.served]
    prompt = sum(s.ask.prompt_tokens for s in run.served)
    return _times([(s.ask, s.ttft_s) for s in run.served], run.sessions_s) | {
        "reuse": sum(s.cached for s in run.served) / prompt,
        "prefill s": run.prefill_s,
        "copies s": run.copy_s,
        "wait s": fmean(waits),
        "longest wait s": max(waits),
        "refused": float(sum(s.refused for s in run.served)),
    }


def _times(ttft_s: Sequence[tuple[Ask, float]], sessions_s: Sequence[float]) -> dict[str, float]:
    turns = [seconds for ask, seconds in ttft_s if not ask.guest]
    guests = [seconds for ask, seconds in ttft_s if ask.guest]
    return {
        "TTFT s": fmean(turns),
        "p50 s": percentile(turns, 50) or 0.0,
        "p95 s": percentile(turns, 95) or 0.0,
        "guest TTFT s": fmean(guests) if guests else 0.0,
        "session min": fmean(sessions_s) / 60,
    }


def floor(workload: Workload, cost: CostModel, slots: int, park_tokens: int) -> dict[str, float]:
    """What no schedule can beat.

    Seconds: nobody waits, the engine serves each request alone, an infinite cache served all it
    ever saw. ``reuse``: Belady's choice with as much room as the slots and the RAM cache have.
    Both take requests in the order of such a schedule.
    """
    asks = _in_order(workload, cost)
    rows = _Rows(asks)
    reused = bounds.infinite_each(rows)
    ttft_s = {
        ask.id: cost.prefill_s(n, ask.prompt_tokens) for ask, n in zip(asks, reused, strict=True)
    }
    prompt = sum(ask.prompt_tokens for ask in asks)
    sessions_s = [
        sum(a.pause_s for a in session[1:])
        + sum(ttft_s[a.id] + (a.output - 1) * cost.step_s(1) for a in session)
        for session in workload.sessions
    ]
    room = park_tokens + bounds.largest_residents(rows, slots)
    return _times([(ask, ttft_s[ask.id]) for ask in asks], sessions_s) | {
        "reuse": bounds.park(rows, room, reused) / prompt,
        "prefill s": bounds.time_floor_s(rows, reused, cost.prefill_s),
        "copies s": 0.0,
        "wait s": 0.0,
        "longest wait s": 0.0,
        "refused": 0.0,
    }


class _Rows(Sequence[Row]):
    """The rows of requests, each made when it is looked at."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks

    def __len__(self) -> int:
        return len(self._asks)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> _Rows: ...
    def __getitem__(self, at: int | slice) -> Row | _Rows:
        return _Rows(self._asks[at]) if isinstance(at, slice) else self._asks[at].row


def _in_order(workload: Workload, cost: CostModel) -> list[Ask]:
    """All requests in the order of a schedule without prefill and waits."""
    live = workload.live or len(workload.sessions)
    free = [0.0] * min(live, len(workload.sessions))  # when each client may begin a session
    timed: list[tuple[float, int, Ask]] = []
    for session in workload.sessions:
        now = heapq.heappop(free)
        for ask in session:
            now += ask.pause_s
            for one in (ask, *ask.beside):
                timed.append((now, len(timed), one))
            now += ask.output * cost.step_s(1)
        heapq.heappush(free, 0.0 if workload.live is None else now)
    return [ask for _, _, ask in sorted(timed, key=lambda entry: entry[:2])]


def averaged(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every figure over runs."""
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one setup with their ratios to llama.cpp's default, where it is among them."""
    base = next((row for row in rows if row["arm"] == BASELINE), None)
    if base is None:
        return list(rows)
    return [
        row | {f"{name}/base": row[name] / base[name] if base[name] else None for name in _RATIOS}
        for row in rows
    ]


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the figures that matter, by setup and arm; raises ``ValueError`` without matplotlib.

    The ending of ``path`` is the format: png, svg or pdf.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: needs matplotlib, see the extra [bench]") from None
    setups = list(dict.fromkeys(row["setup"] for row in rows))
    names = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(4.2 * len(_PLOTTED), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(_PLOTTED)), _PLOTTED, strict=True):
        for place, arm in enumerate(names):
            of_arm = {row["setup"]: row[name] for row in rows if row["arm"] == arm}
            width = 0.8 / len(names)
            at = [n - 0.4 + (place + 0.5) * width for n in range(len(setups))]
            axes.bar(at, [of_arm.get(setup, 0.0) for setup in setups], width, label=arm)
        axes.set_xticks(range(len(setups)), setups, rotation=30, ha="right")
        axes.set_title(name)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize="small")
    figure.savefig(path)


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
            plot(rows, options.plot)
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
        return figures(done)


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
                    best = floor(workload, cost, setup.slots, setup.park_tokens)
                    found.setdefault(arms.OPTIMUM, []).append(best)
                    progress.advance(task)
            rows += compared(_averaged(str(setup), found))
    return rows, speed


def _averaged(setup: str, found: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    return [{"setup": setup, "arm": name, **averaged(runs)} for name, runs in found.items()]


def _arms(names: Sequence[str], setup: Setup, params: Params) -> list[arms.Arm]:
    wanted = [name for name in names if name != arms.OPTIMUM]
    if not params.cache_tokens:  # a profile may say otherwise
        params = replace(params, cache_tokens=setup.park_tokens)
    return arms.arms(wanted, setup.slots, setup.park_tokens, params)


def _workloads(path: Path, setup: Setup, options: argparse.Namespace) -> Iterator[Workload]:
    """One for each seed; a trace at its recorded times is the same for all of them."""
    total = setup.sessions if options.once else None
    shape = load.Shape(
        sessions=setup.sessions, total=total, calls=options.calls, stretch=options.stretch
    )
    if _is_open(path, options):
        yield load.open_loop(path, options.requests, options.slower, shape)
        return
    recorded = load.Recorded(path, shape)
    for seed in range(1, _seeds(path, options) + 1):
        yield load.closed_loop(recorded, shape, seed)


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

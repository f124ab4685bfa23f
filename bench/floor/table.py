"""The floor table: every shape, slots, RAM cache and cost; the bare engine beside slotwise.

A cell holds where slotwise's figures, means over seeds, are within :data:`RULE` of the bare
engine's.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress

from slotwise.bench.arms import SLOTWISE
from slotwise.bench.floor.shapes import SHAPES
from slotwise.bench.floor.simulated import BARE, RAM, Cell, Figures, run_cell

SLOTS = (1, 2, 4, 8)
COSTS = ("gb10", "tiny")


class Rule(NamedTuple):
    """How far behind the bare engine slotwise may be: reuse in points, times as ratios."""

    reuse: float = 0.01
    ttft: float = 1.1
    p95: float = 1.1
    longest: float = 1.5
    wall: float = 1.05


RULE = Rule()
UNFELT_S = 0.005
"""A time that differs by less is not felt, whatever the ratio: with the tiny costs many first
tokens come within 10 ms, and the simulator's timers are 1 ms late as real ones are."""

Runs = Mapping[str, Sequence[Figures]]  # by arm, one for each seed


@dataclass(frozen=True, slots=True)
class Result:
    """One cell, served by several arms with the same seeds."""

    cell: Cell
    runs: Runs

    def mean(self, arm: str) -> Figures:
        of_arm = self.runs[arm]
        return Figures(*(fmean(getattr(one, f.name) for one in of_arm) for f in fields(Figures)))

    def breaches(self, arm: str = SLOTWISE) -> list[str]:
        """What is outside the rule, in words."""
        return breaches(self.mean(BARE), self.mean(arm))

    def spread(self, name: str) -> tuple[float, float]:
        """The lowest and the highest ratio of one seed."""
        pairs = zip(self.runs[BARE], self.runs[SLOTWISE], strict=True)
        ratios = [ratio(getattr(bare, name), getattr(own, name)) for bare, own in pairs]
        return min(ratios), max(ratios)


def ratio(bare: float, own: float) -> float:
    return own / max(bare, 1e-9)


def breaches(bare: Figures, own: Figures) -> list[str]:
    """What of these figures is outside the rule, each as ``ttft 1.32``."""
    found = []
    if own.reuse < bare.reuse - RULE.reuse:
        found.append(f"reuse {own.reuse - bare.reuse:+.3f}")
    for name in ("ttft", "p95", "longest", "wall"):
        base, value = getattr(bare, name), getattr(own, name)
        if value > base * getattr(RULE, name) and value - base > UNFELT_S:
            found.append(f"{name} {ratio(base, value):.2f}")
    return found


def cells(
    shapes: Iterable[str] = tuple(SHAPES),
    slots: Iterable[int] = SLOTS,
    rams: Iterable[str] = RAM,
    costs: Iterable[str] = COSTS,
) -> list[Cell]:
    """Every combination, in the order of the table."""
    return [Cell(s, n, ram, cost) for cost, s, n, ram in product(costs, shapes, slots, rams)]


def run(
    wanted: Sequence[Cell], seeds: Sequence[int], arms: Sequence[str] = (BARE, SLOTWISE)
) -> Iterator[Result]:
    """Serve every cell with every seed, on all cores, and say how far it is."""
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("simulating", total=len(wanted))
        pending: list[Future[Result]] = [pool.submit(_one, cell, seeds, arms) for cell in wanted]
        for done in pending:
            result = done.result()
            progress.update(task, advance=1, description=str(result.cell))
            yield result


def _one(cell: Cell, seeds: Sequence[int], arms: Sequence[str]) -> Result:
    by_seed = [run_cell(cell, seed, arms) for seed in seeds]
    return Result(cell, {arm: [runs[arm] for runs in by_seed] for arm in arms})


def rows(results: Iterable[Result], verdict: Callable[[Result], str]) -> list[dict[str, Any]]:
    """The table's rows: the bare engine's figure, and slotwise's beside it."""
    return [_row(result) | {"verdict": verdict(result)} for result in results]


def _row(result: Result) -> dict[str, Any]:
    cell, bare, own = result.cell, result.mean(BARE), result.mean(SLOTWISE)
    low, high = result.spread("ttft")
    return {
        "shape": cell.shape,
        "slots": cell.slots,
        "RAM": cell.ram,
        "reuse": f"{bare.reuse:.3f} {own.reuse:.3f}",
        "TTFT s": _times(bare.ttft, own.ttft),
        "of seeds": f"{low:.2f}-{high:.2f}",
        "p95 s": _times(bare.p95, own.p95),
        "longest s": _times(bare.longest, own.longest),
        "wall s": _times(bare.wall, own.wall),
    }


def _times(bare: float, own: float) -> str:
    return f"{bare:.3g} x{ratio(bare, own):.2f}"

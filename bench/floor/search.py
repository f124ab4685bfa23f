"""A search for the workload on which slotwise loses most against the bare engine.

    python -m bench.floor.search --seed 1 --minutes 10

Random mixtures of the floor's shapes, slots, RAM caches and costs, each served in virtual time by
the bare engine and by slotwise. The worst are shown with the smallest workload that still shows it:
lanes and the ends of lanes are taken away while the loss stays.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from rich.console import Console
from rich.progress import Progress

from bench import cost_model
from bench.command_line import between, count, parser_of
from bench.floor.shapes import SHAPES, workload
from bench.floor.simulated import RAM, Figures, as_workload, inside, pace_s, serve
from bench.floor.table import COSTS, SLOTS, UNFELT_S, ratio
from bench.floor.turns import Lane
from bench.report import markdown_table

LEAST_REQUESTS = 30
TTFT, REUSE = 1.25, 0.03  # how far behind counts as a find
_MOST_SHAPES = 3
_SHOWN = 12


class Case(NamedTuple):
    """One workload: shapes with their seeds, and of all their lanes those that are kept, each with
    how many of its turns."""

    parts: tuple[tuple[str, int], ...]
    slots: int
    ram: str
    cost: str
    kept: tuple[tuple[int, int], ...] = ()  # lane, turns; none: all of all

    def __str__(self) -> str:
        parts = "+".join(f"{shape}:{seed}" for shape, seed in self.parts)
        kept = ",".join(f"{lane}:{turns}" for lane, turns in self.kept)
        return f"{parts} {self.slots}/{self.ram}/{self.cost}" + (f" lanes {kept}" if kept else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The case that reads so as a string."""
        whole, _, lanes = text.partition(" lanes ")
        shapes, place = whole.split(" ")
        slots, ram, cost = place.split("/")
        parts = [part.split(":") for part in shapes.split("+")]
        kept = [lane.split(":") for lane in lanes.split(",")] if lanes else []
        return cls(
            tuple((shape, int(seed)) for shape, seed in parts),
            int(slots),
            ram,
            cost,
            tuple((int(lane), int(turns)) for lane, turns in kept),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """How a case went."""

    case: Case
    requests: int
    bare: Figures
    own: Figures

    @property
    def ttft(self) -> float:
        """slotwise's mean time to first token over the bare engine's."""
        return ratio(self.bare.ttft, self.own.ttft)

    @property
    def behind(self) -> float:
        """Reuse, in points of one."""
        return self.bare.reuse - self.own.reuse

    @property
    def loss(self) -> float:
        """Above 1 where one of both is further behind than is allowed."""
        felt = self.own.ttft - self.bare.ttft > UNFELT_S
        return max((self.ttft - 1) / (TTFT - 1) if felt else 0.0, self.behind / REUSE)


def draw(rng: Random) -> Case:
    """A random case over the ranges of the floor."""
    shapes = rng.sample(list(SHAPES), rng.randint(1, _MOST_SHAPES))
    parts = tuple((shape, rng.randrange(1, 1_000_000)) for shape in shapes)
    return Case(parts, rng.choice(SLOTS), rng.choice(RAM), rng.choice(COSTS))


def lanes(case: Case) -> list[Lane]:
    """What its clients send."""
    pace = pace_s(cost_model.load(case.cost))
    made = [
        [replace(turn, lane=f"{n} {turn.lane}") for turn in lane]
        for n, (shape, seed) in enumerate(case.parts)
        for lane in workload(shape, seed, pace)
    ]
    return [made[lane][:turns] for lane, turns in case.kept] if case.kept else made


def tried(case: Case) -> Found:
    """Serve it both ways."""
    asked = as_workload(lanes(case))
    bare, own = serve(asked, case.slots, case.ram, inside(cost_model.load(case.cost))).values()
    return Found(case, len(asked.asks()), bare, own)


def shrunk(found: Found, until: float) -> Found:
    """A smaller workload that loses at least as much as is a find."""
    kept = found.case.kept or tuple((n, len(lane)) for n, lane in enumerate(lanes(found.case)))
    best = found
    for smaller in _smaller(kept):
        if time.monotonic() > until:
            break
        other = tried(found.case._replace(kept=smaller))
        if other.requests >= LEAST_REQUESTS and other.loss > 1:
            return shrunk(other, until)
    return best


def _smaller(kept: tuple[tuple[int, int], ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    for n in range(len(kept)):
        if len(kept) > 1:
            yield kept[:n] + kept[n + 1 :]
    for n, (lane, turns) in enumerate(kept):
        if turns > 1:
            yield (*kept[:n], (lane, (turns + 1) // 2), *kept[n + 1 :])


def search(
    seed: int, seconds: float, told: Callable[[int, Sequence[Found]], None]
) -> tuple[int, list[Found]]:
    """The worst cases of so many seconds on all cores, worst first, and how many were tried."""
    rng = Random(seed)
    until = time.monotonic() + seconds
    worst: list[Found] = []
    tries = 0
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        while time.monotonic() < until - seconds / 5:
            cases = [draw(rng) for _ in range(16)]
            done = [one for one in pool.map(tried, cases) if one.requests >= LEAST_REQUESTS]
            tries += len(done)
            worst = sorted([*worst, *done], key=lambda one: -one.loss)[:_SHOWN]
            told(tries, worst)
        finds = [one for one in worst if one.loss > 1]
        small = pool.map(shrunk, finds, [until] * len(finds))
        worst = [*small, *(one for one in worst if one.loss <= 1)]
    return tries, worst


def table(found: Sequence[Found]) -> str:
    """As markdown."""
    return markdown_table(
        [
            {
                "workload": str(one.case),
                "requests": one.requests,
                "TTFT, bare s": f"{one.bare.ttft:.3g}",
                "TTFT, times": f"{one.ttft:.2f}",
                "reuse, bare": f"{one.bare.reuse:.3f}",
                "reuse, behind": f"{one.behind:+.3f}",
            }
            for one in found
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status: 1 where something loses more than is allowed."""
    parser = parser_of("bench.floor.search", __doc__)
    parser.add_argument("--seed", type=count, default=1, help="of the search (%(default)s)")
    minutes = between(0.01, 600, "minutes")
    parser.add_argument("--minutes", type=minutes, default=10.0, help="(%(default)s)")
    options = parser.parse_args(argv)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("searching", total=None)

        def told(tries: int, worst: Sequence[Found]) -> None:
            progress.update(task, description=f"{tries} workloads, the worst {worst[0].loss:.2f}")

        tries, worst = search(options.seed, 60 * options.minutes, told)
    print(f"Seed {options.seed}, {tries:,} workloads in {options.minutes:g} min.\n")
    print(table(worst))
    return int(any(one.loss > 1 for one in worst))


if __name__ == "__main__":
    sys.exit(main())

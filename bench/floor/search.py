"""A search for the workload on which slotwise loses most against the bare engine.

    python -m slotwise.bench.floor.search --seed 1 --minutes 10

Random mixtures of the floor's shapes, slots, RAM caches and costs, each served in virtual time by
the bare engine and by slotwise. Some of what is behind is chance: where its clients' pauses are a
little longer or shorter, the bare engine is as far behind itself. So a find counts where it stays
in the mean over copies with moved pauses, and beside the finds stands how many the bare engine
makes against itself. The worst are shown with the smallest workload that still shows it: lanes and
the ends of lanes are taken away while the loss stays.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

from rich.console import Console
from rich.progress import Progress

from slotwise.bench.floor.shapes import SHAPES, Lane, Turn, workload
from slotwise.bench.floor.table import (
    BARE,
    COSTS,
    RAM,
    SLOTS,
    UNFELT_S,
    CellFigures,
    as_workload,
    inside,
    pace_s,
    ratio,
    serve,
)
from slotwise.bench.sim import cost_model
from slotwise.bench.sim.arms import SLOTWISE
from slotwise.bench.trace.report import between, count, markdown_table, parser_of

RESULTS = Path(__file__).resolve().parent.parent / "results" / "floor-search.md"
LEAST_REQUESTS = 30
TTFT, REUSE = 1.25, 0.03  # how far behind counts as a find
_MOST_SHAPES = 3
_SHOWN = 12
COPIES = 6
_TRYING = 0.7  # of the time; the rest is for the means and for smaller workloads
_MOVED = 0.05  # of a pause, at most


class Candidate(NamedTuple):
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

    case: Candidate
    requests: int
    bare: CellFigures
    own: CellFigures

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


def draw(rng: Random) -> Candidate:
    """A random case over the ranges of the floor."""
    shapes = rng.sample(list(SHAPES), rng.randint(1, _MOST_SHAPES))
    parts = tuple((shape, rng.randrange(1, 1_000_000)) for shape in shapes)
    return Candidate(parts, rng.choice(SLOTS), rng.choice(RAM), rng.choice(COSTS))


def lanes(case: Candidate) -> list[Lane]:
    """What its clients send."""
    pace = pace_s(cost_model.load(case.cost))
    made = [
        [replace(turn, lane=f"{n} {turn.lane}") for turn in lane]
        for n, (shape, seed) in enumerate(case.parts)
        for lane in workload(shape, seed, pace)
    ]
    return [made[lane][:turns] for lane, turns in case.kept] if case.kept else made


def tried(case: Candidate) -> Found:
    """Serve it both ways."""
    return both(case, lanes(case))


def both(case: Candidate, made: Sequence[Lane], names: Sequence[str] = (BARE, SLOTWISE)) -> Found:
    asked = as_workload(made)
    cost = inside(cost_model.load(case.cost))
    done = serve(asked, case.slots, case.ram, cost, names)
    return Found(case, len(asked.asks()), done[names[0]], done[names[-1]])


def moved(made: Sequence[Lane], seed: int) -> list[Lane]:
    """The same with each pause up to a twentieth longer or shorter."""
    rng = Random(seed)

    def other(turn: Turn) -> Turn:
        pause_s = turn.pause_s * rng.uniform(1 - _MOVED, 1 + _MOVED)
        return replace(turn, pause_s=pause_s, beside=type(turn.beside)(map(other, turn.beside)))

    return [[other(turn) for turn in lane] for lane in made]


def by_chance(found: Found) -> Found:
    """The bare engine with moved pauses in slotwise's place."""
    other = both(found.case, moved(lanes(found.case), 0), (BARE,))
    return replace(found, own=other.bare)


def steady(case: Candidate) -> Found:
    """In the mean over copies with moved pauses."""
    made = lanes(case)
    copies = [both(case, moved(made, seed)) for seed in range(COPIES)]
    bare, own = (
        CellFigures.mean([c.bare for c in copies]),
        CellFigures.mean([c.own for c in copies]),
    )
    return replace(copies[0], bare=bare, own=own)


def shrunk(found: Found, until: float) -> Found:
    """A smaller workload that loses at least as much as is a find."""
    kept = found.case.kept or tuple((n, len(lane)) for n, lane in enumerate(lanes(found.case)))
    best = found
    for smaller in _smaller(kept):
        if time.monotonic() > until:
            break
        other = steady(found.case._replace(kept=smaller))
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


@dataclass(slots=True)
class Tally:
    """What a search has seen so far."""

    tries: int = 0
    finds: list[Found] = field(default_factory=list)  # behind further than is allowed, once
    chance: int = 0  # of the tries, so many where the bare engine is so far behind itself
    worst: list[Found] = field(default_factory=list)  # in the mean, the worst first
    steady: int = 0  # of the finds, those that are finds in the mean


def search(seed: int, seconds: float, reported: Callable[[Tally], None]) -> Tally:
    """Try random cases for so many seconds on all cores."""
    rng = Random(seed)
    begun = time.monotonic()
    tally = Tally()
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        while time.monotonic() < begun + seconds * _TRYING:
            for one, bare in pool.map(_both, [draw(rng) for _ in range(16)]):
                if one.requests < LEAST_REQUESTS:
                    continue
                tally.tries += 1
                tally.chance += bare.loss > 1
                if one.loss > 1:
                    tally.finds.append(one)
            reported(tally)
        cases = [one.case for one in tally.finds]
        means = [one for one in pool.map(steady, cases) if one.loss > 1]
        tally.steady = len(means)
        means = sorted(means, key=lambda one: -one.loss)[:_SHOWN]
        tally.worst = list(pool.map(shrunk, means, [begun + seconds] * len(means)))
    return tally


def _both(case: Candidate) -> tuple[Found, Found]:
    found = tried(case)
    return found, by_chance(found)


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
    parser = parser_of("slotwise.bench.floor.search", __doc__)
    parser.add_argument("--seed", type=count, default=1, help="of the search (%(default)s)")
    minutes = between(0.01, 600, "minutes")
    parser.add_argument("--minutes", type=minutes, default=10.0, help="(%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write bench/results/{RESULTS.name}")
    options = parser.parse_args(argv)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("searching", total=None)

        def progressed(tally: Tally) -> None:
            text = f"{tally.tries} workloads, {len(tally.finds)} finds"
            progress.update(task, description=text)

        tally = search(options.seed, 60 * options.minutes, progressed)
    summary_text = f"{summary(tally, options.seed, options.minutes)}\n{table(tally.worst)}"
    print(summary_text)
    if options.write:
        command = f"python -m slotwise.bench.floor.search --seed {options.seed} --write"
        RESULTS.write_text(f"# Where slotwise loses most\n\n`{command}`\n\n{summary_text}\n")
    return int(bool(tally.worst))


def summary(tally: Tally, seed: int, minutes: float) -> str:
    """In words."""
    return (
        f"Seed {seed}, {tally.tries:,} workloads in {minutes:g} min. Further behind than {TTFT} "
        f"times in time to first token or {100 * REUSE:g} points of reuse:\n\n"
        f"- slotwise, once: {_share(len(tally.finds), tally.tries)}\n"
        f"- slotwise, in the mean over {COPIES} copies with pauses moved by up to {_MOVED:.0%}: "
        f"{_share(tally.steady, tally.tries)}\n"
        f"- the bare engine behind itself, with pauses moved so: "
        f"{_share(tally.chance, tally.tries)}\n"
    )


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / max(whole, 1):.1%})"


if __name__ == "__main__":
    sys.exit(main())

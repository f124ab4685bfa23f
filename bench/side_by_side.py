"""Simulated and replayed figures beside each other: means over runs, their errors, whose order.

A run is a sample of a chaotic process on both sides: a few milliseconds decide who comes first, and
from there on everything is another. So runs are paired by their seed (the same sessions in the same
order with the same pauses), and the standard error of the mean difference says what can be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev
from typing import Any

WITHIN = 0.01  # of the prompt tokens: one point, the agreement that is sought
_ERRORS = 2.0  # standard errors in which nothing is said


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run showed: share of the prompt tokens reused, means in seconds."""

    reuse: float
    ttft_s: float
    session_s: float | None  # None: no session has a length of its own


@dataclass(frozen=True, slots=True)
class Pair:
    """The same seed on both sides."""

    simulated: Figures
    replayed: Figures


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error; one run alone tells no error."""

    value: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of at least one value."""
        error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
        return cls(fmean(values), error)

    def sign(self, least: float) -> int:
        """1 or -1 where it is further from 0 than ``least`` and twice its error; else 0."""
        if self.error is None or abs(self.value) <= max(least, _ERRORS * self.error):
            return 0
        return 1 if self.value > 0 else -1

    def within(self, most: float) -> str:
        """Whether it is within ``most`` of 0: yes, no, or open where its error allows neither."""
        if self.error is None:
            return "open"
        doubt = _ERRORS * self.error
        if abs(self.value) + doubt <= most:
            return "yes"
        return "no" if abs(self.value) - doubt > most else "open"


def row(setup: str, arm: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One line of the table."""
    simulated, replayed = [p.simulated for p in pairs], [p.replayed for p in pairs]
    points = Mean.of([100 * (p.simulated.reuse - p.replayed.reuse) for p in pairs])
    return {
        "setup": setup,
        "arm": arm,
        "runs": len(pairs),
        "simulated": fmean(one.reuse for one in simulated),
        "replayed": fmean(one.reuse for one in replayed),
        "points": _tenths(points.value),
        "± error": None if points.error is None else _tenths(points.error),
        "within 1": points.within(100 * WITHIN),
        "TTFT s simulated": fmean(one.ttft_s for one in simulated),
        "TTFT s replayed": fmean(one.ttft_s for one in replayed),
        "session s simulated": _mean([one.session_s for one in simulated]),
        "session s replayed": _mean([one.session_s for one in replayed]),
    }


def order(setup: str, arms: Mapping[str, Sequence[Pair]]) -> str:
    """In words: which pairs of arms stand in the same order by reuse on both sides.

    Two arms within a point, or within twice the standard error of their difference, are tied on
    that side. That error holds how much seeds differ; so besides, seed by seed, how often two arms
    that are more than a point apart on both sides are so in the same way.
    """
    same, near, against = [], [], []
    for one, other in combinations(arms, 2):
        signs = [
            Mean.of(differences).sign(WITHIN)
            for differences in zip(*map(_differences, arms[one], arms[other]), strict=True)
        ]
        simulated, replayed = signs
        if not simulated or not replayed:
            near.append(f"{one} / {other}")
        elif simulated == replayed:
            same.append(f"{one} {'>' if simulated > 0 else '<'} {other}")
        else:
            against.append(f"{one} / {other}")
    alike = list(_alike(arms))
    by_seed = f"Seed by seed {sum(alike)} of {len(alike)} the same way"
    if not same and not against:
        return f"- {setup}: every two are tied on a side or on both. {by_seed}."
    told = [
        f"{what}: {'; '.join(pairs)}"
        for what, pairs in (
            ("the same order", same),
            ("tied on a side or on both", near),
            ("the other way round", against),
        )
        if pairs
    ]
    return f"- {setup}: {'. '.join(told)}. {by_seed}."


def _alike(arms: Mapping[str, Sequence[Pair]]) -> Iterator[bool]:
    """For every two arms and every seed that tells them apart on both sides, whether alike."""
    for one, other in combinations(arms.values(), 2):
        for simulated, replayed in map(_differences, one, other):
            if min(abs(simulated), abs(replayed)) > WITHIN:
                yield (simulated > 0) == (replayed > 0)


def _differences(one: Pair, other: Pair) -> tuple[float, float]:
    """Of reuse, simulated and replayed."""
    return (
        one.simulated.reuse - other.simulated.reuse,
        one.replayed.reuse - other.replayed.reuse,
    )


def _tenths(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None

"""The cost model fitted to what an engine reports of its work: least squares that forget.

Relative errors count, so a prompt of a second and one of a minute weigh alike; old reports fade.
What the reports do not tell apart (all prompts equally long, say) stays in the proportions of the
first values, scaled by how fast the engine has proved to be. No coefficient is ever negative, none
leaves the bounds of its knob, and a single report moves nothing by more than a factor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from slotwise.policies.cost import prefill_s, step_s
from slotwise.policies.params import Cost

# How strongly the first values' proportions pull, in reports; mostly as many answers run together.
_PROMPT_PULL, _ANSWER_PULL = 0.1, 0.4
_SETTLED = 8  # reports, after which one that is far off counts as an exception
_MANY, _EVERY = 64, 5  # reports, after which each so many-th is solved for
_MOST_RATIO = 4.0  # that an exception is taken to be off
_LEAST_S, _MOST_S = 1e-6, 864_000.0  # no report is shorter or longer
# So that a coefficient whose first value is 0 can be found: its unit, in the linear one's.
_START_TOKENS = 32.0  # the start of a prompt costs as much as so many tokens
_DEPTH_TOKENS = 100_000.0  # a token costs twice as much at this depth
_LEAST_TOKEN_S = 1e-6
_OUTPUT_PULL = 4.0  # answers that the first value of their length counts as

_BOUNDS: dict[str, tuple[float, float]] = {
    knob.name: (knob.metadata["low"], knob.metadata["high"])
    for knob in fields(Cost)
    if "low" in knob.metadata
}


class Sums(NamedTuple):
    """What is kept of all reports of one kind of work."""

    weight: float = 0.0  # reports, decayed
    log_scale: float = 0.0  # sum of the logarithms of seconds over the first values' seconds
    square: tuple[tuple[float, ...], ...] = ()
    moment: tuple[float, ...] = ()


_NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class Fit:
    """The costs as they are known, and what they were fitted to."""

    first: Cost
    cost: Cost
    prefill: Sums = _NOTHING
    decode: Sums = _NOTHING
    answers: float = 0.0  # how many ended, decayed
    answered: float = 0.0  # their tokens
    reports: int = 0  # of both kinds, ever


def start(first: Cost) -> Fit:
    """Nothing was reported yet: the first values stand."""
    return Fit(first, first)


def prompt_read(fit: Fit, n0: int, n1: int, seconds: float) -> Fit:
    """The engine computed tokens ``n0`` up to ``n1`` of a prompt in so many seconds."""
    if not fit.first.fit or n1 <= n0 or n0 < 0 or not 0 < seconds < _MOST_S:
        return fit
    first = fit.first
    token_s = max(first.prefill_a_s, _LEAST_TOKEN_S)
    units = (
        max(first.prefill_c_s, _START_TOKENS * token_s),
        token_s,
        max(first.prefill_b_s, token_s / _DEPTH_TOKENS),
    )
    sums = _added(
        fit.prefill,
        (1.0, float(n1 - n0), (n1 * n1 - n0 * n0) / 2),
        seconds,
        prefill_s(fit.cost, n0, n1),
        prefill_s(first, n0, n1),
        first.fit_requests,
    )
    told = replace(fit, prefill=sums, reports=fit.reports + 1)
    names = ("prefill_c_s", "prefill_a_s", "prefill_b_s")
    return _fitted(told, sums, names, units, _PROMPT_PULL)


def tokens_generated(fit: Fit, tokens: int, seconds: float, sequences: float) -> Fit:
    """It generated so many tokens of one sequence while ``sequences`` were at work on average."""
    if not fit.first.fit or tokens <= 0 or sequences < 1 or not 0 < seconds < _MOST_S:
        return fit
    first = fit.first
    alone_s = max(first.decode_s, _LEAST_S)
    sums = _added(
        fit.decode,
        (1.0, sequences - 1),
        seconds / tokens,
        step_s(fit.cost, sequences),
        step_s(first, sequences),
        first.fit_requests,
    )
    units = (alone_s, max(first.decode_more_s, alone_s / 4))
    told = replace(fit, decode=sums, reports=fit.reports + 1)
    return _fitted(told, sums, ("decode_s", "decode_more_s"), units, _ANSWER_PULL)


def answer_ended(fit: Fit, tokens: int) -> Fit:
    """An answer whose request named no limit had so many tokens."""
    first = fit.first
    if not first.fit or tokens < 1:
        return fit
    keep = 1 - 1 / first.fit_requests
    answers, answered = keep * fit.answers + 1, keep * fit.answered + tokens
    mean = (_OUTPUT_PULL * first.expected_output + answered) / (_OUTPUT_PULL + answers)
    cost = replace(fit.cost, expected_output=max(1, round(mean)))
    return replace(fit, cost=cost, answers=answers, answered=answered)


def _added(
    sums: Sums, x: Sequence[float], seconds: float, expected_s: float, first_s: float, most: int
) -> Sums:
    """One more report: ``x`` are what the coefficients are multiplied with."""
    expected_s, first_s = max(expected_s, _LEAST_S), max(first_s, _LEAST_S)
    keep = 1 - 1 / most
    if sums.weight > _SETTLED * keep:
        seconds = min(max(seconds, expected_s / _MOST_RATIO), expected_s * _MOST_RATIO)
    weight = 1 / max(seconds, expected_s) ** 2
    rows = sums.square or ((0.0,) * len(x),) * len(x)
    moment = sums.moment or (0.0,) * len(x)
    return Sums(
        keep * sums.weight + 1,
        keep * sums.log_scale + math.log(seconds / first_s),
        tuple(
            [
                tuple([keep * old + weight * a * b for old, b in zip(row, x, strict=True)])
                for row, a in zip(rows, x, strict=True)
            ]
        ),
        tuple([keep * old + weight * a * seconds for old, a in zip(moment, x, strict=True)]),
    )


def _fitted(fit: Fit, sums: Sums, names: Sequence[str], units: Sequence[float], pull: float) -> Fit:
    """The coefficients of these names anew; when many were told, one more moves them little."""
    if fit.reports > _MANY and fit.reports % _EVERY:
        return fit
    scale = math.exp(sums.log_scale / (sums.weight + 1))  # the first values count as one report
    units = [unit * scale for unit in units]
    square = [
        [value * unit * other for value, other in zip(row, units, strict=True)]
        for row, unit in zip(sums.square, units, strict=True)
    ]
    moment = [value * unit for value, unit in zip(sums.moment, units, strict=True)]
    for i, name in enumerate(names):
        square[i][i] += pull
        moment[i] += pull * getattr(fit.first, name) * scale / units[i]
    values: dict[str, Any] = {}
    for name, unit, value in zip(names, units, _not_negative(square, moment), strict=True):
        low, high = _BOUNDS[name]
        values[name] = min(max(value * unit, low), high)
    return replace(fit, cost=replace(fit.cost, **values))


def _not_negative(square: list[list[float]], moment: list[float]) -> list[float]:
    """The least squares' solution; what would be negative is 0, and the rest solved again."""
    solved = _solved(square, moment)
    free = list(range(len(moment)))
    while len(free) > 1 and min(solved) < 0:
        del free[solved.index(min(solved))]
        solved = _solved([[square[i][j] for j in free] for i in free], [moment[i] for i in free])
    values = [0.0] * len(moment)
    for i, value in zip(free, solved, strict=True):
        values[i] = max(0.0, value)
    return values


def _solved(square: list[list[float]], moment: list[float]) -> list[float]:
    """Gauss's elimination; the pull makes every pivot positive."""
    n = len(moment)
    rows = [[*row, value] for row, value in zip(square, moment, strict=True)]
    for i, pivot in enumerate(rows):
        for row in rows[i + 1 :]:
            factor = row[i] / pivot[i]
            for column in range(i, n + 1):
                row[column] -= factor * pivot[column]
    solved = [0.0] * n
    for i in reversed(range(n)):
        done = sum([rows[i][j] * solved[j] for j in range(i + 1, n)])
        solved[i] = (rows[i][n] - done) / rows[i][i]
    return solved

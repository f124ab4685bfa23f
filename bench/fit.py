"""A cost model from what a replay measured: what a prompt, a decode step and a state copy take.

Prefill is fitted to the engine's own clock on calls that had it to themselves. What its clock does
not see until the first token is the client's, the proxy's and the server's: it delays a request,
but no rule hears of it. Errors count relative to the fitted seconds, so a short prompt weighs as
much as a long one, and large ones weigh less: on a busy machine some calls take several times as
long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from scipy.optimize import nnls

from slotwise.bench.cost_model import CostModel, Outside, Prefill
from slotwise.bench.sender import Outcome

_REWEIGHTED = 20  # times
_SMALL_ERROR = 0.02  # smaller ones are all alike
_MOST_CROWDED = 4.0
Column = npt.NDArray[np.float64]


class Point(NamedTuple):
    """A call that was alone: tokens n0..n1 were computed in so many seconds of the engine's clock,
    and the first token came so many later than that; then ``steps`` more tokens in ``decode_s``."""

    n0: int
    n1: int
    seconds: float
    outside_s: float = 0.0
    steps: int = 0
    decode_s: float = 0.0


def points(outcome: Outcome) -> list[Point]:
    """Every answered call whose server told the engine's clock; only of a replay of one call at a
    time do they mean something."""
    answers = [sent.answer for sent in outcome.calls if sent.answer is not None]
    return [
        Point(
            a.cached_tokens,
            a.prompt_tokens,
            a.prefill_s,
            max(0.0, a.ttft_s - a.prefill_s),
            max(0, a.completion_tokens - 1),
            a.decode_s or 0.0,
        )
        for a in answers
        if a.prefill_s and a.ttft_s > 0
    ]


def prefill(measured: Sequence[Point]) -> Prefill:
    """``c + a (n1-n0) + b (n1^2-n0^2)/2`` with no negative part; raises ``ValueError`` for fewer
    than three points."""
    if len(measured) < 3:
        raise ValueError(f"prefill: expected at least 3 calls to fit to, got {len(measured)}")
    n0, n1, seconds = np.asarray([point[:3] for point in measured], dtype=float).T
    c_s, a_s, b_s = _fitted([np.ones_like(n0), n1 - n0, (n1**2 - n0**2) / 2], seconds)
    return Prefill(c_s=c_s, a_s=max(a_s, 1e-9), b_s=b_s)


def outside(measured: Sequence[Point]) -> Outside:
    """``c + a n1``: what was added to the engine's own time until the first token."""
    n1 = np.asarray([point.n1 for point in measured], dtype=float)
    seconds = np.asarray([point.outside_s for point in measured], dtype=float)
    c_s, a_s = _fitted([np.ones_like(n1), n1], seconds)
    return Outside(c_s=c_s, a_s=a_s)


def decode_depth_s(measured: Sequence[Point]) -> float:
    """What a token of context adds to a step of one sequence; 0 where nobody generated."""
    told = [point for point in measured if point.steps and point.decode_s]
    if not told:
        return 0.0
    depth = np.asarray([point.n1 + point.steps / 2 for point in told])
    seconds = np.asarray([point.decode_s / point.steps for point in told])
    return _fitted([np.ones_like(depth), depth], seconds)[1]


def _fitted(terms: Sequence[Column], seconds: Column) -> list[float]:
    """The coefficients, none negative, whose sum of terms comes nearest to the seconds."""
    scale = np.array([1 / max(float(term.mean()), 1e-12) for term in terms])
    columns = np.stack(terms, axis=1) * scale  # so that the solver sees like sizes
    seconds = np.maximum(seconds, 1e-9)
    weights = 1 / seconds
    for _ in range(_REWEIGHTED):
        found, _ = nnls(columns * weights[:, None], seconds * weights)
        fitted = np.maximum(columns @ found, 1e-9)
        errors = np.abs(seconds - fitted) / fitted
        weights = 1 / (fitted * np.sqrt(np.maximum(errors, _SMALL_ERROR)))
    return [float(value) for value in found * scale]


def relative_error(model: Prefill, measured: Sequence[Point]) -> float:
    """The median of the relative errors of the prefill seconds."""

    def seconds(n0: int, n1: int) -> float:
        return model.c_s + model.a_s * (n1 - n0) + model.b_s * (n1**2 - n0**2) / 2

    return median(abs(seconds(p.n0, p.n1) - p.seconds) / p.seconds for p in measured)


def decode_step_s(measured: Sequence[Point], depth_s: float) -> float:
    """Seconds of a step without context while these calls generated together: the median.

    ``depth_s``: what each token of all their contexts adds. Raises ``ValueError`` where the server
    does not tell.
    """
    each = [point.decode_s / point.steps for point in measured if point.steps and point.decode_s]
    if not each:
        raise ValueError("decode: the server does not tell how long it generated")
    contexts = sum(point.n1 + point.steps / 2 for point in measured)
    typical_s = median(each)
    return max(typical_s - depth_s * contexts, 0.1 * typical_s)


def crowded(simulated_s: Callable[[float], float], measured_s: float) -> float:
    """How many times as long work takes beside other work: where the simulated seconds, which grow
    with it, are the measured ones. Between 1 and 4, to a hundredth."""
    low, high = 1.0, _MOST_CROWDED
    while high - low > 0.01:
        middle = (low + high) / 2
        if simulated_s(middle) < measured_s:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def as_yaml(model: CostModel, comment: str) -> str:
    """The model as a file of ``bench/costs``."""
    plain: Mapping[str, object] = {
        "about": model.about,
        "prefill": {name: _rounded(value) for name, value in model.prefill},
        "decode_step_s": {n: _rounded(s) for n, s in sorted(model.decode_step_s.items())},
        "decode_depth_s": _rounded(model.decode_depth_s),
        "copy_tokens_per_s": round(model.copy_tokens_per_s),
        "outside": {name: _rounded(value) for name, value in model.outside},
        "crowded": round(model.crowded, 2),
    }
    return f"# {comment}\n{yaml.safe_dump(plain, sort_keys=False)}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")

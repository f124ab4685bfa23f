"""A cost model from what a replay measured: what a prompt, a decode step and a state copy take.

Prefill is fitted to the seconds until the first token of calls that had the engine to themselves,
so what client and server add to each call is in it. Errors count relative to the fitted seconds, so
a short prompt weighs as much as a long one, and large ones weigh less: on a busy machine some calls
take several times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import yaml
from scipy.optimize import nnls

from bench.cost_model import CostModel, Prefill
from bench.sender import Outcome

_REWEIGHTED = 20  # times
_SMALL_ERROR = 0.02  # smaller ones are all alike


class Point(NamedTuple):
    """A prompt that was alone: tokens n0..n1 were computed in so many seconds."""

    n0: int
    n1: int
    seconds: float


def points(outcome: Outcome) -> list[Point]:
    """Every answered call; only of a replay of one call at a time do they mean something."""
    answers = [sent.answer for sent in outcome.calls if sent.answer is not None]
    return [Point(a.cached_tokens, a.prompt_tokens, a.ttft_s) for a in answers if a.ttft_s > 0]


def prefill(measured: Sequence[Point]) -> Prefill:
    """``c + a (n1-n0) + b (n1^2-n0^2)/2`` with no negative part; raises ``ValueError`` for fewer
    than three points."""
    if len(measured) < 3:
        raise ValueError(f"prefill: expected at least 3 calls to fit to, got {len(measured)}")
    n0, n1, seconds = (np.asarray(column, dtype=float) for column in zip(*measured, strict=True))
    terms = np.stack([np.ones_like(n0), n1 - n0, (n1**2 - n0**2) / 2], axis=1)
    scale = np.array([1.0, 1e-5, 1e-9])  # seconds a unit, so that the solver sees like sizes
    weights = 1 / seconds
    for _ in range(_REWEIGHTED):
        found, _ = nnls(terms * scale * weights[:, None], seconds * weights)
        fitted = np.maximum(terms @ (found * scale), 1e-9)
        errors = np.abs(seconds - fitted) / fitted
        weights = 1 / (fitted * np.sqrt(np.maximum(errors, _SMALL_ERROR)))
    c_s, a_s, b_s = found * scale
    return Prefill(c_s=c_s, a_s=max(a_s, 1e-9), b_s=b_s)


def relative_error(model: Prefill, measured: Sequence[Point]) -> float:
    """The median of the relative errors of the prefill seconds."""

    def seconds(n0: int, n1: int) -> float:
        return model.c_s + model.a_s * (n1 - n0) + model.b_s * (n1**2 - n0**2) / 2

    return median(abs(seconds(p.n0, p.n1) - p.seconds) / p.seconds for p in measured)


def decode_step_s(outcome: Outcome) -> float:
    """Seconds of a step while all the calls of a replay generated together: the median."""
    each = [
        sent.answer.decode_s / sent.answer.completion_tokens
        for sent in outcome.calls
        if sent.answer is not None and sent.answer.decode_s and sent.answer.completion_tokens
    ]
    if not each:
        raise ValueError("decode: the server does not tell how long it generated")
    return median(each)


def as_yaml(model: CostModel, comment: str) -> str:
    """The model as a file of ``bench/costs``."""
    plain: Mapping[str, object] = {
        "about": model.about,
        "prefill": {name: _rounded(value) for name, value in model.prefill},
        "decode_step_s": {n: _rounded(s) for n, s in sorted(model.decode_step_s.items())},
        "copy_tokens_per_s": round(model.copy_tokens_per_s),
    }
    return f"# {comment}\n{yaml.safe_dump(plain, sort_keys=False)}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")

"""What work costs, in seconds: the one currency of every choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from slotwise.policies.params import Cost

_FADE = 1 - 1 / 64  # an older report counts for less
_FIRST_REPORTS = 1.0  # reports that the first values count as
_SETTLED = 8.0  # reports, after which one that is far off counts as an exception
_MOST_RATIO = 4.0  # that an exception is taken to be off
_MOST_S = 864_000.0  # no report is longer
_LEAST_SCALE, _MOST_SCALE = 1e-5, 1e3
_FIRST_ANSWERS = 4.0  # answers that the first value of their length counts as


def prefill_s(cost: Cost, n0: int, n1: int) -> float:
    """Seconds to compute tokens ``n0`` up to ``n1`` of a prompt; 0 when there are none."""
    return cost.prefill_c_s + piece_s(cost, n0, n1) if n1 > n0 else 0.0


def piece_s(cost: Cost, n0: int, n1: int) -> float:
    """Seconds that these tokens add to a prompt that is read in any case; 0 when there are none."""
    if n1 <= n0:
        return 0.0
    return cost.prefill_a_s * (n1 - n0) + cost.prefill_b_s * (n1 * n1 - n0 * n0) / 2


def step_s(cost: Cost, sequences: float) -> float:
    """Seconds until each of so many generating sequences has its next token."""
    return cost.decode_s + cost.decode_more_s * max(0.0, sequences - 1)


def run_s(
    cost: Cost, cached: int, n_prompt: int, max_tokens: int | None, sequences: int = 1
) -> float:
    """Seconds a request runs beside others, by its limit, or by the expected output where it
    names none."""
    limit = cost.expected_output
    if max_tokens is not None and max_tokens >= 0:
        limit = min(limit, max_tokens)
    return prefill_s(cost, cached, n_prompt) + limit * step_s(cost, sequences)


@dataclass(frozen=True, slots=True)
class Scale:
    """How many times as long as by the first values the engine takes: one kind of its work."""

    reports: float = 0.0  # decayed
    took_s: float = 0.0  # decayed, as is the next
    expected_s: float = 0.0  # by the first values

    @property
    def factor(self) -> float:
        """1 until something was reported."""
        if not self.expected_s:
            return 1.0
        pull = self.reports / (self.reports + _FIRST_REPORTS)
        factor = math.pow(self.took_s / self.expected_s, pull)
        return min(max(factor, _LEAST_SCALE), _MOST_SCALE)

    def reported(self, took_s: float, expected_s: float) -> Scale:
        """With one more report; when many were made, one more moves little."""
        if not 0 < took_s < _MOST_S or expected_s <= 0:
            return self
        if self.reports > _SETTLED:
            usual_s = self.factor * expected_s
            took_s = min(max(took_s, usual_s / _MOST_RATIO), usual_s * _MOST_RATIO)
        return Scale(
            _FADE * self.reports + 1,
            _FADE * self.took_s + took_s,
            _FADE * self.expected_s + expected_s,
        )


@dataclass(frozen=True, slots=True)
class CostFit:
    """The costs as an engine's reports correct the first values."""

    first: Cost
    prefill: Scale = Scale()
    decode: Scale = Scale()
    answers: float = 0.0  # that ended and whose request named no limit, decayed
    answered: float = 0.0  # their tokens

    @property
    def cost(self) -> Cost:
        prefill = self.prefill.factor
        cost = self.first.scaled(prefill, self.decode.factor, prefill)
        first = _FIRST_ANSWERS * self.first.expected_output
        mean = (first + self.answered) / (_FIRST_ANSWERS + self.answers)
        return replace(cost, expected_output=max(1, round(mean)))

    def prompt_read(self, n0: int, n1: int, seconds: float) -> CostFit:
        """The engine computed tokens ``n0`` up to ``n1`` of a prompt in so many seconds."""
        expected_s = prefill_s(self.first, n0, n1)
        return replace(self, prefill=self.prefill.reported(seconds, expected_s))

    def tokens_generated(self, tokens: int, seconds: float, sequences: float) -> CostFit:
        """It generated so many tokens of one sequence while ``sequences`` ran on average."""
        expected_s = tokens * step_s(self.first, sequences)
        return replace(self, decode=self.decode.reported(seconds, expected_s))

    def answer_ended(self, tokens: int) -> CostFit:
        """An answer whose request named no limit had so many tokens."""
        if tokens < 1:
            return self
        answers, answered = _FADE * self.answers + 1, _FADE * self.answered + tokens
        return replace(self, answers=answers, answered=answered)

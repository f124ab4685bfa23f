"""What running requests tell of the cost of work: which reports count, and what they are of.

The engine times a prompt from its first batch to its last, whoever else is in the batches. So a
prompt counts that was the only one read meanwhile, and the generation beside it for what it took
less the prompts that were read in between.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotwise.policies.cost import CostFit
from slotwise.policies.params import Cost
from slotwise.proxy.core.events import RequestFinished
from slotwise.proxy.core.running import Running

_LEAST_TOKENS = 8  # a shorter answer tells nothing of the time a token takes
_MOST_STALLED = 0.5  # of a generation's time, else what is left of it is a guess


class LearnedCost:
    """The costs of one profile: the first values, then what its engine tells."""

    def __init__(self, first: Cost) -> None:
        self.fit = CostFit(first)
        self.reports = 0  # that were taken into account
        self._running = 0
        self._beside = 0.0  # integral of the number of running requests over time
        self._at = 0.0  # up to here

    def began(self, new: Running, others: Iterable[Running]) -> None:
        """A request was sent to the engine, beside the others that run there."""
        cost, now = self.fit.cost, new.started
        self._count(1, now)
        new.beside, new.generating = self._beside, now
        for other in others:
            if not other.read:
                new.alone = other.alone = False
            else:
                other.stalled_s += new.prefill_s(cost)

    def read(self, one: Running, others: Iterable[Running], now: float) -> None:
        """Its prompt is in the KV."""
        self._count(0, now)
        cost = self.fit.cost
        one.beside, one.generating = self._beside, now
        one.stalled_s = sum(o.prefill_s(cost) for o in others if not o.read)

    def ended(self, one: Running, told: RequestFinished | None, now: float) -> Cost | None:
        """It does not run any more; the engine told of it, or did not. Returns the costs as they
        are known now, None: as before."""
        self._count(-1, now)
        before = self.fit
        if told is not None:
            self._prompt(one, told)
            self._answer(one, told, now)
            if one.request.max_tokens is None:
                self.fit = self.fit.answer_ended(told.completion_tokens or 0)
        return None if self.fit is before else self.fit.cost

    def _prompt(self, one: Running, told: RequestFinished) -> None:
        n, cached = told.prompt_tokens, told.cached_tokens
        if told.prefill_s and one.alone and n and cached is not None:
            self.fit = self.fit.prompt_read(cached, n, told.prefill_s)
            self.reports += 1

    def _answer(self, one: Running, told: RequestFinished, now: float) -> None:
        tokens, seconds = told.completion_tokens or 0, told.decode_s or 0.0
        took_s = now - one.generating
        if tokens < _LEAST_TOKENS or took_s <= 0 or one.stalled_s > _MOST_STALLED * seconds:
            return
        sequences = max(1.0, (self._beside - one.beside) / took_s)
        seconds -= one.stalled_s
        # The first token is the prompt's.
        self.fit = self.fit.tokens_generated(tokens - 1, seconds, sequences)
        self.reports += 1

    def _count(self, more: int, now: float) -> None:
        self._beside += self._running * (now - self._at)
        self._at = now
        self._running += more

"""How long a request may wait for others: its wait in a plain line, and its own prompt's read.

Whoever waits for the benefit of others shall not lose by it: where who comes first goes first, it
would have waited for all that came before it. Where that line is long, other bounds are shorter.

Bounds are kept by letting whoever is overdue go first. Where everybody is, that is first come,
first served, and every turn finds its slot taken. On a slow engine, where a prompt takes minutes
to read, everybody would soon be: so a bound is no shorter than ten times the read of the prompt,
and no longer than three quarters of what the request may wait in all.
"""

from __future__ import annotations

from collections.abc import Iterable

from slotwise.policies.cost import prefill_s, step_s
from slotwise.policies.params import Cost, Params
from slotwise.policies.types import Request, WaitingView

_LINES = 1.5  # a wait for others' benefit is no longer than so many plain lines
_OF_ALL = 0.75  # behind the bound there is time left to be served in


def bound_s(given_s: float, waiting: WaitingView, params: Params) -> float:
    """A wait's bound for this request (s); ``given_s``: what the profile says."""
    own_s = prefill_s(params.cost, 0, len(waiting.request.tokens))
    long_s = _most_s(given_s, own_s, waiting.request, params)
    return min(long_s, _LINES * waiting.line_s + own_s)


def most_s(given_s: float, request: Request, params: Params) -> float:
    """The bound where the line is long (s)."""
    return _most_s(given_s, prefill_s(params.cost, 0, len(request.tokens)), request, params)


def _most_s(given_s: float, own_s: float, request: Request, params: Params) -> float:
    whole_s = params.request_timeout_s if request.stream else params.whole_wait_s
    return max(given_s, min(params.long_reads * own_s, _OF_ALL * whole_s))


def line_s(asked: Request, ahead: Iterable[tuple[Request, float]], slots: int, cost: Cost) -> float:
    """How long a request would wait if all that came before it went first, and had to read
    everything; or if keys took turns, where its own sent many (s).

    ``ahead``: the requests that run or wait, and for how long each has run (s).
    """
    before = list(ahead)
    beside = max(1, min(slots, len(before)))
    token_s = step_s(cost, beside) / beside
    by_key = {asked.key: 0.0}
    for request, ran_s in before:
        output = cost.expected_output
        if request.max_tokens is not None and request.max_tokens >= 0:
            output = min(output, request.max_tokens)
        whole_s = prefill_s(cost, 0, len(request.tokens)) + output * token_s
        by_key[request.key] = by_key.get(request.key, 0.0) + max(0.0, whole_s - ran_s)
    return max(sum(by_key.values()), len(by_key) * by_key[asked.key])

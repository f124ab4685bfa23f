"""What work costs, in seconds: the one currency of every choice."""

from __future__ import annotations

from slotwise.policies.params import Cost


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

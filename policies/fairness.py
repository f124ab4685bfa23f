"""How evenly a resource was shared."""

from __future__ import annotations

from collections.abc import Sequence


def jain_index(shares: Sequence[float]) -> float:
    """Jain's index: 1 when all got the same, 1/n when one of n got everything; 1 without any."""
    squares = sum(share * share for share in shares)
    if not squares:
        return 1.0
    return sum(shares) ** 2 / (len(shares) * squares)

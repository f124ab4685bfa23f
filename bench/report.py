"""Results as text: markdown tables and percentiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a markdown table."""
    if not rows:
        return ""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([cell(row[name]) for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    """One value as a table shows it: fractions as 0.1234, larger ones as 1,234.5, zero as 0."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) <= 1 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which ``percent`` of the values lie (nearest rank); None without values."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]

"""Tables and percentiles."""

from __future__ import annotations

from slotwise.bench.trace.report import markdown_table, percentile


def test_a_table_has_a_head_and_one_line_a_row() -> None:
    rows = [{"arm": "bare", "tokens": 12345, "reuse": 0.5, "wall": None, "s": 1234.56, "w": 0.0}]
    assert markdown_table(rows).splitlines() == [
        "| arm | tokens | reuse | wall | s | w |",
        "| --- | --- | --- | --- | --- | --- |",
        "| bare | 12,345 | 0.5000 | - | 1,234.6 | 0 |",
    ]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(100)], 95) == 95.0
    assert percentile([7.0], 95) == 7.0
    assert percentile([], 50) is None

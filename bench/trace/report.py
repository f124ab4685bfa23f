"""What the measurements share: how their options read, and results as tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml

HIGHEST_PORT = 65535


def parser_of(module: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m module``; ``about``: its docstring, shown as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def count(text: str) -> int:
    """A whole number from 1 up."""
    if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text[:20]!r}")


def counts(text: str) -> list[int]:
    """Such numbers with commas between them."""
    return [count(part) for part in text.split(",")]


def mapping(text: str) -> dict[str, Any]:
    """A YAML mapping; nothing is an empty one."""
    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        given = text
    if not isinstance(given, dict | None):
        raise argparse.ArgumentTypeError(
            f"expected a mapping in YAML such as {{home: {{enabled: false}}}}, got {text[:40]!r}"
        )
    return given or {}


def between(low: float, high: float, unit: str = "") -> Callable[[str], float]:
    """A number from ``low`` to ``high``."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if low <= value <= high:
            return value
        bounds = f"{low:g} to {high:.0f}{unit and ' '}{unit}"
        raise argparse.ArgumentTypeError(f"expected {bounds}, got {text[:20]!r}")

    return number


seconds = between(0, 1e6)
"""A time in seconds or a factor."""


def url(text: str) -> str:
    """Where a server listens, with a ``/v1`` behind it or not: ``http://127.0.0.1:8000``."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if usable:
        return text.rstrip("/").removesuffix("/v1")
    raise argparse.ArgumentTypeError(f"expected http://HOST:PORT, got {text[:60]!r}")


def port(text: str) -> int:
    """A port; 0 is one of the system's."""
    if text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= HIGHEST_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected 0 to {HIGHEST_PORT}, got {text[:20]!r}")


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

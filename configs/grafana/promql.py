"""The two questions that most panels ask of a counter."""

from __future__ import annotations


def rate(series: str, by: str = "") -> str:
    """How fast a counter grows, a second, over the interval of a curve; summed by these labels."""
    return f"{_sum(by)}(rate({series}[$__rate_interval]))"


def grown(series: str, by: str = "", over: str = "$__range") -> str:
    """By how much it grew in all the time that is looked at, or ``over`` so much before."""
    return f"{_sum(by)}(increase({series}[{over}]))"


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"

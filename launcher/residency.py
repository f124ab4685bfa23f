"""Whether something may be loaded into memory that others use: a figure, a verdict, its words.

Pure arithmetic for the plan before a start and for the small models beside a main one. What is
available is MemAvailable; what runs already is gone from it, so of that only the growth still to
come counts, and only once.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Headroom:
    """The machine's memory as a newcomer finds it, all in bytes.

    ``growth_bytes``: what the engines that run may still take. ``margin_bytes``: what has to stay
    above the floor beside it.
    """

    available_bytes: int
    floor_bytes: int
    growth_bytes: int = 0
    margin_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """The most a newcomer may take; below 0: so much is missing already."""
        return self.available_bytes - self.growth_bytes - self.floor_bytes - self.margin_bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim fits; ``left_bytes`` would be available after it, all growth included."""

    fits: bool
    left_bytes: int
    text: str


def growth_to_come(peak_bytes: int, now_bytes: int) -> int:
    """What an engine may still take, of its declared peak and what it takes now."""
    return max(0, peak_bytes - now_bytes)


def verdict(claim_bytes: int, headroom: Headroom) -> Verdict:
    """Whether ``available - growth - claim >= floor + margin``, in words with these figures."""
    left = headroom.available_bytes - headroom.growth_bytes - claim_bytes
    wanted = headroom.floor_bytes + headroom.margin_bytes
    fits = left >= wanted
    sum_of = _gib(headroom.available_bytes) + " available"
    if headroom.growth_bytes:
        sum_of += f" - {_gib(headroom.growth_bytes)} growth still to come"
    sum_of += f" - {_gib(claim_bytes)} claim = {_gib(left)}"
    limit = f"floor {_gib(headroom.floor_bytes)}"
    if headroom.margin_bytes:
        limit += f" + margin {_gib(headroom.margin_bytes)} = {_gib(wanted)}"
    if fits:
        text = f"fits: {sum_of}, {_gib(left - wanted)} above {limit}"
    elif left >= headroom.floor_bytes:
        text = f"refused: {sum_of}, above the floor but {_gib(wanted - left)} under {limit}"
    else:
        text = f"refused: {sum_of}, {_gib(wanted - left)} under {limit}"
    return Verdict(fits, left, text + " (GiB)")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"

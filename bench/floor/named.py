"""Cells of the floor table that do not hold, each with the reason; a test pins their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Named(NamedTuple):
    """``pinned``: slotwise's figures over the bare engine's with :data:`PINNED_SEEDS`; reuse in
    points."""

    why: str
    pinned: Mapping[str, float]


PINNED_SEEDS = range(1, 5)

_SNAPSHOTS = (
    "Two callers want the same head while one slot, at work, holds it. The bare engine copies every "
    "idle slot into its RAM cache at each launch and finds the head there; slotwise starts engines "
    "without these copies, which cost more than they bring in all other workloads. First tokens "
    "come as soon."
)
_BATCHES = (
    "Batches of 512 tokens, which let streams go on while prompts are read, also let a prompt that "
    "comes later begin before one of 2,000 tokens is read."
)
_KEPT = (
    "A slot is kept for the agent that will be back within seconds: the mean and the wall time fall "
    "by it, and one request in twenty waits for longer. keep.enabled: false mends this cell, and "
    "costs every workload with more agents than slots a third of its reuse."
)
_ORDER = (
    "Owners of warm slots go before newcomers, up to the bound of a plain line: the mean falls, and "
    "one request in twenty waits for longer."
)

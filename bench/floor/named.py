"""Cells of the floor table that do not hold, each with the reason; a test pins their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slotwise.bench.floor.simulated import Cell

PINNED_SEEDS = range(1, 5)


class Pinned(NamedTuple):
    """slotwise's figures with :data:`PINNED_SEEDS`: reuse in points of one over the bare engine's,
    times as ratios to its."""

    reuse: float
    ttft: float
    p95: float
    longest: float


class Named(NamedTuple):
    """Why a cell does not hold, and how far it is off."""

    why: str
    pinned: Pinned


_SNAPSHOTS = (
    "two callers want the same head while one slot, at work, holds it; the bare engine copies idle "
    "slots into its RAM cache at each launch and finds it there; slotwise's engines do not, "
    "since the copies cost more than they bring elsewhere; first tokens come as soon"
)
_BATCHES = (
    "batches of 512 tokens let streams go on while prompts are read, and let a prompt that comes "
    "later begin before one of 2,000 tokens is read"
)
_KEPT = (
    "a slot is kept for the agent that is back within seconds: mean and wall time fall by it, one "
    "request in twenty waits for longer; keep.enabled: false mends it, and loses under load"
)
_LINE = (
    "warm contexts go first, for one and a half plain lines at most: mean and wall time fall, and "
    "one request in twenty waits for longer; order.enabled: false mends most of it, and loses "
    "under load"
)
_SIDE = "side jobs give way to whoever waits for a first token, for half a plain line"

NAMED: Mapping[Cell, Named] = {
    Cell("classifiers", 2, "large", "gb10"): Named(_SNAPSHOTS, Pinned(-0.016, 1.01, 0.99, 1.03)),
    Cell("classifiers", 4, "large", "gb10"): Named(_SNAPSHOTS, Pinned(-0.026, 1.01, 1.00, 1.08)),
    Cell("classifiers", 8, "large", "gb10"): Named(_SNAPSHOTS, Pinned(-0.026, 1.01, 1.00, 1.08)),
    Cell("batch", 1, "small", "gb10"): Named(_LINE, Pinned(0.000, 0.98, 1.19, 1.20)),
    Cell("batch", 2, "small", "gb10"): Named(_LINE, Pinned(-0.000, 0.98, 1.07, 1.10)),
    Cell("chat_ui", 2, "large", "gb10"): Named(_SIDE, Pinned(-0.021, 1.04, 1.21, 1.09)),
    Cell("sub_agents", 2, "none", "gb10"): Named(_KEPT, Pinned(0.125, 1.09, 1.53, 1.57)),
    Cell("sub_agents", 4, "none", "gb10"): Named(_KEPT, Pinned(0.040, 1.09, 1.24, 1.93)),
    Cell("sub_agents", 8, "none", "gb10"): Named(_BATCHES, Pinned(0.000, 1.05, 1.07, 1.10)),
    Cell("sub_agents", 8, "small", "gb10"): Named(_BATCHES, Pinned(0.000, 1.02, 1.07, 1.10)),
    Cell("sub_agents", 8, "large", "gb10"): Named(_BATCHES, Pinned(0.000, 1.05, 1.07, 1.10)),
    Cell("agents", 4, "none", "gb10"): Named(_LINE, Pinned(0.548, 0.77, 2.06, 3.26)),
    Cell("mixed", 1, "small", "gb10"): Named(_LINE, Pinned(0.285, 0.70, 1.36, 1.77)),
    Cell("mixed", 2, "none", "gb10"): Named(_LINE, Pinned(0.102, 0.92, 0.95, 1.00)),
    Cell("mixed", 2, "small", "gb10"): Named(_LINE, Pinned(0.328, 0.66, 1.01, 1.39)),
    Cell("mixed", 4, "none", "gb10"): Named(_LINE, Pinned(0.203, 1.06, 1.57, 1.54)),
    Cell("retrieval", 2, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.017, 0.95, 0.84, 0.85)),
    Cell("retrieval", 4, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.007, 0.91, 0.82, 0.85)),
    Cell("retrieval", 8, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.006, 0.92, 0.83, 0.85)),
    Cell("classifiers", 2, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.023, 1.07, 1.30, 1.04)),
    Cell("classifiers", 4, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.030, 1.08, 1.35, 1.06)),
    Cell("classifiers", 8, "large", "tiny"): Named(_SNAPSHOTS, Pinned(-0.030, 1.07, 1.29, 1.06)),
    Cell("batch", 1, "small", "tiny"): Named(_LINE, Pinned(-0.000, 0.98, 1.21, 1.09)),
    Cell("batch", 8, "small", "tiny"): Named(_SNAPSHOTS, Pinned(-0.006, 1.00, 0.99, 1.00)),
    Cell("sub_agents", 4, "none", "tiny"): Named(_KEPT, Pinned(-0.011, 1.16, 1.45, 1.26)),
}

"""Cells and workloads on which slotwise is known to be behind, each with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slotwise.bench.floor.table import Cell

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
    "request in twenty waits for longer; keep: false mends it, and loses under load"
)
_LINE = (
    "warm contexts go first, for one and a half plain lines at most: mean and wall time fall, and "
    "one request in twenty waits for longer; order: false mends most of it, and loses "
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
    Cell("mixed", 2, "none", "gb10"): Named(_LINE, Pinned(0.180, 0.84, 0.85, 1.07)),
    Cell("mixed", 2, "small", "gb10"): Named(_LINE, Pinned(0.279, 0.70, 1.01, 1.39)),
    Cell("mixed", 4, "none", "gb10"): Named(_LINE, Pinned(0.203, 1.03, 1.53, 1.55)),
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


class Worst(NamedTuple):
    """``ttft``: times the bare engine's mean; ``behind``: reuse, in points of one."""

    case: str  # as the search prints it
    ttft: float
    behind: float


WORST = (
    Worst("chat_ui:193390+tools_in_turn:466421 4/small/gb10 lanes 0:1,1:32", 0.98, 0.000),
    Worst("preambles_streamed:93603+tools_in_turn:464018 2/none/gb10 lanes 0:1,1:32", 1.08, 0.025),
    Worst("growing:432039+tools_in_turn:957697 2/small/gb10 lanes 2:2,3:32", 0.98, 0.000),
    Worst("satellites:726054+batch:498215 1/none/gb10 lanes 0:18,7:6,8:6", 1.29, 0.286),
    Worst(
        "growing:846894+retrieval:855556+tools_in_turn:138140 8/none/gb10"
        " lanes 0:2,1:1,2:2,3:2,4:2,5:32",
        0.80,
        0.009,
    ),
    Worst(
        "preambles:510649+tools_in_turn:946699+batch:360442 4/small/gb10 lanes 1:16,3:24",
        1.00,
        0.013,
    ),
    Worst(
        "retrieval:209091+chat_ui:527452+tools_in_turn:595146 4/small/tiny lanes 2:2,3:32",
        0.97,
        0.000,
    ),
    Worst(
        "batch:176510+classifiers:693218+preambles_streamed:699143 1/none/gb10 lanes 0:2,1:2,4:40",
        1.07,
        0.068,
    ),
    Worst("retrieval:914273+tools_in_turn:813201 2/none/tiny lanes 1:1,2:32", 1.02, 0.008),
    Worst("classifiers:426798 8/large/tiny", 1.21, 0.072),
    Worst(
        "chat_alone:558990+sub_agents:799229 4/none/gb10 lanes 1:10,2:3,3:6,4:6,5:6", 0.93, -0.210
    ),
    Worst("infill:663901 8/small/tiny lanes 0:30,1:1", 1.80, 0.000),
    Worst("sub_agents:650886+chat_ui:432381 1/none/tiny lanes 0:20,5:15", 1.41, 0.071),
    Worst("tools_in_turn:95892+sub_agents:76432 4/none/tiny lanes 0:16,1:2,2:6,3:6", 1.42, 0.172),
    Worst(
        "retries_streamed:493369+satellites:957396+batch:799185 2/none/tiny lanes 2:36,7:1",
        1.67,
        0.074,
    ),
    Worst("preambles_streamed:805019+satellites:59541 4/none/tiny lanes 0:20,1:18", 1.45, 0.046),
    Worst(
        "retries_streamed:115503+tools_in_turn:664693+strangers:4772 4/none/gb10"
        " lanes 1:3,2:8,4:10,6:16",
        0.97,
        -0.098,
    ),
    Worst("tools_in_turn:60471+growing:166978 2/none/tiny", 1.31, 0.080),
    Worst("sub_agents:839073+tools_in_turn:115766 4/none/tiny lanes 1:2,2:6,3:6,4:16", 0.92, 0.011),
    Worst("agents:734244+batch:78497 2/none/tiny lanes 1:16,3:8,4:8,5:8,6:8,7:8", 0.87, -0.155),
    Worst("tools_in_turn:862977+retries_streamed:86284 2/small/tiny", 2.38, 0.057),
    Worst("chat_ui:961783+sub_agents:324705 1/none/tiny lanes 0:8,1:20", 1.57, 0.089),
    Worst(
        "infill:804584+preambles:233833+satellites:610861 8/none/gb10 lanes 0:4,2:20,3:9",
        0.96,
        0.000,
    ),
    Worst(
        "tools_in_turn:880920+preambles_streamed:517439+agent_with_classifiers:954635 2/none/gb10"
        " lanes 0:16,2:21",
        1.24,
        -0.074,
    ),
    Worst("batch:994396+strangers:813011 1/none/gb10 lanes 6:1,7:3,10:10,11:16", 1.06, 0.214),
)

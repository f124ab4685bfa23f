"""The worst that searches have found, with how far slotwise is behind on them today: CI serves them
again. What was mended stays, so that it is seen when it comes back."""

from __future__ import annotations

from typing import NamedTuple


class Worst(NamedTuple):
    """``ttft``: times the bare engine's mean; ``behind``: reuse, in points of one."""

    case: str  # as the search prints it
    ttft: float
    behind: float


WORST = (
    Worst(
        "chat_ui:193390+tools_in_turn:466421 4/small/gb10 lanes 0:1,1:32",
        ttft=0.98,
        behind=0.000,
    ),
    Worst(
        "preambles_streamed:93603+tools_in_turn:464018 2/none/gb10 lanes 0:1,1:32",
        ttft=1.08,
        behind=0.025,
    ),
    Worst(
        "growing:432039+tools_in_turn:957697 2/small/gb10 lanes 2:2,3:32",
        ttft=0.98,
        behind=0.000,
    ),
    Worst(
        "satellites:726054+batch:498215 1/none/gb10 lanes 0:18,7:6,8:6",
        ttft=1.29,
        behind=0.286,
    ),
    Worst(
        "growing:846894+retrieval:855556+tools_in_turn:138140 8/none/gb10"
        " lanes 0:2,1:1,2:2,3:2,4:2,5:32",
        ttft=0.80,
        behind=0.009,
    ),
    Worst(
        "preambles:510649+tools_in_turn:946699+batch:360442 4/small/gb10 lanes 1:16,3:24",
        ttft=1.00,
        behind=0.013,
    ),
    Worst(
        "retrieval:209091+chat_ui:527452+tools_in_turn:595146 4/small/tiny lanes 2:2,3:32",
        ttft=0.97,
        behind=0.000,
    ),
    Worst(
        "batch:176510+classifiers:693218+preambles_streamed:699143 1/none/gb10 lanes 0:2,1:2,4:40",
        ttft=1.07,
        behind=0.068,
    ),
    Worst(
        "retrieval:914273+tools_in_turn:813201 2/none/tiny lanes 1:1,2:32",
        ttft=1.02,
        behind=0.008,
    ),
    Worst(
        "classifiers:426798 8/large/tiny",
        ttft=1.21,
        behind=0.072,
    ),
    Worst(
        "chat_alone:558990+sub_agents:799229 4/none/gb10 lanes 1:10,2:3,3:6,4:6,5:6",
        ttft=0.93,
        behind=-0.210,
    ),
    Worst(
        "infill:663901 8/small/tiny lanes 0:30,1:1",
        ttft=1.80,
        behind=0.000,
    ),
    Worst(
        "sub_agents:650886+chat_ui:432381 1/none/tiny lanes 0:20,5:15",
        ttft=1.41,
        behind=0.071,
    ),
    Worst(
        "tools_in_turn:95892+sub_agents:76432 4/none/tiny lanes 0:16,1:2,2:6,3:6",
        ttft=1.42,
        behind=0.172,
    ),
    Worst(
        "retries_streamed:493369+satellites:957396+batch:799185 2/none/tiny lanes 2:36,7:1",
        ttft=1.67,
        behind=0.074,
    ),
    Worst(
        "preambles_streamed:805019+satellites:59541 4/none/tiny lanes 0:20,1:18",
        ttft=1.45,
        behind=0.046,
    ),
    Worst(
        "retries_streamed:115503+tools_in_turn:664693+strangers:4772"
        " 4/none/gb10 lanes 1:3,2:8,4:10,6:16",
        ttft=0.97,
        behind=-0.098,
    ),
    Worst(
        "tools_in_turn:60471+growing:166978 2/none/tiny",
        ttft=1.31,
        behind=0.080,
    ),
    Worst(
        "sub_agents:839073+tools_in_turn:115766 4/none/tiny lanes 1:2,2:6,3:6,4:16",
        ttft=0.92,
        behind=0.011,
    ),
    Worst(
        "agents:734244+batch:78497 2/none/tiny lanes 1:16,3:8,4:8,5:8,6:8,7:8",
        ttft=0.87,
        behind=-0.155,
    ),
    Worst(
        "tools_in_turn:862977+retries_streamed:86284 2/small/tiny",
        ttft=2.38,
        behind=0.057,
    ),
    Worst(
        "chat_ui:961783+sub_agents:324705 1/none/tiny lanes 0:8,1:20",
        ttft=1.57,
        behind=0.089,
    ),
    Worst(
        "infill:804584+preambles:233833+satellites:610861 8/none/gb10 lanes 0:4,2:20,3:9",
        ttft=0.96,
        behind=0.000,
    ),
    Worst(
        "tools_in_turn:880920+preambles_streamed:517439+agent_with_classifiers:954635"
        " 2/none/gb10 lanes 0:16,2:21",
        ttft=1.24,
        behind=-0.074,
    ),
    Worst(
        "batch:994396+strangers:813011 1/none/gb10 lanes 6:1,7:3,10:10,11:16",
        ttft=1.06,
        behind=0.214,
    ),
)

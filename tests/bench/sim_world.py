"""Small recorded workloads, written for a test, and runs of the simulator on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from slotwise.bench.sim import arms, cost_model
from slotwise.bench.sim.load import Recorded, Shape, Workload, closed_loop
from slotwise.bench.sim.simulation import Run
from slotwise.bench.sim.simulation import simulate as simulated
from slotwise.policies.params import Params

EVIDENCE = cost_model.load("evidence")
PARAMS = replace(Params(), cost=EVIDENCE.as_policy())


def call(session: str, turn: int, blocks: str, tokens: int, **changes: Any) -> dict[str, Any]:
    return {
        "session": session,
        "agent": "main",
        "turn": turn,
        "t": 10.0 * turn,
        "in": tokens,
        "out": 50,
        "think_time": 5.0,
        "blocks": blocks,
    } | changes


def written(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "made.blocks.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(record) for record in records))
    return path


def agents(folder: Path, count: int = 6, turns: int = 8) -> Path:
    """Sessions that grow by ten blocks a turn from a head of 64 blocks."""
    return written(
        folder,
        *(
            call(
                f"cc-{s}",
                k,
                f"1-{100 + 10 * k}",
                64 * (100 + 10 * k) + 7,
                **({"tool_tokens": 3000, "system_tokens": 1096} if k == 0 else {}),
            )
            for s in range(count)
            for k in range(turns)
        ),
    )


def workload(folder: Path, seed: int = 1, **shape: Any) -> Workload:
    made = Shape(**({"sessions": 4, "spread_s": 20} | shape))
    return closed_loop(Recorded(agents(folder), made), made, seed)


def run(work: Workload, name: str, slots: int = 2, park: int = 20_000) -> Run:
    [arm] = arms.arms([name], slots, park, PARAMS)
    return simulated(work, arm, EVIDENCE)


def facts(one: Run) -> list[tuple[str, float, float, float, int]]:
    return [(s.ask.id, s.arrived, s.first, s.finished, s.cached) for s in one.served]

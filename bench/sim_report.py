"""Figures of simulated runs: means over seeds, what no schedule can beat, and a plot."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, overload

from slotwise.bench import bounds
from slotwise.bench.cost_model import CostModel
from slotwise.bench.report import percentile
from slotwise.bench.rows import Row
from slotwise.bench.sim_workload import Ask, Workload
from slotwise.bench.simulation import Run

BASELINE = "llama.cpp"
_RATIOS = ("TTFT s", "guest TTFT s", "session min")
_PLOTTED = ("TTFT s", "guest TTFT s", "session min", "reuse")


def figures(run: Run) -> dict[str, float]:
    """One run's figures. A turn is a request of a session; guests are counted apart."""
    turns = [s.ttft_s for s in run.served if not s.ask.guest]
    guests = [s.ttft_s for s in run.served if s.ask.guest]
    waits = [s.begun - s.arrived for s in run.served]
    prompt = sum(s.ask.prompt_tokens for s in run.served)
    return {
        "TTFT s": fmean(turns),
        "p50 s": percentile(turns, 50) or 0.0,
        "p95 s": percentile(turns, 95) or 0.0,
        "guest TTFT s": fmean(guests) if guests else 0.0,
        "session min": fmean(run.sessions_s) / 60,
        "reuse": sum(s.cached for s in run.served) / prompt,
        "prefill s": run.prefill_s,
        "copies s": run.copy_s,
        "wait s": fmean(waits),
        "longest wait s": max(waits),
        "refused": float(sum(s.refused for s in run.served)),
    }


def floor(workload: Workload, cost: CostModel, slots: int, park_tokens: int) -> dict[str, float]:
    """What no schedule can beat.

    Seconds: nobody waits, the engine serves each request alone, an infinite cache served all it
    ever saw. ``reuse``: Belady's choice with as much room as the slots and the RAM cache have.
    Both take requests in the order of such a schedule.
    """
    asks = _in_order(workload, cost)
    rows = _Rows(asks)
    reused = bounds.infinite_each(rows)
    ttft_s = {
        ask.id: cost.prefill_s(n, ask.prompt_tokens) for ask, n in zip(asks, reused, strict=True)
    }
    turns = [ttft_s[ask.id] for ask in asks if not ask.guest]
    guests = [ttft_s[ask.id] for ask in asks if ask.guest]
    prompt = sum(ask.prompt_tokens for ask in asks)
    sessions_s = [
        sum(a.pause_s for a in session[1:])
        + sum(ttft_s[a.id] + (a.output - 1) * cost.step_s(1) for a in session)
        for session in workload.sessions
    ]
    room = park_tokens + bounds.largest_residents(rows, slots)
    return {
        "TTFT s": fmean(turns),
        "p50 s": percentile(turns, 50) or 0.0,
        "p95 s": percentile(turns, 95) or 0.0,
        "guest TTFT s": fmean(guests) if guests else 0.0,
        "session min": fmean(sessions_s) / 60,
        "reuse": bounds.park(rows, room, reused) / prompt,
        "prefill s": bounds.time_floor_s(rows, reused, cost.prefill_s),
        "copies s": 0.0,
        "wait s": 0.0,
        "longest wait s": 0.0,
        "refused": 0.0,
    }


class _Rows(Sequence[Row]):
    """The rows of requests, each made when it is looked at."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks

    def __len__(self) -> int:
        return len(self._asks)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> _Rows: ...
    def __getitem__(self, at: int | slice) -> Row | _Rows:
        return _Rows(self._asks[at]) if isinstance(at, slice) else self._asks[at].row


def _in_order(workload: Workload, cost: CostModel) -> list[Ask]:
    """All requests in the order of a schedule without prefill and waits."""
    live = workload.live or len(workload.sessions)
    free = [0.0] * min(live, len(workload.sessions))  # when each client may begin a session
    timed: list[tuple[float, int, Ask]] = []
    for session in workload.sessions:
        now = heapq.heappop(free)
        for ask in session:
            now += ask.pause_s
            for one in (ask, *ask.beside):
                timed.append((now, len(timed), one))
            now += ask.output * cost.step_s(1)
        heapq.heappush(free, 0.0 if workload.live is None else now)
    return [ask for _, _, ask in sorted(timed, key=lambda entry: entry[:2])]


def averaged(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every figure over runs."""
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def compared(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of one setup with their ratios to llama.cpp's default, where it is among them."""
    base = next((row for row in rows if row["arm"] == BASELINE), None)
    if base is None:
        return list(rows)
    return [
        row | {f"{name}/base": row[name] / base[name] if base[name] else None for name in _RATIOS}
        for row in rows
    ]


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of the figures that matter, by setup and arm; raises ``ValueError`` without matplotlib.

    The ending of ``path`` is the format: png, svg or pdf.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plot: needs matplotlib, see the extra [bench]") from None
    setups = list(dict.fromkeys(row["setup"] for row in rows))
    names = list(dict.fromkeys(row["arm"] for row in rows))
    figure = Figure(figsize=(4.2 * len(_PLOTTED), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(_PLOTTED)), _PLOTTED, strict=True):
        for place, arm in enumerate(names):
            of_arm = {row["setup"]: row[name] for row in rows if row["arm"] == arm}
            width = 0.8 / len(names)
            at = [n - 0.4 + (place + 0.5) * width for n in range(len(setups))]
            axes.bar(at, [of_arm.get(setup, 0.0) for setup in setups], width, label=arm)
        axes.set_xticks(range(len(setups)), setups, rotation=30, ha="right")
        axes.set_title(name)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), fontsize="small")
    figure.savefig(path)

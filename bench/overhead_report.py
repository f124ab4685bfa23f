"""The figures of the overhead benchmark as tables."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from slotwise.bench.overhead_arms import Arm
from slotwise.bench.report import markdown_table, percentile

SHORT, LONG = "200", "100k"
DIRECT, NGINX = "direct", "nginx"
PERCENTS = (50, 99)
AT_MOST_OF_NGINX = 8.0  # added to a short call
AT_MOST_OF_TEMPLATE = 1.3  # added to a long one
AT_LEAST_OF_DIRECT = 0.8  # events a second of 16 streams
NO_NGINX = "nginx is not installed here (apt-get install nginx-light): measured without it."
Row = dict[str, Any]
Flows = dict[int, dict[str, list[tuple[float, float]]]]
"""By number of streams, by arm: events a second, and processor seconds an event."""


@dataclass
class Figures:
    """Everything that was measured; times to the first token by length of the prompt and arm."""

    ttft_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)  # the proxy's, a call
    apply_s: dict[str, list[float]] = field(default_factory=dict)  # the real /apply-template
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the prompts, from - to
    flows: Flows = field(default_factory=dict)


def report(figures: Figures, arms: Sequence[Arm], load: float) -> str:
    """All tables as markdown, with how the arms were started and the machine's load before."""
    short, long = (f"{low:,} to {high:,}" for low, high in figures.tokens.values())
    parts = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores shared by client, proxy and "
        f"engine, load {load:.2f} before{_priority()}.",
        *([] if NGINX in figures.ttft_s[SHORT] else [NO_NGINX]),
        f"Milliseconds to the first token, what is added to a direct call, and the proxy's "
        f"processor time; {SHORT}: {short} tokens, {len(figures.ttft_s[SHORT][DIRECT])} "
        f"conversations, {LONG}: {long} tokens, {len(figures.ttft_s[LONG][DIRECT])} turns.",
        markdown_table(ttft_rows(figures)),
        "Events a second, and the proxy's processor time for each, medians of the rounds; one "
        "event of each stream every 0.24 ms, each written alone.",
        markdown_table(flow_rows(figures)),
        markdown_table(verdicts(figures)),
        "\n".join(f"- {arm.name}: {arm.line}" for arm in arms),
    ]
    return "\n\n".join(parts)


def _priority() -> str:
    """Said where the run was set before all others, which a busy machine may need."""
    usual = os.sched_getscheduler(0) == os.SCHED_OTHER
    return "" if usual else "; at real-time priority, past everything else on the machine"


def ttft_rows(figures: Figures) -> list[Row]:
    """Time to the first token by arm: as it is, and what is added to a direct call."""
    rows: list[Row] = []
    for arm in figures.ttft_s[SHORT]:
        row: Row = {"arm": arm}
        for length, percent in ((n, p) for n in (SHORT, LONG) for p in PERCENTS):
            here = _ms(figures.ttft_s[length][arm], percent)
            direct = _ms(figures.ttft_s[length][DIRECT], percent)
            row[f"{length}: p{percent}"] = f"{here:.2f}"
            row[f"{length}: p{percent} added"] = "-" if arm == DIRECT else f"{here - direct:+.2f}"
        for length in (SHORT, LONG):
            cpu = f"{figures.cpu_s[length][arm] * 1000:.2f}"
            row[f"{length}: CPU a call"] = "-" if arm == DIRECT else cpu
        rows.append(row)
    template: Row = dict.fromkeys(rows[0], "-") | {"arm": "one real /apply-template"}
    for length, percent in ((n, p) for n in (SHORT, LONG) for p in PERCENTS):
        template[f"{length}: p{percent}"] = f"{_ms(figures.apply_s[length], percent):.2f}"
    return [*rows, template]


def flow_rows(figures: Figures) -> list[Row]:
    """Events a second and processor time an event by arm, medians of the rounds."""
    rows: list[Row] = []
    for count, kept in figures.flows.items():
        for arm, runs in kept.items():
            cpu_us = median(cpu_s for _, cpu_s in runs) * 1e6
            rows.append(
                {
                    "streams": count,
                    "arm": arm,
                    "events/s": round(median(per_s for per_s, _ in runs)),
                    "of direct": f"{of_direct(figures, count, arm):.2f}",
                    "us an event": "-" if arm == DIRECT else f"{cpu_us:.1f}",
                }
            )
    return rows


def of_direct(figures: Figures, count: int, arm: str) -> float:
    """Events a second as a share of the direct ones: the median over the rounds."""
    kept = figures.flows[count]
    return median(a / b for (a, _), (b, _) in zip(kept[arm], kept[DIRECT], strict=True))


def verdicts(figures: Figures) -> list[Row]:
    """Each target beside what was measured, for each slotwise."""
    rows: list[Row] = []
    template_ms = _ms(figures.apply_s[LONG], 50)
    for arm in figures.ttft_s[SHORT]:
        if arm in (DIRECT, NGINX):
            continue
        if NGINX in figures.ttft_s[SHORT]:
            ratio = added_ms(figures, SHORT, arm) / added_ms(figures, SHORT, NGINX)
            what = "added to 200 tokens, of what nginx adds"
            rows.append(
                _row(arm, what, ratio, f"<= {AT_MOST_OF_NGINX:g}", ratio <= AT_MOST_OF_NGINX)
            )
        ratio = added_ms(figures, LONG, arm) / template_ms
        held = ratio <= AT_MOST_OF_TEMPLATE
        what = "added to 100k tokens, of one real /apply-template"
        rows.append(_row(arm, what, ratio, f"<= {AT_MOST_OF_TEMPLATE:g}", held))
        most = max(figures.flows)
        ratio = of_direct(figures, most, arm)
        held = ratio >= AT_LEAST_OF_DIRECT
        what = f"events/s of {most} streams, of direct"
        rows.append(_row(arm, what, ratio, f">= {AT_LEAST_OF_DIRECT:g}", held))
    return rows


def _row(arm: str, what: str, ratio: float, target: str, held: bool) -> Row:
    told = "yes" if held else "NO"
    return {"arm": arm, "median of": what, "ratio": f"{ratio:.2f}", "target": target, "held": told}


def added_ms(figures: Figures, length: str, arm: str) -> float:
    """What an arm adds to the median time to the first token."""
    times = figures.ttft_s[length]
    return _ms(times[arm], 50) - _ms(times[DIRECT], 50)


def _ms(times_s: Sequence[float], percent: float) -> float:
    return (percentile(times_s, percent) or 0.0) * 1000

"""What ``slotwise bench --only floor`` writes: the table, in virtual time and on the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotwise.bench.floor import engine, table
from slotwise.bench.floor.known import NAMED
from slotwise.bench.floor.shapes import workload
from slotwise.bench.floor.table import BARE, RULE, UNFELT_S, Cell, CellResult
from slotwise.bench.run.served import Bench
from slotwise.bench.sim import arms
from slotwise.bench.sim.arms import SLOTWISE
from slotwise.bench.trace.report import markdown_table
from slotwise.policies.params import Params

_SEEDS, _QUICK_SEEDS = 16, 2
_ABLATED_SEEDS = 2
_ON_ENGINE = (
    *("preambles", "preambles_streamed", "satellites", "retrieval", "batch", "chat_alone"),
    *("chat_ui", "agent_with_classifiers", "retries", "retries_streamed", "regenerate"),
    *("growing", "tools_in_turn", "strangers"),
)
_ELSEWHERE = ("preambles", "retrieval", "chat_ui")
_PLACES = {
    engine.EngineCell(4, "none"): _ON_ENGINE,
    engine.EngineCell(4, "large"): _ELSEWHERE,
    engine.EngineCell(4, "none", True): _ELSEWHERE,
}


def measure(bench: Bench, quick: bool) -> str:
    """The body of ``floor.md``."""
    seeds = range(1, 1 + (_QUICK_SEEDS if quick else _SEEDS))
    cells = table.cells(slots=(4,), rams=("none",)) if quick else table.cells()
    results = list(table.run(cells, seeds))
    off = [one for one in results if one.breaches()]
    rule = (
        f"The rule: reuse at least the bare engine's less {100 * RULE.reuse:.0f} point, mean and "
        f"p95 time to first token at most {RULE.ttft} times, the longest wait {RULE.longest} "
        f"times, the wall time {RULE.wall} times. Less than {1000 * UNFELT_S:.0f} ms is no "
        "difference. A whole answer comes at its end; who gives up has waited until then."
    )
    parts = [
        "What clients of many sorts send, generated from seeds: the bare engine (llama.cpp as it "
        "is started by default) beside slotwise, both with the same slots and RAM cache.",
        rule,
        "## In virtual time",
        f"Means over {len(seeds)} seeds on the costs of a 125B model on GB10 and of the tiny "
        "model; the RAM cache holds nothing, a third of what lives, or four times as much. What a "
        "request takes outside the engine's loop (HTTP, template, tokenizing) is left out: "
        "`bench/results/overhead.md` has it. A figure is the bare engine's, and behind it "
        "slotwise's (reuse) or how many times as much slotwise took; `of seeds`: the lowest and "
        "the highest ratio of the time to first token.",
        f"{len(results) - len(off)} of {len(results)} cells hold.",
        markdown_table(table.rows(results, _verdict)),
        "## On the engine",
        "The tiny model (random weights) with four slots, one seed, two cores shared by clients, "
        f"proxy and engine; times less {1000 * engine.PROXY_S:.1f} ms a call, which is what "
        "slotwise adds to a short one. `pool`: a unified KV pool. Every text that is new is "
        "tokenized twice on these cores, here and in the engine.",
        markdown_table(_on_engine(bench, quick)),
    ]
    return "\n\n".join(parts)


def _verdict(result: CellResult) -> str:
    found = result.breaches()
    if not found:
        return "holds"
    named = NAMED.get(result.cell)
    return f"{', '.join(found)}: {named.why if named else 'not named'}"


def _on_engine(bench: Bench, quick: bool) -> list[dict[str, Any]]:
    wanted = [(place, shape) for place, shapes in _PLACES.items() for shape in shapes]
    rows = []
    with bench.progress() as progress:
        for place, shape in progress.track(wanted[:2] if quick else wanted):
            bare = engine.measure(shape, 1, place, BARE)
            own = engine.measure(shape, 1, place, SLOTWISE)
            own = engine.less_proxy(own, workload(shape, 1, engine.PACE_S))
            runs = {BARE: [bare], SLOTWISE: [own]}
            result = CellResult(Cell(shape, place.slots, str(place), ""), runs)
            row = table.rows([result], lambda one: ", ".join(one.breaches()) or "holds")[0]
            del row["of seeds"]
            rows.append(row)
    return rows


def ablate(_bench: Bench, quick: bool) -> str:
    """The body of ``floor-ablate.md``: what each switch of the rules wins and costs."""
    names = [name for name, _ in arms.switched(Params())]
    cells = table.cells(slots=(4,), rams=("none",)) if quick else table.cells()
    seeds = range(1, 1 + (1 if quick else _ABLATED_SEEDS))
    results = list(table.run(cells, seeds, (BARE, SLOTWISE, *names)))
    summary = [_switch(name, results) for name in names]
    parts = [
        f"slotwise with each switch of the rules the other way, on {len(cells)} cells, means over "
        f"{len(seeds)} seeds. TTFT and reuse: the mean over cells of the change by the switch; "
        "above 1, and below 0, the rule as it is wins.",
        markdown_table(summary),
        "## Cells that do not hold, or not with a switch",
        "With the rules as they are, and with each switch the other way that mends them or that "
        "brings another cell out of the rule.",
        markdown_table(crossings(names, results)),
        "## Cell by cell",
        "The time to first token with the switch the other way, over that with the rules as they "
        "are, where it differs by a twentieth or more.",
        markdown_table(_by_cell(names, results)),
    ]
    return "\n\n".join(parts)


def _switch(name: str, results: Sequence[CellResult]) -> dict[str, Any]:
    own = [one.mean(SLOTWISE) for one in results]
    other = [one.mean(name) for one in results]
    ttft = [table.ratio(a.ttft, b.ttft) for a, b in zip(own, other, strict=True)]
    reuse = [b.reuse - a.reuse for a, b in zip(own, other, strict=True)]
    crossing = [bool(one.breaches()) for one in results if _crosses(one, name)]
    return {
        "switch": name.removeprefix(SLOTWISE),
        "TTFT": f"x{sum(ttft) / len(ttft):.3f}",
        "reuse": f"{sum(reuse) / len(reuse):+.4f}",
        "worst cell": f"x{max(ttft):.2f}",
        "best cell": f"x{min(ttft):.2f}",
        "cells it breaks": crossing.count(False),
        "cells it mends": crossing.count(True),
    }


def _crosses(one: CellResult, name: str) -> bool:
    """Whether the cell holds with the switch where it does not without, or the other way."""
    return bool(one.breaches(name)) != bool(one.breaches())


def crossings(names: Sequence[str], results: Sequence[CellResult]) -> list[dict[str, Any]]:
    """The cells that do not hold, or not with one of these switches, and which switches do it."""
    rows = []
    for one in results:
        outside = one.breaches()
        crossing = [name.removeprefix(SLOTWISE) for name in names if _crosses(one, name)]
        if outside or crossing:
            rows.append(
                {
                    "cell": str(one.cell),
                    "outside": ", ".join(outside) or "holds",
                    "mended by": ", ".join(crossing) if outside else "",
                    "broken by": "" if outside else ", ".join(crossing),
                }
            )
    return rows


def _by_cell(names: Sequence[str], results: Sequence[CellResult]) -> list[dict[str, Any]]:
    rows = []
    for one in results:
        own = one.mean(SLOTWISE)
        changes = []
        for name in names:
            times = table.ratio(own.ttft, one.mean(name).ttft)
            if abs(times - 1) >= 0.05:
                changes.append(f"{name.removeprefix(SLOTWISE)} x{times:.2f}")
        if changes:
            rows.append({"cell": str(one.cell), "switches": ", ".join(changes)})
    return rows

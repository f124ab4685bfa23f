"""Recorded Claude Code sessions under load, in virtual time: slotwise, llama.cpp and the floor."""

from __future__ import annotations

import shlex

from slotwise.bench import simulate
from slotwise.bench.report import markdown_table
from slotwise.bench.served import Bench

_TRACE, _HEAVIER = "claude_code.blocks", "claude_code_300.blocks"
_GRID = "4/4/90k,8/8/90k,8/4/90k,16/8/350k"
_HEAVY_GRID = "8/4/90k,16/8/350k"
_ARMS = "llama.cpp,llama.cpp-no-idle-slots,session-pin,slotwise,optimum"
_SHOWN = ("TTFT s", "p95 s", "guest TTFT s", "session min", "reuse", "longest wait s")
_SHOWN_RATIOS = ("TTFT s/base", "guest TTFT s/base", "session min/base")


def _table(*more: str, seeds: int, name: str = _TRACE, grid: str = _GRID) -> str:
    """One run of the simulator: its command, and the columns that matter of its table."""
    words = [name, "--grid", grid, "--arms", _ARMS, "--seeds", str(seeds), *more]
    shown = [
        {"sessions/slots/park": row["setup"], "arm": row["arm"]}
        | {name: row[name] for name in (*_SHOWN, *_SHOWN_RATIOS)}
        for row in simulate.rows(words)
    ]
    return f"`slotwise simulate {shlex.join(words)}`\n\n{markdown_table(shown)}"


def claude_code(bench: Bench, quick: bool) -> str:
    """Every setup on both cost models, and with longer prompts."""
    seeds = 1 if quick else 10
    parallel = ("--policy", "{max_running: 8}")
    parts = (
        "The first 40 calls of 40 recorded Claude Code sessions in a random order, so many of them "
        "live at a time: answers of 1,500 tokens at most, pauses of 600 s, a guest of 768 to "
        "2,048 tokens on 15 % of the turns, three quarters of tools and system text shared. Means "
        "over seeds; `/base` is the ratio to llama.cpp's default. `optimum` is what no schedule "
        "can beat: nobody waits, each request has the engine for itself, and nothing that a cache "
        "ever held is read again; its reuse is the best for the room that slots and park have.",
        "## As recorded",
        "Prefill 2,000 tokens a second, decode 35 for each sequence, state copies 200,000. As on a "
        "real machine slotwise's engine has batches of 512 tokens, the others of 2,048.",
        _table(*parallel, seeds=seeds),
        "## Prompts half as long again",
        "In the evaluation that published these cost figures llama.cpp's default came to a first "
        "token after 94 s at 8/4 and 184 s at 16/8, on 380 sessions of the same source. The 40 of "
        "this trace load the engine less; with prompts 1.5 times as long they come near to that.",
        _table(*parallel, "--stretch", "1.5", seeds=seeds),
        "## A 125B model on GB10",
        "As many requests run at a time as by default: beside another one each takes as long as "
        "both in turn.",
        _table("--cost", "gb10", seeds=min(seeds, 3)),
        "## 300 heavier sessions",
        "Sessions of the same source that nothing was tuned on, in one random order.",
        _table(*parallel, seeds=1, name=_HEAVIER, grid="8/4/90k" if quick else _HEAVY_GRID),
    )
    return "\n\n".join(parts)

"""The simulator against the engine: fitted on one trace, checked on another.

What is replayed is simulated too: the same prompts token by token, the same sessions in the same
order with the same pauses, slots, RAM cache and rules, several seeds of each. A simulated run is
free of the noise of a machine, and one run of a chaotic process says little: for every replay
several are simulated, each with pauses a few milliseconds longer, and their mean counts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np

from slotwise.bench import arms, calibrate, fit, replay_figures, served, sim_report, trace
from slotwise.bench.arms import Arm
from slotwise.bench.as_simulated import Prompts, as_workload, prompts
from slotwise.bench.calibrate import Calibrated
from slotwise.bench.cost_model import COSTS, CostModel
from slotwise.bench.report import markdown_table
from slotwise.bench.scripts import Wanted, of_calls
from slotwise.bench.served import Bench
from slotwise.bench.side_by_side import Figures, Pair, order, row
from slotwise.bench.simulation import simulate
from slotwise.bench.steps import Script, Step
from slotwise.bench.suite_mixed import (
    MOST_PROMPT,
    PARK_TOKENS,
    THINK_S,
    THINK_SCALE,
    four_arms,
    shorter,
)
from slotwise.bench.suite_slots import SLOTS
from slotwise.policies.params import from_mapping

CHECKED_ON = "sweagent"
_NO_SNAPSHOTS = "llama.cpp-no-idle-slots"
SIMULATED = ("llama.cpp", _NO_SNAPSHOTS, "session-pin", arms.SLOTWISE)
LIVE = 8
MOST_CALLS = 10  # of a session
MOST_OUTPUT = 32
_SHAKEN = 20  # simulated runs for each replay
_SHAKE_S = 0.02  # a pause is at most so much longer: what a call takes differs as much


@dataclass(frozen=True, slots=True)
class Setup:
    """In which order calls come, how large the RAM cache is, and how many seeds that needs."""

    closed_loop: bool
    ram_tokens: int
    runs: int

    def __str__(self) -> str:
        way = "closed loop" if self.closed_loop else "one at a time"
        return f"{way}, RAM {self.ram_tokens // 1000}k"


SETUPS = (
    Setup(True, PARK_TOKENS, 3),
    Setup(True, 0, 4),
    Setup(False, PARK_TOKENS, 2),
    Setup(False, 0, 3),
)


def reality(bench: Bench, quick: bool) -> str:
    """Fit, then the same arms simulated and replayed."""
    costs = calibrate.calibrated(bench, quick)
    if not quick:
        comment = f"Fitted by slotwise bench to replays of {calibrate.TRACE} on two shared cores."
        COSTS.joinpath("tiny.yaml").write_text(fit.as_yaml(costs.bare, comment), "utf-8")
    script = _script(quick, 1)
    known = prompts(bench, script)
    rows, orders = [], []
    for setup in SETUPS:
        runs = 1 if quick else setup.runs
        by_arm: dict[str, list[Pair]] = {}
        for seed in range(1, runs + 1):
            sent = shorter(_script(quick, seed), known.tokens, MOST_PROMPT)
            sent = sent if setup.closed_loop else _one_at_a_time(sent, seed)
            for name, pair in _pairs(bench, setup, sent, known, costs):
                by_arm.setdefault(name, []).append(pair)
        rows += [row(str(setup), name, pairs) for name, pairs in by_arm.items()]
        orders.append(order(str(setup), by_arm))
    size = f"the first {MOST_CALLS} calls of {len(script.sessions)} sessions"
    pauses = f"pauses about {THINK_S * THINK_SCALE:.1f} s (log-normal)"
    return (
        f"{costs.about()}\n\nChecked on {CHECKED_ON}: {size}, {len(sent)} calls, {LIVE} sessions "
        f"live on {SLOTS} slots, {pauses}. Runs are seeds 1, 2, ...: of sessions' order and "
        f"pauses, the same on both sides; a simulated one is the mean of {_SHAKEN} with pauses up "
        f"to {1000 * _SHAKE_S:.0f} ms longer. `points` is simulated less replayed reuse, `± error` "
        f"the standard error of its mean, `within 1` open where twice that error allows neither "
        f"yes nor no.\n\n{markdown_table(rows)}\n\nOrder of the arms by reuse, two within a point "
        f"or twice the standard error of their difference counted as tied; and seed by seed, where "
        f"both sides tell two apart by more than a point:\n\n" + "\n".join(orders)
    )


def _script(quick: bool, seed: int) -> Script:
    wanted = Wanted(
        total=4 if quick else None,
        calls=4 if quick else MOST_CALLS,
        most_output=MOST_OUTPUT,
        think_s=THINK_S,
        sessions=LIVE,
        seed=seed,
    )
    return of_calls(trace.read(CHECKED_ON), wanted)


def _one_at_a_time(script: Script, seed: int) -> Script:
    """The calls in the order in which the sessions would take turns, each alone."""
    lanes = [list(lane) for lane in script.sessions]
    drawn: list[Step] = []
    rng = np.random.default_rng(seed)
    running: list[list[Step]] = []
    while lanes or running:
        while lanes and len(running) < LIVE:
            running.append(lanes.pop(0))
        chosen = running[int(rng.integers(len(running)))]
        drawn.append(replace(chosen.pop(0), pause_s=0.0))
        running = [lane for lane in running if lane]
    return Script([drawn], live=1)


def _pairs(
    bench: Bench, setup: Setup, script: Script, known: Prompts, costs: Calibrated
) -> list[tuple[str, Pair]]:
    """Every arm on both sides."""
    params, faults = from_mapping(bench.rules(None, setup.ram_tokens))
    assert not faults
    names = [name for name in SIMULATED if setup.ram_tokens or name != _NO_SNAPSHOTS]
    models = arms.arms(names, SLOTS, served.cached_tokens(setup.ram_tokens), params)
    found = []
    for arm, model in zip(four_arms(bench, setup.ram_tokens), models, strict=True):
        cost = costs.slotwise if model.name == arms.SLOTWISE else costs.bare
        simulated = _simulated(setup, script, known, model, cost)
        found.append((arm.name, Pair(simulated, _replayed(bench, setup, script, arm))))
    return found


def _more_s(rng: random.Random) -> float:
    return rng.uniform(0, _SHAKE_S)


def _replayed(bench: Bench, setup: Setup, script: Script, arm: served.Arm) -> Figures:
    told = replay_figures.row(bench.play(arm, script, think_scale=THINK_SCALE).outcome)
    # a lane of calls one at a time holds many sessions, which end when it ends
    return Figures(told["reuse"], told["TTFT s"], told["session s"] if setup.closed_loop else None)


def _simulated(
    setup: Setup, script: Script, known: Prompts, model: Arm, cost: CostModel
) -> Figures:
    runs = []
    for number in range(_SHAKEN):
        workload = as_workload(script, known, THINK_SCALE, partial(_more_s, random.Random(number)))
        runs.append(sim_report.figures(simulate(workload, model, cost)))
    minutes = fmean(run["session min"] for run in runs)
    return Figures(
        fmean(run["reuse"] for run in runs),
        fmean(run["TTFT s"] for run in runs),
        60 * minutes if setup.closed_loop else None,
    )

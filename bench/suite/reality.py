"""The simulator against the engine: fitted on one trace, checked on another.

What is replayed is simulated too: the same prompts token by token, the same sessions in the same
order with the same pauses, slots, RAM cache and rules, several seeds of each. A simulated run is
free of the noise of a machine, and one run of a chaotic process says little: for every replay
several are simulated, each with pauses a few milliseconds longer, and their mean counts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from slotwise.bench.run import replay, served
from slotwise.bench.run.scripts import ScriptOptions, of_calls
from slotwise.bench.run.sender import Script, fitting
from slotwise.bench.run.served import Bench
from slotwise.bench.sim import arms
from slotwise.bench.sim import simulate as tables
from slotwise.bench.sim.arms import Arm
from slotwise.bench.sim.cost_model import COSTS, CostModel
from slotwise.bench.sim.simulation import simulate
from slotwise.bench.suite import calibrate
from slotwise.bench.suite.calibrate import Calibrated, Prompts, as_workload, prompts
from slotwise.bench.suite.tables import (
    MOST_PROMPT,
    PARK_TOKENS,
    SLOTS,
    THINK_S,
    THINK_SCALE,
    four_arms,
)
from slotwise.bench.trace import trace, workload
from slotwise.bench.trace.report import markdown_table
from slotwise.policies.params import from_mapping

WITHIN = 0.01  # of the prompt tokens: one point, the agreement that is sought
_ERRORS = 2.0  # standard errors in which nothing is said


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What one run showed: share of the prompt tokens reused, means in seconds."""

    reuse: float
    ttft_s: float
    session_s: float | None  # None: no session has a length of its own


@dataclass(frozen=True, slots=True)
class Pair:
    """The same seed on both sides."""

    simulated: RunFigures
    replayed: RunFigures


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and its standard error; one run alone tells no error."""

    value: float
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of at least one value."""
        error = stdev(values) / sqrt(len(values)) if len(values) > 1 else None
        return cls(fmean(values), error)

    def sign(self, least: float) -> int:
        """1 or -1 where it is further from 0 than ``least`` and twice its error; else 0."""
        if self.error is None or abs(self.value) <= max(least, _ERRORS * self.error):
            return 0
        return 1 if self.value > 0 else -1

    def within(self, most: float) -> str:
        """Whether it is within ``most`` of 0: yes, no, or open where its error allows neither."""
        if self.error is None:
            return "open"
        doubt = _ERRORS * self.error
        if abs(self.value) + doubt <= most:
            return "yes"
        return "no" if abs(self.value) - doubt > most else "open"


def row(setup: str, arm: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """One line of the table."""
    simulated, replayed = [p.simulated for p in pairs], [p.replayed for p in pairs]
    points = Mean.of([100 * (p.simulated.reuse - p.replayed.reuse) for p in pairs])
    return {
        "setup": setup,
        "arm": arm,
        "runs": len(pairs),
        "simulated": fmean(one.reuse for one in simulated),
        "replayed": fmean(one.reuse for one in replayed),
        "points": _tenths(points.value),
        "± error": None if points.error is None else _tenths(points.error),
        "within 1": points.within(100 * WITHIN),
        "TTFT s simulated": fmean(one.ttft_s for one in simulated),
        "TTFT s replayed": fmean(one.ttft_s for one in replayed),
        "session s simulated": _mean([one.session_s for one in simulated]),
        "session s replayed": _mean([one.session_s for one in replayed]),
    }


def order(setup: str, arms: Mapping[str, Sequence[Pair]]) -> str:
    """In words: which pairs of arms stand in the same order by reuse on both sides.

    Two arms within a point, or within twice the standard error of their difference, are tied on
    that side. That error holds how much seeds differ; so besides, seed by seed, how often two arms
    that are more than a point apart on both sides are so in the same way.
    """
    same, near, against = [], [], []
    for one, other in combinations(arms, 2):
        signs = [
            Mean.of(differences).sign(WITHIN)
            for differences in zip(*map(_differences, arms[one], arms[other]), strict=True)
        ]
        simulated, replayed = signs
        if not simulated or not replayed:
            near.append(f"{one} / {other}")
        elif simulated == replayed:
            same.append(f"{one} {'>' if simulated > 0 else '<'} {other}")
        else:
            against.append(f"{one} / {other}")
    alike = list(_alike(arms))
    by_seed = f"Seed by seed {sum(alike)} of {len(alike)} the same way"
    if not same and not against:
        return f"- {setup}: every two are tied on a side or on both. {by_seed}."
    reported = [
        f"{what}: {'; '.join(pairs)}"
        for what, pairs in (
            ("the same order", same),
            ("tied on a side or on both", near),
            ("the other way round", against),
        )
        if pairs
    ]
    return f"- {setup}: {'. '.join(reported)}. {by_seed}."


def _alike(arms: Mapping[str, Sequence[Pair]]) -> Iterator[bool]:
    """For every two arms and every seed that tells them apart on both sides, whether alike."""
    for one, other in combinations(arms.values(), 2):
        for simulated, replayed in map(_differences, one, other):
            if min(abs(simulated), abs(replayed)) > WITHIN:
                yield (simulated > 0) == (replayed > 0)


def _differences(one: Pair, other: Pair) -> tuple[float, float]:
    """Of reuse, simulated and replayed."""
    return (
        one.simulated.reuse - other.simulated.reuse,
        one.replayed.reuse - other.replayed.reuse,
    )


def _tenths(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


CHECKED_ON = "sweagent"
_NO_SNAPSHOTS = "llama.cpp-no-idle-slots"
SIMULATED = ("llama.cpp", _NO_SNAPSHOTS, "session-pin", arms.SLOTWISE)
LIVE = 8
MOST_CALLS = 10  # of a session
MOST_OUTPUT = 32
_SHAKEN = 20  # simulated runs for each replay
_SHAKE_S = 0.02  # a pause is at most so much longer: what a call takes differs as much


@dataclass(frozen=True, slots=True)
class RealitySetup:
    """In which order calls come, how large the RAM cache is, and how many seeds that needs."""

    closed_loop: bool
    ram_tokens: int
    runs: int

    def __str__(self) -> str:
        way = "closed loop" if self.closed_loop else "one at a time"
        return f"{way}, RAM {self.ram_tokens // 1000}k"


SETUPS = (
    RealitySetup(True, PARK_TOKENS, 3),
    RealitySetup(True, 0, 4),
    RealitySetup(False, PARK_TOKENS, 2),
    RealitySetup(False, 0, 3),
)


def reality(bench: Bench, quick: bool) -> str:
    """Fit, then the same arms simulated and replayed."""
    costs = calibrate.calibrated(bench, quick)
    if not quick:
        comment = f"Fitted by slotwise bench to replays of {calibrate.TRACE} on two shared cores."
        COSTS.joinpath("tiny.yaml").write_text(calibrate.as_yaml(costs.bare, comment), "utf-8")
    script = _script(quick, 1)
    known = prompts(bench, script)
    rows, orders = [], []
    for setup in SETUPS:
        runs = 1 if quick else setup.runs
        by_arm: dict[str, list[Pair]] = {}
        for seed in range(1, runs + 1):
            sent = fitting(_script(quick, seed), MOST_PROMPT, known.tokens)
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
    wanted = ScriptOptions(
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
    waiting = [lane[::-1] for lane in script.sessions[::-1]]  # taken from their ends
    drawn = workload.drawn(waiting, LIVE, random.Random(seed))
    return Script([[replace(step, pause_s=0.0) for step in drawn]], live=1)


def _pairs(
    bench: Bench, setup: RealitySetup, script: Script, known: Prompts, costs: Calibrated
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


def _replayed(
    bench: Bench, setup: RealitySetup, script: Script, arm: served.ServedArm
) -> RunFigures:
    reported = replay.row(bench.play(arm, script, think_scale=THINK_SCALE).outcome)
    # a lane of calls one at a time holds many sessions, which end when it ends
    return RunFigures(
        reported["reuse"], reported["TTFT s"], reported["session s"] if setup.closed_loop else None
    )


def _simulated(
    setup: RealitySetup, script: Script, known: Prompts, model: Arm, cost: CostModel
) -> RunFigures:
    runs = []
    for number in range(_SHAKEN):
        asked = as_workload(script, known, THINK_SCALE, partial(_more_s, random.Random(number)))
        runs.append(tables.figures(simulate(asked, model, cost)))
    minutes = fmean(run["session min"] for run in runs)
    return RunFigures(
        fmean(run["reuse"] for run in runs),
        fmean(run["TTFT s"] for run in runs),
        60 * minutes if setup.closed_loop else None,
    )

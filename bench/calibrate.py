"""The cost model of this machine, from short replays of one trace.

The engine's own work is fitted to calls that had it to themselves; what client, proxy and server
add is fitted for a bare engine and for slotwise apart. How much slower all of it goes while several
requests are at work, on cores that engine, proxy and client share, is what makes the simulator
take as long as the engine over all prompts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slotwise.bench import arms, as_simulated, fit, served, trace, workload
from slotwise.bench.arms import Arm
from slotwise.bench.as_simulated import Prompts
from slotwise.bench.cost_model import CostModel
from slotwise.bench.fit import Point
from slotwise.bench.scripts import Wanted, of_calls
from slotwise.bench.served import Bench
from slotwise.bench.simulation import simulate
from slotwise.bench.steps import Script
from slotwise.bench.suite_slots import SLOTS
from slotwise.policies.params import from_mapping

TRACE = "miniswe"
MOST_OUTPUT = 32
_DECODED = 400  # tokens, where a step is measured
_COPY_TOKENS = 12_000


@dataclass(frozen=True, slots=True)
class Calibrated:
    """``bare`` and ``slotwise`` differ in what a request takes outside the engine, and how crowded
    the cores are."""

    bare: CostModel
    slotwise: CostModel
    points: list[Point]

    def about(self) -> str:
        """How well it fits, in words, and the figures."""
        error = fit.relative_error(self.bare.prefill, self.points)
        through = self.slotwise.outside
        return (
            f"Fitted on {TRACE}: prefill to the engine's own clock of {len(self.points)} calls one "
            f"at a time (median error {error:.1%}), `outside` to what came on top of it until the "
            f"first token, `crowded` to all of them at once, read cold.\n\n"
            f"```yaml\n{fit.as_yaml(self.bare, 'a bare engine, as fitted')}```\n\n"
            f"Through slotwise `outside` is {1000 * through.c_s:.1f} ms and "
            f"{1e6 * through.a_s:.2f} µs a token, `crowded` {self.slotwise.crowded:.2f}."
        )


def calibrated(bench: Bench, quick: bool) -> Calibrated:
    """From replays on this machine; raises what a replay raises."""
    wanted = Wanted(total=2 if quick else None, most_output=MOST_OUTPUT, order="file")
    alone = _one_by_one(of_calls(trace.read(TRACE), wanted))
    measured = fit.points(bench.play(bench.bare("fit", 1), alone).outcome)
    through = fit.points(bench.play(bench.slotwise("fit through slotwise", 1), alone).outcome)
    depth_s = fit.decode_depth_s(measured)
    bare = CostModel(
        about=f"the tiny model on one thread, fitted on {TRACE}",
        prefill=fit.prefill(measured),
        decode_step_s={n: _step_s(bench, n, depth_s) for n in (1, 2, SLOTS)},
        decode_depth_s=depth_s,
        copy_tokens_per_s=_copy_tokens_per_s(bench),
        outside=fit.outside(measured),
    )
    slotwise = bare.model_copy(update={"outside": fit.outside(through)})
    cold = Script([[step] for lane in alone.sessions for step in lane], live=2 * SLOTS)
    known = as_simulated.strangers(bench.tokens(cold))
    params, _ = from_mapping(bench.rules(None, 0))
    unpinned, pinned = arms.arms(["llama.cpp", arms.SLOTWISE], SLOTS, 0, params)
    arm = bench.bare("all at once", SLOTS)
    through_arm = bench.slotwise("all at once through slotwise", SLOTS)
    return Calibrated(
        _crowded(bench, cold, known, bare, arm, unpinned),
        _crowded(bench, cold, known, slotwise, through_arm, pinned),
        measured,
    )


def _one_by_one(script: Script) -> Script:
    lanes = [[replace(step, pause_s=0.0) for step in lane] for lane in script.sessions]
    return Script(lanes, live=1)


def _step_s(bench: Bench, together: int, depth_s: float) -> float:
    """Seconds of a decode step of so many sequences, without context."""
    calls = [c for n in range(together) for c in workload.conversation(f"d{n}", 1, 20, _DECODED)]
    script = of_calls(calls, Wanted(sessions=together, order="file", most_output=_DECODED))
    arm = bench.bare(f"decode of {together}", SLOTS)
    return fit.decode_step_s(fit.points(bench.play(arm, script).outcome), depth_s)


def _copy_tokens_per_s(bench: Bench) -> float:
    """Two prompts by turns on one slot: each is saved and loaded again, and hardly computed."""
    ram = 4 * _COPY_TOKENS
    pair = [f"copy {n}" for n in range(2)]
    turns = [pair[0], pair[0], pair[0], pair[1], *pair * 3]
    calls = [
        replace(next(workload.conversation(name, 1, _COPY_TOKENS // 2, 2)), turn=place)
        for place, name in enumerate(turns)
    ]
    script = of_calls(calls, Wanted(order="insertion", most_output=1))
    lane = sorted((step for one in script.sessions for step in one), key=lambda step: step.place)
    outcome = bench.play(bench.bare("copies", 1, ram_tokens=ram), Script([lane], live=1)).outcome
    seconds = [sent.answer.ttft_s for sent in outcome.calls if sent.answer is not None]
    same, swapped = min(seconds[1:3]), min(seconds[4:])
    return 2 * _COPY_TOKENS / max(swapped - same, 1e-4)


def _crowded(
    bench: Bench, cold: Script, known: Prompts, cost: CostModel, arm: served.Arm, model: Arm
) -> CostModel:
    """The cost model with how many times as long work takes beside other work.

    All prompts are read from their first token, twice as many at a time as there are slots: so the
    engine is at work throughout, and how long it takes does not hang on what it happens to hold.
    """
    outcome = bench.play(arm, cold, fields={"cache_prompt": False}).outcome

    def slower(crowded: float) -> CostModel:
        return cost.model_copy(update={"crowded": crowded})

    def simulated_s(crowded: float) -> float:
        workload = as_simulated.as_workload(cold, known, 0.0)
        return simulate(workload, model, slower(crowded)).ended

    return slower(fit.crowded(simulated_s, outcome.wall_s))

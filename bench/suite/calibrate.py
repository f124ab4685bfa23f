"""The cost model of this machine, from short replays of one trace.

The engine's own work is fitted to calls that had it to themselves; what client, proxy and server
add is fitted for a bare engine and for slotwise apart. How much slower all of it goes while several
requests are at work, on cores that engine, proxy and client share, is what makes the simulator
take as long as the engine over all prompts at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

import httpx
import numpy as np
import numpy.typing as npt
import yaml
from scipy.optimize import nnls

from slotwise.bench.run import client, served
from slotwise.bench.run.scripts import ScriptOptions, of_calls
from slotwise.bench.run.sender import Chat, Outcome, Script, Step
from slotwise.bench.run.served import Bench
from slotwise.bench.sim import arms
from slotwise.bench.sim.arms import Arm
from slotwise.bench.sim.cost_model import CostModel, Outside, Prefill
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import simulate
from slotwise.bench.suite.tables import SLOTS
from slotwise.bench.trace import trace, workload
from slotwise.bench.trace.rows import Row
from slotwise.policies.params import from_mapping
from slotwise.policies.prefix import Tokens, lcp, pack

_REWEIGHTED = 20  # times
_SMALL_ERROR = 0.02  # smaller ones are all alike
_MOST_CROWDED = 4.0
Column = npt.NDArray[np.float64]


class Point(NamedTuple):
    """A call that was alone: tokens n0..n1 were computed in so many seconds of the engine's clock,
    and the first token came so many later than that; then ``steps`` more tokens in ``decode_s``."""

    n0: int
    n1: int
    seconds: float
    outside_s: float = 0.0
    steps: int = 0
    decode_s: float = 0.0


def points(outcome: Outcome) -> list[Point]:
    """Every answered call whose server told the engine's clock; only of a replay of one call at a
    time do they mean something."""
    answers = [sent.answer for sent in outcome.calls if sent.answer is not None]
    return [
        Point(
            a.cached_tokens,
            a.prompt_tokens,
            a.prefill_s,
            max(0.0, a.ttft_s - a.prefill_s),
            max(0, a.completion_tokens - 1),
            a.decode_s or 0.0,
        )
        for a in answers
        if a.prefill_s and a.ttft_s > 0
    ]


def prefill(measured: Sequence[Point]) -> Prefill:
    """``c + a (n1-n0) + b (n1^2-n0^2)/2`` with no negative part; raises ``ValueError`` for fewer
    than three points."""
    if len(measured) < 3:
        raise ValueError(f"prefill: expected at least 3 calls to fit to, got {len(measured)}")
    n0, n1, seconds = np.asarray([point[:3] for point in measured], dtype=float).T
    c_s, a_s, b_s = _fitted([np.ones_like(n0), n1 - n0, (n1**2 - n0**2) / 2], seconds)
    return Prefill(c_s=c_s, a_s=max(a_s, 1e-9), b_s=b_s)


def outside(measured: Sequence[Point]) -> Outside:
    """``c + a n1``: what was added to the engine's own time until the first token."""
    n1 = np.asarray([point.n1 for point in measured], dtype=float)
    seconds = np.asarray([point.outside_s for point in measured], dtype=float)
    c_s, a_s = _fitted([np.ones_like(n1), n1], seconds)
    return Outside(c_s=c_s, a_s=a_s)


def decode_depth_s(measured: Sequence[Point]) -> float:
    """What a token of context adds to a step of one sequence; 0 where nobody generated."""
    reported = [point for point in measured if point.steps and point.decode_s]
    if not reported:
        return 0.0
    depth = np.asarray([point.n1 + point.steps / 2 for point in reported])
    seconds = np.asarray([point.decode_s / point.steps for point in reported])
    return _fitted([np.ones_like(depth), depth], seconds)[1]


def _fitted(terms: Sequence[Column], seconds: Column) -> list[float]:
    """The coefficients, none negative, whose sum of terms comes nearest to the seconds."""
    scale = np.array([1 / max(float(term.mean()), 1e-12) for term in terms])
    columns = np.stack(terms, axis=1) * scale  # so that the solver sees like sizes
    seconds = np.maximum(seconds, 1e-9)
    weights = 1 / seconds
    for _ in range(_REWEIGHTED):
        found, _ = nnls(columns * weights[:, None], seconds * weights)
        fitted = np.maximum(columns @ found, 1e-9)
        errors = np.abs(seconds - fitted) / fitted
        weights = 1 / (fitted * np.sqrt(np.maximum(errors, _SMALL_ERROR)))
    return [float(value) for value in found * scale]


def relative_error(model: Prefill, measured: Sequence[Point]) -> float:
    """The median of the relative errors of the prefill seconds."""

    def seconds(n0: int, n1: int) -> float:
        return model.c_s + model.a_s * (n1 - n0) + model.b_s * (n1**2 - n0**2) / 2

    return median(abs(seconds(p.n0, p.n1) - p.seconds) / p.seconds for p in measured)


def decode_step_s(measured: Sequence[Point], depth_s: float) -> float:
    """Seconds of a step without context while these calls generated together: the median.

    ``depth_s``: what each token of all their contexts adds. Raises ``ValueError`` where the server
    does not tell.
    """
    each = [point.decode_s / point.steps for point in measured if point.steps and point.decode_s]
    if not each:
        raise ValueError("decode: the server does not tell how long it generated")
    contexts = sum(point.n1 + point.steps / 2 for point in measured)
    typical_s = median(each)
    return max(typical_s - depth_s * contexts, 0.1 * typical_s)


def crowded(simulated_s: Callable[[float], float], measured_s: float) -> float:
    """How many times as long work takes beside other work: where the simulated seconds, which grow
    with it, are the measured ones. Between 1 and 4, to a hundredth."""
    low, high = 1.0, _MOST_CROWDED
    while high - low > 0.01:
        middle = (low + high) / 2
        if simulated_s(middle) < measured_s:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def as_yaml(model: CostModel, comment: str) -> str:
    """The model as a file of ``bench/costs``."""
    plain: Mapping[str, object] = {
        "about": model.about,
        "prefill": {name: _rounded(value) for name, value in model.prefill},
        "decode_step_s": {n: _rounded(s) for n, s in sorted(model.decode_step_s.items())},
        "decode_depth_s": _rounded(model.decode_depth_s),
        "copy_tokens_per_s": round(model.copy_tokens_per_s),
        "outside": {name: _rounded(value) for name, value in model.outside},
        "crowded": round(model.crowded, 2),
    }
    return f"# {comment}\n{yaml.safe_dump(plain, sort_keys=False)}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


_NOBODYS = 1 << 31  # token ids that occur in no vocabulary


@dataclass(frozen=True, slots=True)
class Prompts:
    """Of every step, by its id: its prompt, and the tokens to the end of its first user turn."""

    tokens: Mapping[str, Tokens]
    heads: Mapping[str, int]


def prompts(bench: Bench, script: Script) -> Prompts:
    """As the engine reads them; raises what the client raises."""
    tokens = bench.tokens(script)
    return Prompts(tokens, asyncio.run(_heads(bench, script, tokens)))


def strangers(tokens: Mapping[str, Tokens]) -> Prompts:
    """The same prompts without anything in common: of each the first token is its own."""
    own = enumerate(tokens.items(), _NOBODYS >> 1)
    apart = {id: pack([first, *prompt.ids()[1:]]) for first, (id, prompt) in own}
    return Prompts(apart, {})


def as_workload(
    script: Script, known: Prompts, think_scale: float, more_s: Callable[[], float] = float
) -> Workload:
    """The script as clients of the simulator, all at one address, as in the replay.

    ``think_scale``: as the replay had it. Each pause is longer by what ``more_s`` says, but not the
    one before the first call of a lane: in which order sessions come is no chance.
    """
    fresh = _NOBODYS

    def ask(step: Step) -> Ask:
        nonlocal fresh
        prompt = known.tokens[step.id]
        answer = np.arange(fresh, fresh + step.output - 1, dtype="<u4").tobytes()
        fresh += step.output
        held = prompt.grown(len(prompt), answer)
        turns = 1 + _answers(step)
        row = Row(step.session, prompt, held, known.heads.get(step.id, 0), turns, step.output)
        return Ask(
            id=step.id,
            source=row,
            output=step.output,
            pause_s=step.pause_s * think_scale,
            guest=step.side,
            beside=list(map(ask, step.beside)),
            says_limit=True,
        )

    lanes = [[ask(step) for step in lane] for lane in script.sessions]
    for lane in lanes:
        for later in lane[1:]:
            later.pause_s += more_s()
    return Workload(lanes, live=script.live)


def _answers(step: Step) -> int:
    if not isinstance(step.prompt, Chat):
        return 0
    return sum(message.get("role") == "assistant" for message in step.prompt.call.messages)


async def _heads(bench: Bench, script: Script, tokens: Mapping[str, Tokens]) -> dict[str, int]:
    known: dict[str, Tokens] = {}
    found = {}
    with bench.bare("heads", 1).start() as server:
        async with client.connection() as connection:
            for step in script.steps():
                if isinstance(step.prompt, Chat):
                    head = await _head(connection, server.url, step.prompt, known)
                    found[step.id] = lcp(head, tokens[step.id])
    return found


async def _head(
    connection: httpx.AsyncClient, url: str, prompt: Chat, known: dict[str, Tokens]
) -> Tokens:
    call = prompt.call
    roles = [message.get("role") for message in call.messages]
    end = roles.index("user") + 1 if "user" in roles else len(roles)
    key = f"{call.session} {call.messages[:end]}"
    if key not in known:
        first = replace(call, messages=call.messages[:end])
        known[key] = await client.tokens(connection, url, first, opened=False)
    return known[key]


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
        error = relative_error(self.bare.prefill, self.points)
        through = self.slotwise.outside
        return (
            f"Fitted on {TRACE}: prefill to the engine's own clock of {len(self.points)} calls one "
            f"at a time (median error {error:.1%}), `outside` to what came on top of it until the "
            f"first token, `crowded` to all of them at once, read cold.\n\n"
            f"```yaml\n{as_yaml(self.bare, 'a bare engine, as fitted')}```\n\n"
            f"Through slotwise `outside` is {1000 * through.c_s:.1f} ms and "
            f"{1e6 * through.a_s:.2f} µs a token, `crowded` {self.slotwise.crowded:.2f}."
        )


def calibrated(bench: Bench, quick: bool) -> Calibrated:
    """From replays on this machine; raises what a replay raises."""
    wanted = ScriptOptions(total=2 if quick else None, most_output=MOST_OUTPUT, order="file")
    alone = _one_by_one(of_calls(trace.read(TRACE), wanted))
    measured = points(bench.play(bench.bare("fit", 1), alone).outcome)
    through = points(bench.play(bench.slotwise("fit through slotwise", 1), alone).outcome)
    depth_s = decode_depth_s(measured)
    bare = CostModel(
        about=f"the tiny model on one thread, fitted on {TRACE}",
        prefill=prefill(measured),
        decode_step_s={n: _step_s(bench, n, depth_s) for n in (1, 2, SLOTS)},
        decode_depth_s=depth_s,
        copy_tokens_per_s=_copy_tokens_per_s(bench),
        outside=outside(measured),
    )
    slotwise = bare.model_copy(update={"outside": outside(through)})
    cold = Script([[step] for lane in alone.sessions for step in lane], live=2 * SLOTS)
    known = strangers(bench.tokens(cold))
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
    script = of_calls(calls, ScriptOptions(sessions=together, order="file", most_output=_DECODED))
    arm = bench.bare(f"decode of {together}", SLOTS)
    return decode_step_s(points(bench.play(arm, script).outcome), depth_s)


def _copy_tokens_per_s(bench: Bench) -> float:
    """Two prompts by turns on one slot: each is saved and loaded again, and hardly computed."""
    ram = 4 * _COPY_TOKENS
    pair = [f"copy {n}" for n in range(2)]
    turns = [pair[0], pair[0], pair[0], pair[1], *pair * 3]
    calls = [
        replace(next(workload.conversation(name, 1, _COPY_TOKENS // 2, 2)), turn=place)
        for place, name in enumerate(turns)
    ]
    script = of_calls(calls, ScriptOptions(order="insertion", most_output=1))
    lane = sorted((step for one in script.sessions for step in one), key=lambda step: step.place)
    outcome = bench.play(bench.bare("copies", 1, ram_tokens=ram), Script([lane], live=1)).outcome
    seconds = [sent.answer.ttft_s for sent in outcome.calls if sent.answer is not None]
    same, swapped = min(seconds[1:3]), min(seconds[4:])
    return 2 * _COPY_TOKENS / max(swapped - same, 1e-4)


def _crowded(
    bench: Bench, cold: Script, known: Prompts, cost: CostModel, arm: served.ServedArm, model: Arm
) -> CostModel:
    """The cost model with how many times as long work takes beside other work.

    All prompts are read from their first token, twice as many at a time as there are slots: so the
    engine is at work throughout, and how long it takes does not hang on what it happens to hold.
    """
    outcome = bench.play(arm, cold, fields={"cache_prompt": False}).outcome

    def slower(crowded: float) -> CostModel:
        return cost.model_copy(update={"crowded": crowded})

    def simulated_s(crowded: float) -> float:
        workload = as_workload(cold, known, 0.0)
        return simulate(workload, model, slower(crowded)).ended

    return slower(crowded(simulated_s, outcome.wall_s))

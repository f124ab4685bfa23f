"""The simulator against the engine: fitted on one trace, checked on another.

What is replayed is simulated too: the same prompts token by token, the same pauses, slots, RAM
cache and rules. The cost model comes from a replay of one call at a time on the same machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from bench import arms, client, fit, sim_report, trace, workload
from bench.cost_model import CostModel
from bench.replay_figures import row as figures
from bench.report import markdown_table
from bench.rows import Row
from bench.scripts import Wanted, of_calls
from bench.served import Bench
from bench.sim_workload import Ask, Workload
from bench.simulation import simulate
from bench.steps import Chat, Script, Step
from bench.suite_mixed import MOST_PROMPT, PARK_TOKENS, THINK_S, THINK_SCALE, four_arms, shorter
from bench.suite_slots import SLOTS
from policies.params import from_mapping
from policies.prefix import Tokens, lcp

FITTED_ON, CHECKED_ON = "miniswe", "sweagent"
COST_FILE = Path(__file__).resolve().parent / "costs" / "tiny.yaml"
_NO_SNAPSHOTS = "llama.cpp-no-idle-slots"
SIMULATED = ("llama.cpp", _NO_SNAPSHOTS, "session-pin", arms.SLOTWISE)
SEED = 1
LIVE = 8
MOST_CALLS = 10  # of a session
MOST_OUTPUT = 32
_COPY_TOKENS = 12_000
_NOBODYS = 1 << 31  # token ids that occur in no vocabulary


def reality(bench: Bench, quick: bool) -> str:
    """Fit, then the same arms simulated and replayed."""
    cost, about_fit = fitted(bench, quick)
    if not quick:
        comment = f"Fitted by slotwise bench to a replay of {FITTED_ON} on two shared cores."
        COST_FILE.write_text(fit.as_yaml(cost, comment), "utf-8")
    wanted = Wanted(
        total=4 if quick else None,
        calls=4 if quick else MOST_CALLS,
        most_output=MOST_OUTPUT,
        think_s=THINK_S,
        sessions=LIVE,
        seed=SEED,
    )
    calls = trace.read(CHECKED_ON)
    script = of_calls(calls, wanted)
    tokens = bench.tokens(script)
    heads = asyncio.run(_heads(bench, script, tokens))
    script = shorter(script, tokens, MOST_PROMPT)
    rows = []
    for order, sent in (("closed loop", script), ("one at a time", _one_at_a_time(script))):
        for ram_tokens in (PARK_TOKENS, 0):
            label = f"{order}, RAM {ram_tokens // 1000}k"
            rows += _compared(bench, sent, tokens, heads, cost, ram_tokens, label)
    size = f"the first {MOST_CALLS} calls of {len(script.sessions)} sessions, {len(script)} calls"
    pauses = f"pauses about {THINK_S * THINK_SCALE:.1f} s (log-normal)"
    return (
        f"{about_fit}\n\nChecked on {CHECKED_ON}: {size}, {LIVE} sessions live on {SLOTS} slots, "
        f"{pauses}, seed {SEED}.\n\n{markdown_table(rows)}"
    )


# ---------------------------------------------------------------- the fit


def fitted(bench: Bench, quick: bool) -> tuple[CostModel, str]:
    """A cost model from replays on this machine, and how well it fits, in words."""
    wanted = Wanted(total=2 if quick else None, most_output=MOST_OUTPUT, order="file")
    alone = replace(of_calls(trace.read(FITTED_ON), wanted), live=1)
    measured = fit.points(bench.play(bench.bare("fit", 1), alone).outcome)
    prefill = fit.prefill(measured)
    steps_s = {n: _step_s(bench, n) for n in (1, 2, SLOTS)}
    cost = CostModel(
        about=f"the tiny model on one thread, fitted on {FITTED_ON}",
        prefill=prefill,
        decode_step_s=steps_s,
        copy_tokens_per_s=_copy_tokens_per_s(bench),
    )
    error = fit.relative_error(prefill, measured)
    return cost, (
        f"Fitted on {FITTED_ON}, {len(measured)} calls one at a time on a bare engine, to the "
        f"seconds until the first token (client and server included); median error "
        f"{error:.1%}.\n\n```yaml\n{fit.as_yaml(cost, 'as fitted')}```"
    )


def _step_s(bench: Bench, together: int) -> float:
    """Seconds of a decode step of so many sequences."""
    calls = [c for n in range(together) for c in workload.conversation(f"d{n}", 1, 20, 400)]
    script = of_calls(calls, Wanted(sessions=together, order="file", most_output=400))
    arm = bench.bare(f"decode of {together}", SLOTS)
    return fit.decode_step_s(bench.play(arm, script).outcome)


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


# ---------------------------------------------------------------- the check


def _one_at_a_time(script: Script) -> Script:
    """The calls in the order in which the sessions would take turns, each alone."""
    lanes = [list(lane) for lane in script.sessions]
    drawn: list[Step] = []
    rng = np.random.default_rng(SEED)
    running: list[list[Step]] = []
    while lanes or running:
        while lanes and len(running) < LIVE:
            running.append(lanes.pop(0))
        chosen = running[int(rng.integers(len(running)))]
        drawn.append(replace(chosen.pop(0), pause_s=0.0))
        running = [lane for lane in running if lane]
    return Script([drawn], live=1)


def _compared(
    bench: Bench,
    script: Script,
    tokens: Mapping[str, Tokens],
    heads: Mapping[str, int],
    cost: CostModel,
    ram_tokens: int,
    label: str,
) -> list[dict[str, Any]]:
    rules = bench.rules(None, ram_tokens)
    params, faults = from_mapping(rules)
    assert not faults
    names = [name for name in SIMULATED if ram_tokens or name != _NO_SNAPSHOTS]
    simulated = arms.arms(names, SLOTS, ram_tokens, params)
    rows = []
    for arm, model in zip(four_arms(bench, ram_tokens), simulated, strict=True):
        real = figures(bench.play(arm, script, think_scale=THINK_SCALE).outcome)
        virtual = sim_report.figures(simulate(as_workload(script, tokens, heads), model, cost))
        rows.append(
            {
                "setup": label,
                "arm": arm.name,
                "simulated": virtual["reuse"],
                "replayed": real["reuse"],
                "points": 100 * (virtual["reuse"] - real["reuse"]),
                "TTFT s simulated": virtual["TTFT s"],
                "TTFT s replayed": real["TTFT s"],
                # a lane of calls one at a time holds many sessions, which end when it ends
                "session s simulated": virtual["session min"] * 60 if script.live != 1 else None,
                "session s replayed": real["session s"] if script.live != 1 else None,
            }
        )
    return rows


def as_workload(script: Script, tokens: Mapping[str, Tokens], heads: Mapping[str, int]) -> Workload:
    """What the replay sends, for the simulator; all from one address, as in the replay."""
    fresh = _NOBODYS

    def ask(step: Step) -> Ask:
        nonlocal fresh
        prompt = tokens[step.id]
        answer = np.arange(fresh, fresh + step.output - 1, dtype="<u4").tobytes()
        fresh += step.output
        held = prompt.grown(len(prompt), answer)
        turns = 1 + _answers(step)
        row = Row(step.session, prompt, held, heads.get(step.id, 0), turns, step.output)
        return Ask(
            id=step.id,
            row=row,
            output=step.output,
            pause_s=step.pause_s * THINK_SCALE,
            guest=step.side,
            with_guest=ask(step.beside[0]) if step.beside else None,
            says_limit=True,
        )

    lanes = [[ask(step) for step in lane] for lane in script.sessions]
    return Workload(lanes, live=script.live)


def _answers(step: Step) -> int:
    if not isinstance(step.prompt, Chat):
        return 0
    return sum(message.get("role") == "assistant" for message in step.prompt.call.messages)


async def _heads(bench: Bench, script: Script, tokens: Mapping[str, Tokens]) -> dict[str, int]:
    """Of every step how many tokens reach to the end of its first user turn."""
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
        known[key] = await client.tokens(
            connection, url, replace(call, messages=call.messages[:end])
        )
    return known[key]

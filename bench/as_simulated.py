"""What a replay sends, for the simulator: the same prompts token by token, the same pauses.

The engine's own template and tokenizer say what a prompt is and how far its first user turn
reaches, as they do for the proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import httpx
import numpy as np

from slotwise.bench import client
from slotwise.bench.rows import Row
from slotwise.bench.served import Bench
from slotwise.bench.sim_workload import Ask, Workload
from slotwise.bench.steps import Chat, Script, Step
from slotwise.policies.prefix import Tokens, lcp, pack

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

"""The shapes in virtual time: one cell of the floor table, the bare engine and slotwise.

A word is a token, a message is closed by a special one as in ChatML, tools come first. What the
scheduler is told of a request is what the proxy would tell it: the kind, the conversation and the
first user turn are found by the proxy's own code.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple, Self
from zlib import crc32

import orjson

from slotwise.bench import arms, cost_model
from slotwise.bench.arms import SLOTWISE
from slotwise.bench.cost_model import CostModel, Outside
from slotwise.bench.floor.shapes import workload
from slotwise.bench.floor.turns import INFILL, Lane, Turn
from slotwise.bench.report import percentile
from slotwise.bench.rows import Row
from slotwise.bench.sim_workload import Ask, Workload
from slotwise.bench.simulation import Run, Served, simulate
from slotwise.policies.params import Params
from slotwise.policies.prefix import Tokens
from slotwise.proxy.chat.identity import SessionTable
from slotwise.proxy.chat.kinds import Patterns, kind_of

BARE = "llama.cpp"
RAM = ("none", "small", "large")
_PACE_TOKENS = 2000
_SMALL, _LARGE = 1 / 3, 4.0  # of what lives
_PATTERNS = Patterns()


class Cell(NamedTuple):
    """One place of the table."""

    shape: str
    slots: int
    ram: str
    cost: str

    def __str__(self) -> str:
        return f"{self.shape} {self.slots}/{self.ram}/{self.cost}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Times in seconds."""

    reuse: float
    ttft: float
    p95: float
    longest: float
    wall: float

    @classmethod
    def of(cls, ttft_s: Sequence[float], cached: int, prompt: int, wall_s: float) -> Self:
        """``cached`` of all the ``prompt`` tokens need not be computed."""
        return cls(
            reuse=cached / max(prompt, 1),
            ttft=fmean(ttft_s),
            p95=percentile(ttft_s, 95) or 0.0,
            longest=max(ttft_s),
            wall=wall_s,
        )


def figures(run: Run) -> Figures:
    """What clients saw. Who gave up before a token came has waited for at least so long."""
    ttft = [_ttft_s(served) for served in run.served]
    prompt = sum(served.ask.prompt_tokens for served in run.served if served.begun >= 0)
    cached = sum(served.cached for served in run.served)
    return Figures.of(ttft, cached, prompt, run.ended)


def _ttft_s(served: Served) -> float:
    left_s = served.ask.gives_up_s
    # A whole answer comes at its end: what a client waits for is all of it.
    seen = served.first if served.ask.stream else served.finished
    if left_s is not None and (seen < 0 or seen - served.arrived > left_s):
        return left_s
    return seen - served.arrived


def run_cell(
    cell: Cell, seed: int, names: Sequence[str] = (BARE, SLOTWISE), params: Params | None = None
) -> dict[str, Figures]:
    """The figures of each arm; ``params``: slotwise's rules, without costs and RAM cache."""
    cost = inside(cost_model.load(cell.cost))
    asked = as_workload(workload(cell.shape, seed, pace_s(cost)))
    return serve(asked, cell.slots, cell.ram, cost, names, params)


def serve(
    asked: Workload,
    slots: int,
    ram: str,
    cost: CostModel,
    names: Sequence[str] = (BARE, SLOTWISE),
    params: Params | None = None,
) -> dict[str, Figures]:
    """The same for any workload."""
    park = park_tokens(asked, ram)
    return {
        arm.name: figures(simulate(asked, arm, cost))
        for arm in arms.arms(names, slots, park, rules(params or Params(), cost, park))
    }


def pace_s(cost: CostModel) -> float:
    """The scale of a workload's pauses (s): what this engine takes to read a short prompt."""
    return cost.prefill_s(0, _PACE_TOKENS)


def inside(cost: CostModel) -> CostModel:
    """Without what a request takes outside the engine's loop: that is the machine's, and the
    proxy's own share of it is measured by itself."""
    return cost.model_copy(update={"outside": Outside()})


def rules(params: Params, cost: CostModel, park: int) -> Params:
    """With the costs of this engine, and the size and speed of its RAM cache, as the launcher
    gives them."""
    return replace(
        params, cost=cost.as_policy(), cache_tokens=park, copy_tps=cost.copy_tokens_per_s
    )


def park_tokens(asked: Workload, ram: str) -> int:
    """Tokens of a RAM cache: none, a part of what lives, or more than all of it."""
    lives = sum(max(len(ask.row.full) for ask in lane) for lane in asked.sessions)
    lives = max(lives, sum(len(ask.row.full) for ask in asked.asks()) // 8)
    return {"none": 0, "small": int(_SMALL * lives), "large": int(_LARGE * lives)}[ram]


# ---------------------------------------------------------------- as the scheduler hears of it


def as_workload(lanes: Sequence[Lane]) -> Workload:
    """The lanes as clients of the simulator, all at one address."""
    table = SessionTable()
    sessions: dict[int, str] = {}
    # Conversations are told apart in the order of requests: lanes go on at the same time.
    for turns in zip_longest(*lanes):
        for turn in filter(None, turns):
            for one in (turn, *turn.beside):
                found = table.identify({}, one.body, "k", 0.0)
                sessions[id(one)] = found.id if one.path != INFILL else ""
    made = [
        [_ask(turn, f"{n}.{k}", sessions) for k, turn in enumerate(lane)]
        for n, lane in enumerate(lanes)
    ]
    return Workload(made)


def _ask(turn: Turn, name: str, sessions: Mapping[int, str]) -> Ask:
    body = turn.body
    limit = body.get("max_tokens") or body.get("n_predict")
    return Ask(
        id=name,
        source=_row(turn, sessions[id(turn)]),
        output=turn.output,
        pause_s=turn.pause_s,
        client="k",
        guest=turn.side,
        tool_calls=turn.asks_tools,
        beside=[_ask(one, f"{name}+{k}", sessions) for k, one in enumerate(turn.beside)],
        says_limit=limit is not None,
        kind=kind_of(body, _PATTERNS, turn.path),
        stream=bool(body.get("stream")),
        gives_up_s=turn.gives_up_s,
        session=sessions[id(turn)],
    )


def _row(turn: Turn, session: str) -> Row:
    if turn.path == INFILL:
        prompt = _ids([_words(turn.body["input_suffix"]), _words(turn.body["input_prefix"])])
        return Row(session, prompt, _answered(prompt, turn), 0, 1, turn.output)
    tools = turn.body.get("tools")
    parts = [_message("system", orjson.dumps(tools).decode())] if tools else []
    first_user_end = 0
    for message in turn.body["messages"]:
        parts.append(_message(message["role"], message["content"]))
        if not first_user_end and message["role"] == "user":
            first_user_end = sum(map(len, parts)) // 4
    prompt = _ids([*parts, _words("<assistant>")])
    roles = [message["role"] for message in turn.body["messages"]]
    return Row(
        session,
        prompt,
        _answered(prompt, turn),
        first_user_end,
        1 + roles.count("assistant"),
        turn.output,
    )


def _answered(prompt: Tokens, turn: Turn) -> Tokens:
    """Prompt and answer as the slot holds them: the last token is never fed back."""
    answer = turn.answer or f"{turn.lane} {len(prompt)} " * turn.output
    return prompt.grown(len(prompt), _words(answer)[: 4 * (turn.output - 1)])


@lru_cache(maxsize=4096)
def _message(role: str, content: str) -> bytes:
    return _words(f"<{role}> {content} <end>")


@lru_cache(maxsize=4096)
def _words(said: str) -> bytes:
    return array("I", [crc32(word.encode()) >> 1 for word in said.split()]).tobytes()


def _ids(parts: Iterable[bytes]) -> Tokens:
    return Tokens(b"".join(parts))

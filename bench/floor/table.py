"""The floor table: every shape, slots, RAM cache and cost; the bare engine beside slotwise."""

from __future__ import annotations

import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import product, zip_longest
from statistics import fmean
from typing import Any, NamedTuple, Self
from zlib import crc32

import orjson
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.floor.shapes import INFILL, SHAPES, Lane, Turn, workload
from slotwise.bench.sim import arms, cost_model
from slotwise.bench.sim.arms import SLOTWISE
from slotwise.bench.sim.cost_model import CostModel, Outside
from slotwise.bench.sim.load import Ask, Workload
from slotwise.bench.sim.simulation import Run, Served, simulate
from slotwise.bench.trace.report import percentile
from slotwise.bench.trace.rows import Row
from slotwise.policies.params import Params
from slotwise.policies.prefix import Tokens
from slotwise.proxy.chat.kinds import Patterns, kind_of
from slotwise.proxy.chat.sessions import SessionTable

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
class CellFigures:
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

    @classmethod
    def mean(cls, runs: Sequence[CellFigures]) -> Self:
        """Of each figure its mean over runs."""
        return cls(*(fmean(getattr(one, f.name) for one in runs) for f in fields(cls)))


def figures(run: Run) -> CellFigures:
    """What clients saw. Who gave up before a token came has waited for at least so long."""
    ttft = [_ttft_s(served) for served in run.served]
    prompt = sum(served.ask.prompt_tokens for served in run.served if served.begun >= 0)
    cached = sum(served.cached for served in run.served)
    return CellFigures.of(ttft, cached, prompt, run.ended)


def _ttft_s(served: Served) -> float:
    left_s = served.ask.gives_up_s
    # A whole answer comes at its end: what a client waits for is all of it.
    seen = served.first if served.ask.stream else served.finished
    if left_s is not None and (seen < 0 or seen - served.arrived > left_s):
        return left_s
    return seen - served.arrived


def run_cell(
    cell: Cell, seed: int, names: Sequence[str] = (BARE, SLOTWISE), params: Params | None = None
) -> dict[str, CellFigures]:
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
) -> dict[str, CellFigures]:
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


SLOTS = (1, 2, 4, 8)
COSTS = ("gb10", "tiny")


class FloorRule(NamedTuple):
    """How far behind the bare engine slotwise may be: reuse in points, times as ratios."""

    reuse: float = 0.01
    ttft: float = 1.1
    p95: float = 1.1
    longest: float = 1.5
    wall: float = 1.05


RULE = FloorRule()
UNFELT_S = 0.005
"""A time that differs by less is not felt, whatever the ratio: with the tiny costs many first
tokens come within 10 ms, and the simulator's timers are 1 ms late as real ones are."""

Runs = Mapping[str, Sequence[CellFigures]]  # by arm, one for each seed


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell, served by several arms with the same seeds."""

    cell: Cell
    runs: Runs

    def mean(self, arm: str) -> CellFigures:
        return CellFigures.mean(self.runs[arm])

    def breaches(self, arm: str = SLOTWISE) -> list[str]:
        """What is outside the rule, in words."""
        return breaches(self.mean(BARE), self.mean(arm))

    def spread(self, name: str) -> tuple[float, float]:
        """The lowest and the highest ratio of one seed."""
        pairs = zip(self.runs[BARE], self.runs[SLOTWISE], strict=True)
        ratios = [ratio(getattr(bare, name), getattr(own, name)) for bare, own in pairs]
        return min(ratios), max(ratios)


def ratio(bare: float, own: float) -> float:
    return own / max(bare, 1e-9)


def breaches(bare: CellFigures, own: CellFigures) -> list[str]:
    """What of these figures is outside the rule, each as ``ttft 1.32``."""
    found = []
    if own.reuse < bare.reuse - RULE.reuse:
        found.append(f"reuse {own.reuse - bare.reuse:+.3f}")
    for name in ("ttft", "p95", "longest", "wall"):
        base, value = getattr(bare, name), getattr(own, name)
        if value > base * getattr(RULE, name) and value - base > UNFELT_S:
            found.append(f"{name} {ratio(base, value):.2f}")
    return found


def cells(
    shapes: Iterable[str] = tuple(SHAPES),
    slots: Iterable[int] = SLOTS,
    rams: Iterable[str] = RAM,
    costs: Iterable[str] = COSTS,
) -> list[Cell]:
    """Every combination, in the order of the table."""
    return [Cell(s, n, ram, cost) for cost, s, n, ram in product(costs, shapes, slots, rams)]


def run(
    wanted: Sequence[Cell], seeds: Sequence[int], arms: Sequence[str] = (BARE, SLOTWISE)
) -> Iterator[CellResult]:
    """Serve every cell with every seed, on all cores, and say how far it is."""
    context = multiprocessing.get_context("forkserver")
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("simulating", total=len(wanted))
        pending: list[Future[CellResult]] = [
            pool.submit(_one, cell, seeds, arms) for cell in wanted
        ]
        for done in pending:
            result = done.result()
            progress.update(task, advance=1, description=str(result.cell))
            yield result


def _one(cell: Cell, seeds: Sequence[int], arms: Sequence[str]) -> CellResult:
    by_seed = [run_cell(cell, seed, arms) for seed in seeds]
    return CellResult(cell, {arm: [runs[arm] for runs in by_seed] for arm in arms})


def rows(
    results: Iterable[CellResult], verdict: Callable[[CellResult], str]
) -> list[dict[str, Any]]:
    """The table's rows: the bare engine's figure, and slotwise's beside it."""
    return [_shown(result) | {"verdict": verdict(result)} for result in results]


def _shown(result: CellResult) -> dict[str, Any]:
    cell, bare, own = result.cell, result.mean(BARE), result.mean(SLOTWISE)
    low, high = result.spread("ttft")
    return {
        "shape": cell.shape,
        "slots": cell.slots,
        "RAM": cell.ram,
        "reuse": f"{bare.reuse:.3f} {own.reuse:.3f}",
        "TTFT s": _times(bare.ttft, own.ttft),
        "of seeds": f"{low:.2f}-{high:.2f}",
        "p95 s": _times(bare.p95, own.p95),
        "longest s": _times(bare.longest, own.longest),
        "wall s": _times(bare.wall, own.wall),
    }


def _times(bare: float, own: float) -> str:
    return f"{bare:.3g} x{ratio(bare, own):.2f}"

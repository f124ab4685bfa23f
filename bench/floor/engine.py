"""The shapes on the real engine: bare and through slotwise, with the tiny model.

What is measured is what a client sees: the first byte with text of a stream, the end of a whole
answer. Who gives up before has waited for so long.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import orjson

from slotwise.bench.floor.shapes import CHAT, INFILL, Lane, Turn, body, message, workload
from slotwise.bench.floor.table import CellFigures
from slotwise.bench.run import engines
from slotwise.bench.run.engines import Server
from slotwise.bench.run.served import tiny_costs

CTX_TOKENS = 32_768  # of each slot
PACE_S = 0.05
PROXY_S = 0.0022
"""What slotwise adds to a short call on two shared cores, from ``bench/results/overhead.md``."""

_LIMIT_S = 300.0
_WARM_UP_S, _WARM_UP_CALLS = 2.0, 400


@dataclass(frozen=True, slots=True)
class EngineCell:
    """How both engines are started."""

    slots: int
    ram: str  # none, small, large
    kv_unified: bool = False

    @property
    def ram_mib(self) -> int:
        return {"none": 0, "small": 8, "large": 2048}[self.ram]

    def __str__(self) -> str:
        return f"{self.slots}/{self.ram}" + ("/pool" if self.kv_unified else "")


@dataclass(slots=True)
class _Seen:
    """What the clients of one run saw."""

    ttft_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    refused: list[str] = field(default_factory=list)


@contextmanager
def started(arm: str, place: EngineCell) -> Iterator[Server]:
    """The bare engine, or slotwise with its own."""
    model = engines.tiny_model()
    if place.kv_unified:
        model = replace(model, flags=("--kv-unified",), profile=(("kv_unified", True),))
    total = place.slots * CTX_TOKENS
    if arm == "slotwise":
        policy = tiny_costs()
        with engines.slotwise(model, place.slots, total, place.ram_mib, policy=policy) as server:
            yield server
        return
    flags = ("-c", str(total), "-np", str(place.slots), "--cache-ram", str(place.ram_mib))
    with engines.bare(model, flags) as server:
        yield server


def measure(shape: str, seed: int, place: EngineCell, arm: str) -> CellFigures:
    """One shape, served once; raises ``RuntimeError`` where a request was refused."""
    return served(workload(shape, seed, PACE_S), place, arm)


def served(lanes: Sequence[Lane], place: EngineCell, arm: str) -> CellFigures:
    """The same for any lanes."""
    with started(arm, place) as server:
        seen, wall_s = asyncio.run(_play(lanes, server.url))
    if seen.refused:
        raise RuntimeError(f"{arm} refused: {seen.refused[0]}")
    return CellFigures.of(seen.ttft_s, seen.cached, seen.prompt, wall_s)


def less_proxy(own: CellFigures, lanes: Sequence[Lane]) -> CellFigures:
    """Times without what the proxy adds to every call: of the longest lane, in the wall time."""
    longest = max(len(lane) for lane in lanes)
    return CellFigures(
        own.reuse,
        own.ttft - PROXY_S,
        own.p95 - PROXY_S,
        own.longest - PROXY_S,
        own.wall - longest * PROXY_S,
    )


async def _play(lanes: Sequence[Lane], url: str) -> tuple[_Seen, float]:
    seen = _Seen()
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=_LIMIT_S, trust_env=False) as client:
        await _warm_up(client, url)
        begun = time.perf_counter()
        await asyncio.gather(*(_lane(client, url, lane, seen) for lane in lanes))
        return seen, time.perf_counter() - begun


async def _warm_up(client: httpx.AsyncClient, url: str) -> None:
    """Short calls for as long as a server takes to have all its parts in place."""
    until = time.perf_counter() + _WARM_UP_S
    for number in range(_WARM_UP_CALLS):
        request = body([message("user", f"call {number}")], False, 4)
        await client.post(url + CHAT, json=request)
        if time.perf_counter() > until:
            return


async def _lane(client: httpx.AsyncClient, url: str, lane: Lane, seen: _Seen) -> None:
    for turn in lane:
        await asyncio.sleep(turn.pause_s)
        beside = [asyncio.create_task(_ask(client, url, one, seen)) for one in turn.beside]
        await _ask(client, url, turn, seen)
        await asyncio.gather(*beside)


async def _ask(client: httpx.AsyncClient, url: str, turn: Turn, seen: _Seen) -> None:
    begun = time.perf_counter()
    first: list[float] = []
    try:
        async with asyncio.timeout(turn.gives_up_s or _LIMIT_S):
            reported = await _answer(client, url, turn, first)
    except TimeoutError:
        if turn.gives_up_s is None:
            seen.refused.append(f"no answer within {_LIMIT_S:.0f} s")
        seen.ttft_s.append(first[0] - begun if first else time.perf_counter() - begun)
        return
    if "error" in reported:
        seen.refused.append(str(reported["error"])[:200])
        return
    seen.ttft_s.append(first[0] - begun)
    timings = reported.get("timings") or {}
    cached = timings.get("cache_n", 0)
    seen.prompt += cached + timings.get("prompt_n", 0)
    seen.cached += cached


async def _answer(
    client: httpx.AsyncClient, url: str, turn: Turn, first: list[float]
) -> dict[str, Any]:
    """The last event, or the whole answer; when its first text came is added to ``first``."""
    limit = "n_predict" if turn.path == INFILL else "max_tokens"
    request = {**turn.body, limit: turn.output, "ignore_eos": True}
    async with client.stream("POST", url + turn.path, json=request) as response:
        if not request.get("stream") or response.status_code >= 400:
            content = await response.aread()
            first.append(time.perf_counter())
            whole: dict[str, Any] = orjson.loads(content)
            return whole
        last: dict[str, Any] = {}
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = orjson.loads(line[6:])
            if "timings" in event or "error" in event:
                last = event
            if not first and _has_text(event):
                first.append(time.perf_counter())
        if not first:
            first.append(time.perf_counter())
        return last


def _has_text(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
            return True
    return bool(event.get("content"))

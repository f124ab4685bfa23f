"""A streaming client that notes what each call cost, as the engine itself reports it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from slotwise.bench.trace.trace import Call
from slotwise.policies.prefix import Tokens, pack

# No byte for this long ends a call: a long prefill on a busy small machine is silent.
TIMEOUT = httpx.Timeout(600, connect=10)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_COMMENT = re.compile(r"(slot|rule)=(\S+)")


class CallError(RuntimeError):
    """A call did not end as it should; the text carries the server's answer."""


@dataclass(slots=True)
class Answer:
    """What one call cost. Token counts are the engine's own."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    told_cached: bool = False  # whether it says how much it reused
    ttft_s: float = 0.0  # to the first generated token
    total_s: float = 0.0
    slot: str | None = None
    rule: str | None = None  # slotwise's; a bare engine names none
    prefill_s: float | None = None  # the engine's own clock, where it tells it
    decode_s: float | None = None
    text: str = field(default="", repr=False)


def connection() -> httpx.AsyncClient:
    """A client without kept-alive connections: an engine closes them after a stream, unannounced,
    and a call must not fail for that."""
    return httpx.AsyncClient(timeout=TIMEOUT, limits=httpx.Limits(max_keepalive_connections=0))


def body(call: Call, max_tokens: int) -> dict[str, Any]:
    """The chat request of a recorded call, greedy, cut to ``max_tokens`` of answer."""
    request: dict[str, Any] = {
        "messages": call.messages,
        "max_tokens": max(1, min(call.max_tokens, max_tokens)),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return request | {"tools": call.tools} if call.tools else request


async def chat(client: httpx.AsyncClient, url: str, request: dict[str, Any]) -> Answer:
    """Send one chat and read its stream to the end; raises :class:`CallError`."""
    return await send(client, url + CHAT, request)


async def send(
    client: httpx.AsyncClient,
    address: str,
    request: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one call that streams and read it to the end; raises :class:`CallError`."""
    answer = Answer()
    begun = time.perf_counter()
    sent = client.stream("POST", address, content=orjson.dumps(request), headers=_typed(headers))
    try:
        async with sent as response:
            if response.status_code != httpx.codes.OK:
                shown = (await response.aread()).decode(errors="replace")
                raise CallError(f"{response.status_code}: {shown[:300]}")
            answer.slot = response.headers.get("x-slotwise-slot")
            answer.rule = response.headers.get("x-slotwise-rule")
            done = False
            async for line in response.aiter_lines():
                done = _read(line, answer, begun) or done
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CallError(f"{type(error).__name__}: {error}") from error
    if not done or not answer.prompt_tokens:
        raise CallError("the stream ended without its end marker or without usage")
    answer.total_s = time.perf_counter() - begun
    return answer


def _typed(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {"content-type": "application/json", **(headers or {})}


def _read(line: str, answer: Answer, begun: float) -> bool:
    """Take from one line of the stream what it tells; True at the end marker."""
    if line.startswith(": slotwise "):
        reported = dict(_COMMENT.findall(line))
        answer.slot, answer.rule = (
            reported.get("slot", answer.slot),
            reported.get("rule", answer.rule),
        )
    if not line.startswith("data: "):
        return False
    if line == "data: [DONE]":
        return True
    try:
        _take(orjson.loads(line[6:]), answer, begun)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fault = f"{type(error).__name__} in {line[:200]!r}"
        raise CallError(f"not an event of an OpenAI stream: {fault}") from None
    return False


def _take(event: dict[str, Any], answer: Answer, begun: float) -> None:
    if "error" in event:
        raise CallError(str(event["error"])[:300])
    for choice in event.get("choices", []):
        delta = choice.get("delta") or {}
        said = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        said += choice.get("text") or ""
        if (said or delta.get("tool_calls")) and not answer.ttft_s:
            answer.ttft_s = time.perf_counter() - begun
        answer.text += said
    if usage := event.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.completion_tokens = usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        answer.told_cached = cached is not None
        answer.cached_tokens = cached or 0
    timings = event.get("timings")
    if timings:
        if "cache_n" in timings:
            answer.told_cached, answer.cached_tokens = True, timings["cache_n"]
        answer.prefill_s = timings["prompt_ms"] / 1000
        answer.decode_s = timings["predicted_ms"] / 1000


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure ends the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except* CallError as failures:
        raise failures.exceptions[0] from None


async def tokens(client: httpx.AsyncClient, url: str, call: Call, opened: bool = True) -> Tokens:
    """The call's prompt as the engine's own template and tokenizer make it.

    ``opened``: with the beginning of the answer behind it, as a prompt has it.
    """
    request = {"messages": call.messages, "add_generation_prompt": opened}
    request |= {"tools": call.tools} if call.tools else {}
    rendered = await client.post(f"{url}/apply-template", json=request)
    if rendered.status_code != httpx.codes.OK:
        raise CallError(f"/apply-template: {rendered.status_code}: {rendered.text[:300]}")
    asked = {"content": rendered.json()["prompt"], "add_special": True, "parse_special": True}
    encoded = await client.post(f"{url}/tokenize", json=asked)
    if encoded.status_code != httpx.codes.OK:
        raise CallError(f"/tokenize: {encoded.status_code}: {encoded.text[:300]}")
    return pack(encoded.json()["tokens"])


async def slots_used(client: httpx.AsyncClient, url: str) -> dict[int, tuple[int, int]]:
    """Of each slot of a bare engine that has worked: its last task and the tokens it holds."""
    slots = (await client.get(f"{url}/slots")).json()
    return {
        slot["id"]: (slot["id_task"], slot.get("n_prompt_tokens", 0))
        for slot in slots
        if "id_task" in slot
    }

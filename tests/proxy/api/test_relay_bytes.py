"""What the engine streams reaches the client as it came, at once; what the headers add."""

from __future__ import annotations

import asyncio
import re
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest

from slotwise.policies.admission import MARGIN
from slotwise.proxy.core.events import Dispatch, RequestFinished
from tests.proxy.shell import CHAT, LONG, chat, proxy, streaming
from tests.running_proxy import samples
from tests.support import StubServer

VOLATILE = re.compile(rb'"(?:id|created|[a-z_]+_ms|[a-z_]+_per_second)":(?:"[^"]*"|[0-9.e+-]+),?')


def settled(answer: httpx.Response) -> Any:
    """A whole answer without what differs from one to the next."""
    return {k: v for k, v in answer.json().items() if k not in ("id", "created", "timings")}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 5}),
        ("/completion", {"prompt": LONG, "n_predict": 5}),
    ],
)
def test_the_bytes_are_the_engines_own(
    stub: StubServer, path: str, fields: dict[str, Any], stream: bool
) -> None:
    body = {**fields, "stream": stream, "cache_prompt": False}

    async def run() -> None:
        async with proxy(stub.url) as p:
            ours = await p.client.post(path, json=body)
            theirs = httpx.post(stub.url + path, json={**body, "id_slot": 3})
            if stream:
                assert VOLATILE.sub(b"", ours.content) == VOLATILE.sub(b"", theirs.content)
            else:  # put together from a stream
                assert settled(ours) == settled(theirs)
            assert ours.headers["content-type"].startswith(theirs.headers["content-type"])
            sent = stub.requests()[-2]["body"]
            assert sent["return_progress"] is sent["stream"] is True
            assert type(sent["id_slot"]) is int
            (finished,) = p.journal.events(RequestFinished)
            assert (finished.cached_tokens, finished.completion_tokens) == (0, 5)
            assert finished.prompt_tokens == int(ours.headers["x-slotwise-prompt-tokens"])

    asyncio.run(run())


@pytest.mark.parametrize("usage", ["none", "own_chunk", "in_finish", "real"])
def test_streams_with_any_or_no_usage_pass_and_end_well(stub: StubServer, usage: str) -> None:
    """Field report R25."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(usage=usage, comments=True, chunk_bytes=7)
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
            assert "prompt_progress" not in response.text
            assert len(p.journal.events(RequestFinished)) == 1

    asyncio.run(run())


def test_streamed_or_not_the_same_tokens_are_counted(stub: StubServer) -> None:
    """Field report R69."""

    async def prompt_tokens(stub: StubServer, stream: bool) -> dict[str, float]:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=chat(LONG, stream=stream))
            found = samples((await p.client.get("/metrics")).text)
            return {k: v for k, v in found.items() if "prompt_tokens_total" in k and v}

    streamed = asyncio.run(prompt_tokens(stub, True))
    with StubServer() as another:
        assert asyncio.run(prompt_tokens(another, False)) == streamed
    assert streamed


def test_each_piece_of_a_stream_is_passed_on_at_once(stub: StubServer) -> None:
    """Field report R22."""
    stub.configure(filler_events=10, chunk_gap_s=0.08)

    async def run() -> None:
        async with proxy(stub.url) as p, streaming(p, chat()) as response:
            arrivals = [time.monotonic() async for chunk in response.aiter_raw() if chunk]
            gaps = [b - a for a, b in pairwise(arrivals)]
            assert sum(gap > 0.03 for gap in gaps) >= 8, gaps
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-cache"
            assert "content-encoding" not in response.headers

    asyncio.run(run())


def test_the_headers_tell_slot_rule_and_numbers(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=chat())
            headers = (await p.client.post(CHAT, json=chat())).headers
            assert headers["x-slotwise-slot"] == "e0/3"  # of empty slots the highest
            assert headers["x-slotwise-rule"] == "home"
            assert re.fullmatch(r"shares \d+ of \d+ tokens served there", headers["x-slotwise-why"])
            n = int(headers["x-slotwise-prompt-tokens"])
            assert headers["x-slotwise-expected-cached"] == str(n - 1)
            assert int(headers["x-slotwise-wait-ms"]) < 1000
            assert headers["x-slotwise-request-id"].startswith("req-")
            assert "x-slotwise-max-tokens" not in headers

    asyncio.run(run())


def test_a_limit_beyond_the_window_is_cut_and_the_client_is_told(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat(max_tokens=100_000))
            cut = response.headers["x-slotwise-max-tokens"]
            n = int(response.headers["x-slotwise-prompt-tokens"])
            (dispatch,) = p.journal.actions(Dispatch)
            assert cut == f"100000 -> {dispatch.max_tokens}"
            assert dispatch.max_tokens == 8192 - n - MARGIN
            assert stub.requests()[-1]["body"]["max_tokens"] == dispatch.max_tokens

    asyncio.run(run())

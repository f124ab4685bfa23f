"""What a client is told while it waits, and for how long it waits."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import Dispatch
from tests.proxy.shell import CHAT, LONG, chat, one_ending_each, proxy, queue
from tests.running_proxy import samples
from tests.support import StubServer, wait_until_async


@pytest.mark.slow
def test_comments_come_from_arrival_until_the_first_byte(stub: StubServer) -> None:
    """Field report R07."""
    stub.configure(prefill_tps=2000.0)

    async def run() -> None:
        settings: dict[str, Any] = {"first_comment_s": 0.1, "comment_every_s": 0.2}
        async with proxy(stub.url, params=queue(max_running=1), **settings) as p:
            first = asyncio.create_task(p.client.post(CHAT, json=chat(LONG, stream=True)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            response = await p.client.post(CHAT, json=chat("b " * 1500, stream=True))
            lines = [line for line in response.text.splitlines() if line.startswith(":")]
            lines = [line for line in lines if line != ": waiting: tokenizing"]  # a busy machine
            said = "max_running, 0 before you (1 request runs, no more at once)"
            assert lines[0] == f": waiting: {said}"
            assert len([line for line in lines if "max_running" in line]) >= 3
            (decided,) = [line for line in lines if line.startswith(": slotwise ")]
            assert re.fullmatch(
                r": slotwise slot=e0/\d rule=\w+ cached=\d+ wait_ms=\d+ why: .+", decided
            ), decided
            after = lines[lines.index(decided) + 1 :]
            assert after
            assert all(re.fullmatch(r": prefill \d+/15\d\d", line) for line in after), after
            data = response.text.splitlines()
            started = next(i for i, line in enumerate(data) if line.startswith("data:"))
            assert not any(line.startswith(":") for line in data[started:])
            assert response.text.endswith("data: [DONE]\n\n")
            assert "x-slotwise-slot" not in response.headers
            await first
            one_ending_each(p.journal)

    asyncio.run(run())


def test_a_quick_answer_has_no_comment(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert ":" not in [line[:1] for line in response.text.splitlines()]

    asyncio.run(run())


def test_a_request_waits_for_an_engine_that_loads(stub: StubServer) -> None:
    async def run() -> None:
        options: dict[str, Any] = {"first_comment_s": 0.05, "comment_every_s": 0.05}
        async with proxy(stub.url, up=False, **options) as p:
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=True)))
            whole = asyncio.create_task(p.client.post(CHAT, json=chat()))
            await asyncio.sleep(0.2)
            assert await p.driver.engines.up("e0", "main", stub.url, None)
            response = await sending
            assert ": waiting: engine_loading\n\n" in response.text
            assert response.text.endswith("data: [DONE]\n\n")
            assert (await whole).status_code == 200

    asyncio.run(run())


def test_the_wait_for_an_engine_ends_with_a_503() -> None:
    async def run() -> None:
        params = queue(max_wait_s=0.05)
        async with proxy("", up=False, params=params) as p:
            response = await p.client.post(CHAT, json=chat())
            assert response.status_code == 503
            assert "retry-after" in response.headers
            assert response.json()["error"]["code"] == "engine_loading"

    asyncio.run(run())


def test_the_series_know_who_waits_and_for_what(stub: StubServer) -> None:
    stub.configure(decode_tps=50.0, answer_tokens=1000)

    async def run() -> None:
        async with proxy(stub.url, params=queue(max_running=1)) as p:
            one = asyncio.create_task(p.client.post(CHAT, json=chat(max_tokens=40)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            two = asyncio.create_task(p.client.post(CHAT, json=chat("two", max_tokens=1)))
            await wait_until_async(lambda: len(p.driver._tickets) == 2)
            found = samples((await p.client.get("/metrics")).text)
            waiting = 'slotwise_requests_waiting{profile="main",reason="max_running"}'
            assert found[waiting] == 1
            assert found['slotwise_requests_running{engine="e0"}'] == 1
            status = (await p.client.get("/slotwise/status")).json()
            (waits,) = status["profiles"]["main"]["waiting"]
            assert waits["reason"] == Reason.MAX_RUNNING
            await one
            await two

    asyncio.run(run())

"""An engine that goes away under its requests."""

from __future__ import annotations

import asyncio

import pytest

from slotwise.proxy.core.events import Dispatch, Failure, RequestFailed
from tests.proxy.shell import CHAT, chat, one_ending_each, proxy, streaming, told
from tests.support import StubServer, wait_until_async


@pytest.mark.parametrize("stream", [True, False])
def test_a_lost_engine_ends_its_requests_with_an_error(stub: StubServer, stream: bool) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(silent=True)
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=stream)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            await asyncio.sleep(0.05)
            p.driver.engines.down("e0", "exit code 139")
            response = await sending
            assert response.status_code == 503
            assert "exit code 139" in response.json()["error"]["message"]
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.ENGINE_LOST

    asyncio.run(run())


def test_an_engine_lost_in_mid_stream_is_told_in_the_stream(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(decode_tps=30.0, answer_tokens=1000)
            seen = ""
            async with streaming(p, chat(max_tokens=1000)) as response:
                async for text in response.aiter_text():
                    if not seen:
                        p.driver.engines.down("e0", "hung")
                    seen += text
            last = [line for line in seen.splitlines() if line.startswith("data:")][-1]
            assert told(last)["error"]["code"] == "engine_lost"
            assert "[DONE]" not in seen
            one_ending_each(p.journal)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_lost_while_it_tokenizes_costs_a_wait_and_no_error(
    stub: StubServer, stream: bool
) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(helper_delay_s=0.3)
            stub.clear()
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=stream)))
            await wait_until_async(lambda: stub.log()["helpers"].get("/apply-template"))
            p.driver.engines.down("e0", "exited")
            stub.configure(helper_delay_s=0.0)
            assert await p.driver.engines.up("e0", "main", stub.url, None)
            assert (await sending).status_code == 200

    asyncio.run(run())


def test_an_engine_that_does_not_tokenize_is_asked_whether_it_hangs() -> None:
    async def run(engine: StubServer) -> None:
        async with proxy(engine.url) as p:
            told: list[str] = []
            p.driver.engines.on_hung = lambda name, reason: told.append(reason)
            engine.__exit__()  # nobody has said that it is gone
            answer = await p.client.post(CHAT, json=chat("hello"))
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_unreachable"
            await wait_until_async(lambda: bool(told))
            assert "5 times in a row" in told[0]

    with StubServer() as engine:
        asyncio.run(run(engine))

"""The client of one llama-server: bounded calls, dead sockets, streams."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from tests.support import StubServer, open_fds, wait_until_async


def test_a_short_call_survives_a_connection_that_died_while_idle() -> None:
    """A server that drops each keep-alive connection after one answer, without notice."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        await reader.read(1)  # the next request on this connection gets no byte
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = EngineClient(f"http://127.0.0.1:{port}", None)
        for _ in range(3):
            assert await client.call("GET", "/slots") == {}
        await client.close()
        server.close()

    asyncio.run(run())
    assert connections == 3


def test_streams_do_not_leave_dead_connections_to_short_calls(stub: StubServer) -> None:
    async def run() -> None:
        client = EngineClient(stub.url, None)
        for _ in range(3):
            upstream = await client.open("/completion", b'{"prompt":"a","stream":true}')
            assert b'"stop":true' in await upstream.whole()
            upstream.close()
            assert len(await client.slots()) == 4
        await client.close()

    asyncio.run(run())


def test_cancelled_calls_leave_no_connection_behind(stub: StubServer) -> None:
    """Whatever the moment of the cancellation; httpx's pool alone would keep some for ever."""
    rng = random.Random(5)

    async def generation(client: EngineClient) -> None:
        upstream = await client.open("/completion", b'{"prompt":"a","stream":true}')
        try:
            await upstream.whole()
        finally:
            upstream.close()

    async def run() -> None:
        client = EngineClient(stub.url, None)
        await client.props()
        fds = open_fds()
        for n in range(300):
            call = client.props() if n % 2 else generation(client)
            task = asyncio.ensure_future(call)
            await asyncio.sleep(rng.random() * 0.006)
            task.cancel()
            await asyncio.wait({task})
        await wait_until_async(lambda: not client._calls)
        assert (await client.props())["total_slots"] == 4
        await wait_until_async(lambda: open_fds() <= fds + 4)
        await client.close()
        assert open_fds() < fds

    asyncio.run(run())


def test_closing_ends_the_calls_that_wait(stub: StubServer) -> None:
    stub.configure(slots_hang=True)

    async def run() -> None:
        client = EngineClient(stub.url, None)
        asking = asyncio.create_task(client.slots())
        await wait_until_async(lambda: stub.log()["slots_polls"])
        await client.close()
        with pytest.raises(EngineUnreachableError, match="gone"):
            await asyncio.wait_for(asking, 5)

    asyncio.run(run())


def test_a_silent_engine_is_given_up_after_the_time_allowed(stub: StubServer) -> None:
    stub.configure(slots_hang=True)

    async def run() -> float:
        client = EngineClient(stub.url, None)
        began = time.monotonic()
        with pytest.raises(EngineUnreachableError, match="/slots"):
            await client.call("GET", "/slots", timeout_s=0.2)
        waited_s = time.monotonic() - began
        await client.close()
        return waited_s

    assert 0.2 <= asyncio.run(run()) < 5


def test_no_engine_at_all_means_that_nothing_was_sent() -> None:
    async def run() -> None:
        client = EngineClient("http://127.0.0.1:9", None)
        with pytest.raises(EngineUnreachableError) as caught:
            await client.open("/completion", b"{}")
        assert not caught.value.sent
        with pytest.raises(EngineUnreachableError):
            await client.props()
        await client.close()
        with pytest.raises(EngineUnreachableError):
            await client.props()

    asyncio.run(run())


def test_an_error_status_keeps_its_body_and_the_key_is_given() -> None:
    with StubServer(api_key="secret") as stub:

        async def run() -> None:
            stranger = EngineClient(stub.url, None)
            with pytest.raises(UpstreamError) as caught:
                await stranger.props()
            assert caught.value.status == 401
            assert b"Invalid API Key" in caught.value.body()
            await stranger.close()
            friend = EngineClient(stub.url, "secret")
            assert (await friend.props())["total_slots"] == 4
            await friend.close()

        asyncio.run(run())


def test_text_goes_to_ids_and_back(stub: StubServer) -> None:
    async def run() -> None:
        client = EngineClient(stub.url, None)
        ids = await client.tokenize("hello there")
        assert await client.detokenize(ids) == "hello there"
        prompt = await client.apply_template({"messages": [{"role": "user", "content": "hi"}]})
        assert "hi" in prompt
        await client.close()

    asyncio.run(run())


def test_an_engine_that_keeps_no_slot_files_says_so(stub: StubServer) -> None:
    async def run() -> tuple[bool, bool]:
        client = EngineClient(stub.url, None)
        try:
            return await client.keep_emptied(0), await client.empty(0)
        finally:
            await client.close()

    assert asyncio.run(run()) == (False, False)

"""The head of an answer goes out with the begin of its body, never later than the turn's end; no
client holds a connection by sending half a head, or by not reading what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from slotwise.proxy.api import http_protocol
from slotwise.proxy.api.http_protocol import Protocol
from tests.support import wait_until_async

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


BIG = 8 << 20  # bytes: more than the system takes for a client that does not read


async def app(scope: Any, receive: Any, send: Any) -> None:
    """``/big`` gets more than is taken for a client that does not read, ``/slow`` waits first."""
    while (await receive()).get("more_body", False):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    body = bytes(BIG) if scope["path"] == "/big" else b"fine"
    length = str(len(body)).encode()
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, ServerState]]:
    """A port of the system's where ``app`` answers, and uvicorn's book of open connections."""
    state = ServerState()
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=1)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Protocol(config, state, {}, loop), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], state
    finally:
        server.close()


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", [b"408"]),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /", [b"200", b"408"]),
        (b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /", [b"200", b"408"]),
    ],
)
def test_half_a_head_holds_no_connection(
    sent: bytes, statuses: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)

    async def work() -> None:
        async with serving() as (port, state), asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            told = await reader.read()
            assert [answer[:3] for answer in told.split(b"HTTP/1.1 ")[1:]] == statuses
            await wait_until_async(lambda: not state.connections)
            writer.close()

    asyncio.run(work())


def test_what_nobody_takes_is_thrown_away_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.3)

    async def work() -> None:
        async with serving() as (port, state), asyncio.timeout(10):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                silent.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
                await wait_until_async(lambda: bool(state.connections))
                await wait_until_async(lambda: not state.connections)

    asyncio.run(work())

"""Request bodies: bad ones get one clear line, long and endless ones a bound."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import httpx
import pytest

from tests.proxy.shell import CHAT, proxy


@pytest.mark.parametrize(
    ("content", "status", "param"),
    [
        (b"", 400, None),
        (b"not json", 400, None),
        (b"[]", 400, None),
        (b"{}", 400, "messages"),
        (b'{"messages": 5}', 400, "messages"),
        (b'{"messages":[{"role":"user","content":"x"}],"n":3}', 400, "n"),
        (b'{"messages":[{"role":"user","content":"x"}],"model":"nope"}', 404, "model"),
    ],
)
def test_bad_bodies_get_one_clear_line(content: bytes, status: int, param: str | None) -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            response = await p.client.post(CHAT, content=content)
            assert response.status_code == status
            error = response.json()["error"]
            assert error["param"] == param
            assert set(error) == {"message", "type", "param", "code"}
            assert "\n" not in error["message"]
            assert "Traceback" not in response.text

    asyncio.run(run())


def test_a_body_over_the_limit_is_a_413_with_both_numbers() -> None:
    async def run() -> None:
        async with proxy("", up=False, max_body_bytes=1000) as p:
            announced = await p.client.post(CHAT, content=b"x" * 100_000_000)
            assert announced.status_code == 413
            assert "100000000 bytes, the limit is 1000" in announced.json()["error"]["message"]

            async def pieces() -> Any:
                for _ in range(1000):
                    yield b"y" * 10_000

            unannounced = await p.client.post(CHAT, content=pieces())
            assert unannounced.status_code == 413
            assert "more than 1000 bytes" in unannounced.json()["error"]["message"]
            assert (await p.client.get("/health")).status_code == 200

    asyncio.run(run())


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.proxy.api.body.DISCARD_S", 0.2)

    async def run() -> None:
        async with proxy("", up=False, max_body_bytes=1000) as p:

            async def endless() -> Any:
                while True:
                    yield b"y" * 10_000
                    await asyncio.sleep(0.01)

            with contextlib.suppress(httpx.ReadError):
                async with asyncio.timeout(5):
                    response = await p.client.post(CHAT, content=endless())
                    assert response.status_code == 413
            assert (await p.client.get("/health")).status_code == 200

    asyncio.run(run())


def test_a_length_that_lies_is_bounded_by_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.proxy.api.body.CHUNK_TIMEOUT_S", 0.2)

    async def run() -> None:
        async with proxy("", up=False) as p:
            host, port = p.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc"
            writer.write(head.encode())
            answer = await asyncio.wait_for(reader.read(), 10)
            assert b" 408 " in answer.splitlines()[0]
            assert b"stopped after 3 bytes" in answer
            writer.close()

    asyncio.run(run())


def test_a_body_that_trickles_in_has_a_bound_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotwise.proxy.api.body.BODY_TIMEOUT_S", 0.4)

    async def run() -> None:
        async with proxy("", up=False) as p, asyncio.timeout(10):
            host, port = p.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n".encode())

            async def trickle() -> None:
                while True:
                    writer.write(b"x")
                    await asyncio.sleep(0.02)

            trickling = asyncio.create_task(trickle())
            # Up to here: what still trickles in may make the end of the connection a reset.
            answer = await reader.readuntil(b"no end after 0.4 s")
            trickling.cancel()
            assert b" 408 " in answer.splitlines()[0]
            writer.close()

    asyncio.run(run())


def test_a_client_that_leaves_within_its_body_leaves_nothing_behind() -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            host, port = p.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            await writer.drain()
            writer.close()
            assert (await p.client.get("/health")).status_code == 200
            assert p.driver._tickets == {}

    asyncio.run(run())

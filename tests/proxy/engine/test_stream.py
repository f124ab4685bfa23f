"""One generation on its own connection, before servers that behave and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.stream import LINGER_S, MAX_BUFFERED_BYTES, UpstreamStream, post
from slotwise.proxy.errors import EngineUnreachableError
from tests.support import open_fds, wait_until_async

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def engine(answer: Answer) -> AsyncIterator[str]:
    """A server that reads one request and answers it so; its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            assert await reader.readexactly(length) == b"{}"
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def writing(*pieces: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


async def asked(url: str) -> UpstreamStream:
    return await post(url, "/completion", {"Authorization": "Bearer k"}, b"{}")


async def whole(url: str) -> bytes:
    stream = await asked(url)
    try:
        return await stream.whole()
    finally:
        stream.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + chunk(b"one") + chunk(b"two") + END,),
        (CHUNKED, chunk(b"on"), chunk(b"etwo"), END),
        tuple(bytes([byte]) for byte in CHUNKED + chunk(b"one") + chunk(b"two") + END),
        (HEAD + b"Content-Length: 6\r\n\r\none", b"two"),
        (HEAD + b"\r\n", b"one", b"two"),  # the connection's end is the body's
        (b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"Content-Length: 6\r\n\r\nonetwo"),
        (CHUNKED + chunk(b"onetwo") + END + b"what nobody asked for",),
    ],
)
def test_a_body_is_read_to_its_end_however_it_is_framed(
    run: Callable[[Any], Any], pieces: tuple[bytes, ...]
) -> None:
    async def work() -> None:
        async with engine(writing(*pieces)) as url:
            stream = await asked(url)
            assert stream.status == 200
            assert stream.content_type == "text/event-stream"
            assert await stream.whole() == b"onetwo"
            assert await stream.read() == b"", "the end is told again"
            stream.close()

    run(work())


@pytest.mark.parametrize(
    ("pieces", "what"),
    [
        ((), "hung up"),
        ((HEAD,), "hung up"),
        ((b"SSH-2.0-OpenSSH\r\n\r\n",), "hung up"),
        ((CHUNKED, chunk(b"one")), "broke off"),
        ((CHUNKED, chunk(b"one"), b"not a length\r\n"), "broke off"),
        ((HEAD + b"Content-Length: 7\r\n\r\none", b"two"), "broke off"),
    ],
)
def test_an_answer_that_breaks_off_is_told_as_such(
    run: Callable[[Any], Any], pieces: tuple[bytes, ...], what: str
) -> None:
    async def work() -> None:
        async with engine(writing(*pieces)) as url:
            with pytest.raises(EngineUnreachableError, match=what) as caught:
                await whole(url)
            assert caught.value.sent

    run(work())


def test_an_error_answer_keeps_status_and_body(run: Callable[[Any], Any]) -> None:
    answer = b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    async def work() -> None:
        async with engine(writing(answer)) as url:
            stream = await asked(url)
            error = await stream.error()
            assert (error.status, error.content_type) == (400, "application/json")
            assert error.body() == b"{}"
            stream.close()

    run(work())


def test_a_reader_that_stops_makes_the_engine_wait(run: Callable[[Any], Any]) -> None:
    """What is held in memory stays bounded; nothing of it is lost."""
    piece = chunk(b"x" * 65536)
    written = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(CHUNKED)
        while written < 64 * 1024 * 1024:
            writer.write(piece)
            await writer.drain()
            written += 65536
        writer.write(END)

    async def work() -> None:
        async with engine(endless) as url:
            stream = await asked(url)
            await wait_until_async(lambda: stream._paused)
            assert stream._buffered_bytes < 8 * MAX_BUFFERED_BYTES
            seen = -1
            while seen != written:  # until the sockets between both are full
                seen = written
                await asyncio.sleep(0.05)
            assert written < 32 * 1024 * 1024
            assert len(await stream.whole()) == 64 * 1024 * 1024
            stream.close()

    run(work())


def test_closing_hangs_up_at_once_in_every_phase(run: Callable[[Any], Any]) -> None:
    left = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        assert await reader.read(1) == b""
        left += 1

    async def streaming(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"one"))
        await silent(reader, writer)

    async def work() -> None:
        async with engine(writing(CHUNKED, END)) as url:
            assert await whole(url) == b""
        fds = open_fds()
        async with engine(silent) as url:  # before the head
            waiting = asyncio.create_task(asked(url))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            await wait_until_async(lambda: left == 1, 1.0)
        async with engine(streaming) as url:  # while it is read
            stream = await asked(url)
            assert await stream.read() == b"one"
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
            stream.close()
            stream.close()
            await wait_until_async(lambda: left == 2, 1.0)
        await wait_until_async(lambda: open_fds() <= fds)

    run(work())


def test_a_cancelled_connection_attempt_leaves_nothing(run: Callable[[Any], Any]) -> None:
    async def work() -> None:
        async with engine(writing(CHUNKED, END)) as url:
            assert await whole(url) == b""
            fds = open_fds()
            for n in range(50):
                attempt = asyncio.create_task(asked(url))
                for _ in range(n % 5):
                    await asyncio.sleep(0)
                attempt.cancel()
                await asyncio.wait({attempt})
                if not attempt.cancelled():
                    attempt.result().close()
            await wait_until_async(lambda: open_fds() <= fds)

    run(work())


def test_a_hang_up_is_settled_once_the_engine_has_read_and_dropped_the_request(
    run: Callable[[Any], Any],
) -> None:
    """The request lies unread in the engine's socket: it could start after /slots was asked."""

    async def work() -> None:
        came, read_it = asyncio.Event(), asyncio.Event()
        read: list[bytes] = []

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            await read_it.wait()
            read.append(await reader.read())  # to the end: it sees the hang-up
            writer.close()

        server = await asyncio.start_server(late, "127.0.0.1", 0)
        client = EngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        call = asyncio.create_task(client.open("/completion", b"{}"))
        await came.wait()
        call.cancel()
        await asyncio.wait({call})
        settled = asyncio.create_task(client.settled())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not settled.done()
        read_it.set()
        await settled
        assert read[0].endswith(b"{}")
        await client.close()
        server.close()

    run(work())


@pytest.mark.slow
def test_an_engine_that_never_ends_its_half_is_not_waited_for_long(
    run: Callable[[Any], Any],
) -> None:
    async def work() -> None:
        fds = open_fds()
        async with engine(lambda _reader, _writer: asyncio.sleep(30)) as url:
            client = EngineClient(url, None)
            call = asyncio.create_task(client.open("/completion", b"{}"))
            await wait_until_async(lambda: open_fds() >= fds + 3)
            call.cancel()
            await asyncio.wait({call})
            async with asyncio.timeout(10 * LINGER_S):
                await client.settled()
            await client.close()

    run(work())

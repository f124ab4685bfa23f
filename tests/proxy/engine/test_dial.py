"""Connections to an engine made ahead: used while they are good, and never instead of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from slotwise.proxy.engine import upstream
from slotwise.proxy.engine.dial import SPARE_S, Spare, address_of
from slotwise.proxy.engine.upstream import UpstreamStream, post
from slotwise.proxy.errors import EngineUnreachableError
from tests.support import open_fds, wait_until_async

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Turn = Callable[[int, Reader, Writer], Awaitable[None]]


class Engine:
    """Counts its connections; ``turn`` is told the number of each."""

    def __init__(self, turn: Turn) -> None:
        self.connections = 0
        self.requests = 0
        self.url = ""
        self._turn = turn

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        try:
            await self._turn(self.connections, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def read(self, reader: Reader) -> None:
        await reader.readuntil(b"{}")
        self.requests += 1

    async def answer(self, _: int, reader: Reader, to: Writer) -> None:
        await self.read(reader)
        to.write(ANSWER)


@asynccontextmanager
async def running(turn: Turn | None = None) -> AsyncIterator[Engine]:
    engine = Engine(turn or (lambda *given: engine.answer(*given)))
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


async def whole(engine: Engine, spare: Spare) -> bytes:
    stream: UpstreamStream = await post(engine.url, "/completion", {}, b"{}", spare=spare)
    try:
        return await stream.whole()
    finally:
        stream.close()


def test_the_next_request_goes_out_on_the_spare_and_only_one_is_made() -> None:
    async def work() -> None:
        async with running() as engine:
            spare = Spare(address_of(engine.url))
            assert await whole(engine, spare) == b"ok"
            spare.make()
            spare.make()
            await wait_until_async(lambda: engine.connections == 2)
            assert await whole(engine, spare) == b"ok"
            assert (engine.connections, engine.requests) == (2, 2)
            assert await whole(engine, spare) == b"ok"
            assert engine.connections == 3, "a connection is used once"
            spare.close()

    asyncio.run(work())


def test_a_spare_that_is_old_or_was_let_go_of_is_not_used() -> None:
    async def work() -> None:
        now = 0.0
        fds = open_fds()

        async def letting_go(
            n: int, reader: asyncio.StreamReader, to: asyncio.StreamWriter
        ) -> None:
            if n != 2:  # the second is the spare that the engine closes before it is used
                await engine.answer(n, reader, to)

        async with running(letting_go) as engine:
            spare = Spare(address_of(engine.url), lambda: now)
            assert await whole(engine, spare) == b"ok"
            spare.make()
            await wait_until_async(lambda: not spare._is_good())
            assert await whole(engine, spare) == b"ok"
            spare.make()
            now = SPARE_S + 1
            assert spare.take() is None
            spare.make()
            spare.close()
            spare.make()
            assert spare.take() is None, "none is made any more"
        await wait_until_async(lambda: open_fds() <= fds)

    asyncio.run(work())


def test_a_spare_that_dies_before_a_byte_is_tried_once_more_and_no_more() -> None:
    async def work() -> None:
        async def hanging_up(
            n: int, reader: asyncio.StreamReader, to: asyncio.StreamWriter
        ) -> None:
            await engine.read(reader)
            if n in (1, 3):
                to.write(ANSWER)

        async with running(hanging_up) as engine:
            spare = Spare(address_of(engine.url))
            assert await whole(engine, spare) == b"ok"
            spare.make()
            assert await whole(engine, spare) == b"ok"
            assert engine.connections == 3
            spare.make()
            with pytest.raises(EngineUnreachableError) as caught:
                await whole(engine, spare)
            assert caught.value.sent
            assert (engine.connections, engine.requests) == (5, 5)
            with pytest.raises(EngineUnreachableError):
                await whole(engine, spare)  # without a spare nothing is tried again
            assert engine.requests == 6
            spare.close()

    asyncio.run(work())


def test_an_engine_that_held_the_request_for_a_while_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "RACE_S", 0.0)

    async def work() -> None:
        async def reads_and_hangs_up(
            n: int, reader: asyncio.StreamReader, to: asyncio.StreamWriter
        ) -> None:
            await engine.read(reader)

        async with running(reads_and_hangs_up) as engine:
            spare = Spare(address_of(engine.url))
            spare.make()
            with pytest.raises(EngineUnreachableError) as caught:
                await whole(engine, spare)
            assert caught.value.sent
            assert (engine.connections, engine.requests) == (1, 1)
            spare.close()

    asyncio.run(work())


def test_another_machine_has_no_spare() -> None:
    spare = Spare(address_of("http://192.0.2.1:8080"))
    spare.make()
    assert spare.take() is None

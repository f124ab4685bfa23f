"""A socket that is connected already: what does not fit follows, and its end is told once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from slotwise.proxy.engine.local_transport import LocalTransport
from tests.support import open_fds, wait_until_async

BIG = bytes(range(256)) * 32_768  # 8 MiB, more than the sockets between both hold


class Reader(asyncio.Protocol):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.data = b""
        self.lost: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


def both() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that never block."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return ends


def test_the_rest_of_a_request_follows_and_then_its_end(run: Callable[[Any], Any]) -> None:
    async def work() -> None:
        fds = open_fds()
        ours, theirs = both()
        reader = Reader()
        transport = LocalTransport(ours, reader, BIG)
        transport.write_eof()
        loop, got = asyncio.get_running_loop(), bytearray()
        while part := await loop.sock_recv(theirs, 1 << 20):
            got += part
        assert got == BIG
        await loop.sock_sendall(theirs, b"answer")
        theirs.close()
        await wait_until_async(lambda: reader.lost == [None])
        assert reader.data == b"answer"
        assert transport.is_closing()
        assert open_fds() <= fds

    run(work())


def test_a_reader_that_pauses_gets_nothing_until_it_goes_on(run: Callable[[Any], Any]) -> None:
    async def work() -> None:
        ours, theirs = both()
        reader = Reader()
        transport = LocalTransport(ours, reader)
        transport.pause_reading()
        theirs.send(b"later")
        for _ in range(10):
            await asyncio.sleep(0)
        assert reader.data == b""
        transport.resume_reading()
        await wait_until_async(lambda: reader.data == b"later")
        transport.abort()
        transport.abort()
        assert reader.lost == []
        await wait_until_async(lambda: reader.lost == [None])
        transport.resume_reading()
        transport.write_eof()
        assert theirs.recv(1) == b""
        theirs.close()

    run(work())


def test_the_other_side_gone_amid_the_request_is_told(run: Callable[[Any], Any]) -> None:
    async def work() -> None:
        ours, theirs = both()
        reader = Reader()
        LocalTransport(ours, reader, BIG)
        theirs.close()
        await wait_until_async(lambda: len(reader.lost) == 1)

    run(work())

"""The head of an answer goes out with the begin of its body, never later than the turn's end."""

from __future__ import annotations

import asyncio
from typing import cast

from proxy.http_protocol import JoinedHead

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Writes:
    """A transport that remembers what each write held."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def test_a_head_waits_for_the_next_write_for_the_rest_of_the_turn_and_no_longer() -> None:
    async def work() -> None:
        below = Writes()
        transport = JoinedHead(cast(asyncio.Transport, below))
        transport.write(HEAD)
        assert below.writes == []
        transport.write(b"one")
        transport.write(b"two")
        assert below.writes == [HEAD + b"one", b"two"]
        await asyncio.sleep(0)
        transport.write(HEAD)
        await asyncio.sleep(0)
        assert below.writes[2:] == [HEAD], "its body is not there yet"
        transport.write(b"three")
        assert below.writes[3:] == [b"three"]

    asyncio.run(work())


def test_a_head_goes_out_before_the_connection_is_closed() -> None:
    async def work() -> None:
        below = Writes()
        transport = JoinedHead(cast(asyncio.Transport, below))
        transport.write(HEAD)
        transport.close()
        assert below.writes == [HEAD]
        assert transport.is_closing()
        await asyncio.sleep(0)
        assert below.writes == [HEAD]

    asyncio.run(work())

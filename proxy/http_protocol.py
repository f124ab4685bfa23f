"""uvicorn's HTTP protocol, with the head of an answer and the begin of its body in one write.

uvicorn writes both on their own, and each write wakes the client: once for a head that holds
nothing it waits for, before the first token.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1."


class JoinedHead:
    """A transport that holds a head until the next write, or until the loop's next turn: an
    answer whose body comes later does not keep its head back."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(_HEAD):
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """As uvicorn's."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, JoinedHead(transport)))

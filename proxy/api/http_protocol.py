"""uvicorn's HTTP protocol with a bound on two waits that uvicorn leaves open.

These are for the rest of a request's head, and for a client to take what it was sent before its
connection was closed.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S = 60.0  # for a request's head to come whole, from the connection or its begin
LINGER_S = 30.0  # for a client to take what was written before the connection was closed

_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class LingeringTransport:
    """A transport whose close waits for the client a bounded time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def close(self) -> None:
        """What is written still goes out, for as long as somebody takes it."""
        self._transport.close()
        if self._transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """As uvicorn's, with a bound on the wait for a head."""

    _head_timer: asyncio.TimerHandle | None = None  # while a head is not complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, LingeringTransport(transport)))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head():
            if self._head_timer is None:
                self._await_head()
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _in_head(self) -> bool:
        """Whether a head has begun that is not complete: uvicorn makes the scope at its begin and
        puts the method into it at its end."""
        return self.scope is None or "method" not in self.scope

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_is_late)

    def _head_is_late(self) -> None:
        """Whoever began is told why; where nothing came there is nothing to say."""
        if self.cycle is not None and not self.cycle.response_complete:
            # The next request of a client that waits for the answer to one before.
            self._await_head()
            return
        if self.scope is not None:
            self.transport.write(_LATE)
        self.transport.close()

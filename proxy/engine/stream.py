"""One generation on a connection of its own: posted in one write, read as it arrives.

This is the path of every token, and the one call that httpx does not make: parsing straight from
the transport's callback costs a fraction of its layers (``bench/results/overhead.md``). A
connection is used once, because llama-server closes it after a stream without notice. What arrives
while the reader is busy is handed over as one piece, so that a proxy that falls behind catches up.

Closing tells the engine at once and waits for nothing: it is the only way to make it stop, and it
has to work in the ``finally`` of a task that is being cancelled. What lingers is the connection's
other half, until the engine ends that too: a request may lie unread in the engine's socket while
``/slots`` shows nothing of it, and would start later, beside another that was sent to its slot.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from slotwise.proxy.errors import EngineUnreachableError, UpstreamError

CONNECT_TIMEOUT_S = 5.0
MAX_BUFFERED_BYTES = 256 * 1024
"""More than this is left in the socket while the client reads slower than the engine writes."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Engines speak plain HTTP; without this each client would read the system's certificates anew."""

LINGER_S = 1.0
"""How long the engine may take to end its half of a connection that was closed here."""

_MAX_ERROR_BYTES = 1024 * 1024
_DEFAULT_TYPE = "application/json"


async def post(
    url: str,
    path: str,
    headers: Mapping[str, str],
    content: bytes,
    lingering: set[UpstreamStream] | None = None,
) -> UpstreamStream:
    """Returns when the engine's head is here; the caller closes what it gets.

    ``lingering``: where it is found from its close until the engine has ended its half.

    Raises :class:`EngineUnreachableError`, ``sent`` False where there was no connection.
    """
    to = urlsplit(url)
    stream = UpstreamStream(lingering)
    try:
        await _connect(stream, to)
        stream.send(_head(to.netloc, path, headers, len(content)), content)
        await stream.opened()
    except BaseException:
        stream.close()
        raise
    return stream


async def _connect(stream: UpstreamStream, to: SplitResult) -> None:
    tls = to.scheme == "https"
    port = to.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: stream, to.hostname or "", port, ssl=NO_TLS if tls else None
            )
    except (OSError, TimeoutError) as error:
        text = f"no connection: {error or type(error).__name__}"
        raise EngineUnreachableError(text, sent=False) from error


def _head(host: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class UpstreamStream(asyncio.Protocol):
    """The engine's answer to one generation, as it comes. One task at a time reads it."""

    def __init__(self, lingering: set[UpstreamStream] | None = None) -> None:
        self.status = 0  # 0: no head yet
        self.content_type = _DEFAULT_TYPE
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._buffered_bytes = 0
        self._paused = False
        self._framed = False  # the head tells where the body ends; else the connection's end does
        self._complete = False
        self._broken: str | None = None  # why nothing more will come
        self._closed = False
        self._sent = False
        self._lingering = set() if lingering is None else lingering
        self._gone: asyncio.Future[None] | None = None

    # ------------------------------------------------------------ the reader's side

    def send(self, head: bytes, content: bytes) -> None:
        """The whole request in one write."""
        assert self._transport is not None
        self._sent = True
        self._transport.writelines((head, content))

    async def opened(self) -> None:
        """Wait for the head."""
        while not self.status:
            if self._broken is not None:
                raise EngineUnreachableError(f"the engine hung up: {self._broken}")
            await self._changed()

    async def read(self) -> bytes:
        """What has come since the last call, at least a byte; empty at the end of the body.

        Raises :class:`EngineUnreachableError` if it breaks off before that.
        """
        while not self._parts:
            if self._complete:
                return b""
            if self._broken is not None:
                raise EngineUnreachableError(f"the engine broke off: {self._broken}")
            await self._changed()
        parts, self._parts = self._parts, []
        self._buffered_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def whole(self) -> bytes:
        """The body to its end."""
        parts = []
        while part := await self.read():
            parts.append(part)
        return b"".join(parts)

    async def error(self) -> UpstreamError:
        """The engine's error answer, its body cut at 1 MiB."""
        content = (await self.whole())[:_MAX_ERROR_BYTES]
        return UpstreamError(self.status, content, self.content_type)

    def close(self) -> None:
        """Tell the engine that nobody listens any more. May be called twice."""
        transport, again = self._transport, self._closed
        self._closed = True
        if transport is None or again or transport.is_closing():
            return
        if self._complete or not self._sent or not transport.can_write_eof():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._gone = loop.create_future()
        self._lingering.add(self)
        self._parts.clear()
        if self._paused:
            transport.resume_reading()  # or the engine's end would not be read
        transport.write_eof()
        loop.call_later(LINGER_S, transport.abort)

    async def gone(self) -> None:
        """Wait until the engine has ended its half as well, :data:`LINGER_S` at most."""
        if self._gone is not None:
            await asyncio.shield(self._gone)

    async def _changed(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------ the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        if self._closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._complete or self._closed or self._broken is not None:
            return  # behind the answer's end nothing is expected
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._broken = f"not HTTP: {error or type(error).__name__}"
        if self._buffered_bytes > MAX_BUFFERED_BYTES and not self._paused:
            self._paused = True
            assert self._transport is not None
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self.status and not self._framed and error is None:
            self._complete = True
        if not self._complete and self._broken is None:
            self._broken = str(error or "the connection was closed")
        self._lingering.discard(self)
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self._wake()

    # ------------------------------------------------------------ the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self.content_type = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # before the answer's own head there may be others
            self.status = status

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        self._complete = bool(self.status)

"""A transport over a socket that is connected already; it needs no turn of the loop to begin.

To hand such a socket to the loop's own transports takes a task, two turns and half a dozen system
calls, in which the answer of a fast engine would lie unread.
"""

from __future__ import annotations

import asyncio
import socket

_READ_BYTES = 64 * 1024


class LocalTransport(asyncio.Transport):
    """What a protocol that reads needs of a transport. ``rest``: what is still to be written."""

    def __init__(
        self, connection: socket.socket, protocol: asyncio.Protocol, rest: bytes = b""
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._protocol = protocol
        self._rest = memoryview(rest)
        self._ends = False  # behind the rest
        self._closed = False
        self._loop.add_reader(connection, self._readable)
        if rest:
            self._loop.add_writer(connection, self._writable)
        protocol.connection_made(self)

    def pause_reading(self) -> None:
        if not self._closed:
            self._loop.remove_reader(self._connection)

    def resume_reading(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._connection, self._readable)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._ends = True
        if self._rest or self._closed:
            return
        try:
            self._connection.shutdown(socket.SHUT_WR)
        except OSError as error:  # the other side was faster
            self._close(error)

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        self._close(None)

    def _readable(self) -> None:
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._close(None)

    def _writable(self) -> None:
        try:
            self._rest = self._rest[self._connection.send(self._rest) :]
        except BlockingIOError:
            return
        except OSError as error:
            self._close(error)
            return
        if not self._rest:
            self._loop.remove_writer(self._connection)
            if self._ends:
                self.write_eof()

    def _close(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        self._loop.call_soon(self._protocol.connection_lost, error)

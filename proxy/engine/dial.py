"""To an engine on this machine: connected and written to within a call, without the event loop.

The kernel connects two of its own sockets at once, so nothing is there to wait for. The loop is
given the connection afterwards, while the engine works.

A generation's connection is used once, but it may be made ahead: when one generation has ended,
a *spare* is connected for the next, which mostly follows within seconds. llama-server lets go of
an idle one after 5 s; a spare is not used when it is older than 3 s or was let go of.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

SPARE_S = 3.0  # how long a spare is good for
_LOOPBACK = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


class Address(NamedTuple):
    """Where an engine listens."""

    netloc: str
    host: str
    port: int
    tls: bool
    family: socket.AddressFamily | None  # of this machine's own addresses


@lru_cache(maxsize=64)
def address_of(url: str) -> Address:
    """Kept: every request asks for the same one."""
    parts = urlsplit(url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    return Address(parts.netloc, host, port, tls, _LOOPBACK.get(host))


class Dialled(NamedTuple):
    """A connection, and what of the content is still to be written on it."""

    connection: socket.socket
    rest: bytes


def send_at_once(
    to: Address, head: bytes, content: bytes, connection: socket.socket | None = None
) -> Dialled | None:
    """Connect, where ``connection`` is None, and write. None: nothing was sent and nothing is open,
    since the address is not of this machine, nobody listens there, or too many wait to be
    accepted; the loop can tell which."""
    connection = connection or _dialled(to)
    if connection is None:
        return None
    try:
        sent = connection.sendmsg((head, content))
    except OSError:
        connection.close()
        return None
    whole = sent == len(head) + len(content)
    return Dialled(connection, b"" if whole else (head + content)[sent:])


def _dialled(to: Address) -> socket.socket | None:
    if to.family is None or to.tls:
        return None
    connection = socket.socket(to.family)
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.connect_ex((to.host, to.port))  # whether it is refused, the first write tells
    return connection


class Spare:
    """At most one connection to an engine, made ahead."""

    def __init__(self, to: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self._to = to
        self._clock = clock
        self._connection: socket.socket | None = None
        self._made_at = 0.0  # s
        self._closed = False

    def make(self) -> None:
        """Connect one, unless a good one is there."""
        if self._closed or self._is_good():
            return
        self._drop()
        self._connection, self._made_at = _dialled(self._to), self._clock()

    def take(self) -> socket.socket | None:
        """It is the caller's from now on. None: there is none that is good."""
        if not self._is_good():
            self._drop()
        connection, self._connection = self._connection, None
        return connection

    def close(self) -> None:
        """None is made any more: an engine that ends waits for its open connections."""
        self._closed = True
        self._drop()

    def _is_good(self) -> bool:
        if self._connection is None or self._clock() - self._made_at > SPARE_S:
            return False
        try:
            # An engine says nothing before it is asked: what can be read is the connection's end.
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

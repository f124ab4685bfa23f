"""To an engine on this machine: connected and written to within a call, without the event loop.

The kernel connects two of its own sockets at once, so nothing is there to wait for. The loop is
given the connection afterwards, while the engine works.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

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


def send_at_once(to: Address, head: bytes, content: bytes) -> Dialled | None:
    """Connect and write. None: nothing was sent and nothing is open, since the address is not of
    this machine, nobody listens there, or too many wait to be accepted; the loop can tell which."""
    if to.family is None or to.tls:
        return None
    connection = socket.socket(to.family)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect_ex((to.host, to.port))
        sent = connection.sendmsg((head, content))
    except OSError:
        connection.close()
        return None
    whole = sent == len(head) + len(content)
    return Dialled(connection, b"" if whole else (head + content)[sent:])

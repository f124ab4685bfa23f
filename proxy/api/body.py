"""Reads a request's body up to a limit, and keeps not a byte more.

The announced length is only a hint: a longer body is refused by what really comes. What is over the
limit is thrown away for a few seconds before the refusal, because a connection that is closed with
unread bytes is reset, and the client would see a broken connection in place of the reason.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Receive, Scope

from slotwise.proxy.errors import ProxyError

DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024
CHUNK_TIMEOUT_S = 60.0
BODY_TIMEOUT_S = 900.0  # for all of it: 64 MiB at 75 kB a second
DISCARD_S = 5.0


class ClientGoneError(Exception):
    """The client left; nobody is there to answer."""


async def read_body(
    scope: Scope, receive: Receive, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> bytes:
    """The whole body.

    Raises ``ProxyError`` 413 for one over the limit and 408 for one that stops or does not end,
    :class:`ClientGoneError` when the client leaves before its end.
    """
    announced = _announced(scope)
    if announced > limit_bytes:
        if not _waits_for_consent(scope):
            await _discard(receive)
        raise _too_large(f"{announced}", limit_bytes)
    parts: list[bytes] = []
    size = 0
    clock = asyncio.get_running_loop().time
    until = clock() + BODY_TIMEOUT_S
    while True:
        try:
            async with asyncio.timeout_at(min(clock() + CHUNK_TIMEOUT_S, until)):
                message = await receive()
        except TimeoutError:
            text = f"the body stopped after {size} bytes for {CHUNK_TIMEOUT_S:g} s"
            if clock() >= until:
                text = f"the body had {size} bytes and no end after {BODY_TIMEOUT_S:g} s"
            raise ProxyError(408, "request_timeout", text, headers=_CLOSE) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            parts.clear()
            if message.get("more_body", False):
                await _discard(receive)
            raise _too_large(f"more than {limit_bytes}", limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


# What is left of the body is not read, so the connection cannot be used again.
_CLOSE = {"Connection": "close"}


async def _discard(receive: Receive) -> None:
    """Throw away what still comes, for a while; the rest is cut off with the connection."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while (await receive()).get("more_body", False):
                pass


def _waits_for_consent(scope: Scope) -> bool:
    """A client that asks first (``Expect: 100-continue``) has not sent its body yet."""
    return any(name == b"expect" for name, _ in scope["headers"])


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def _too_large(size: str, limit_bytes: int) -> ProxyError:
    text = f"the body has {size} bytes, the limit is {limit_bytes} bytes"
    return ProxyError(413, "request_too_large", text, headers=_CLOSE)

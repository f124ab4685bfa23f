"""What every request passes first: an id, the key, and a net under unexpected errors."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slotwise.proxy.api import lanes_page
from slotwise.proxy.api.response import Reply
from slotwise.proxy.errors import ProxyError, internal_error

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset(("/health", "/v1/health", "/health/ready", "/", *lanes_page.PATHS))
_CALLER = "slotwise.caller"
_REQUEST_ID = b"x-slotwise-request-id"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the key's name, else the client's address. Never the key itself."""

    request_id: str
    key: str


def caller_of(scope: Scope) -> Caller:
    caller = scope[_CALLER]
    assert isinstance(caller, Caller)
    return caller


class Gate:
    """The outermost ASGI layer. ``keys``: name -> secret; none: everybody may ask.

    ``posts``: what answers a POST to exactly this path, past the application: each of its layers
    would wrap every token that is sent.
    """

    def __init__(self, app: ASGIApp, keys: Mapping[str, str], posts: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._posts = dict(posts)
        # Digests have one length, so that comparing them tells nothing about a secret's.
        self._keys = [(name, _digest(secret.encode())) for name, secret in keys.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req-{os.urandom(8).hex()}"
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (_REQUEST_ID, request_id.encode())]
            await send(message)

        try:
            scope[_CALLER] = Caller(request_id, self._who(scope))
            app = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
            await (app or self._app)(scope, receive, send_with_id)
        except ProxyError as error:
            await Reply(send_with_id).error(error)
        except Exception:
            log.exception("request %s: unexpected error", request_id)
            if not started:
                await Reply(send_with_id).error(internal_error())

    def _who(self, scope: Scope) -> str:
        """The name of the key given, or the client's address where no keys are set."""
        if self._keys and scope["path"] not in OPEN_PATHS:
            given = _digest(_given(scope))
            names = [name for name, key in self._keys if hmac.compare_digest(key, given)]
            if not names:
                text = "a valid key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY"
                raise ProxyError(401, "invalid_api_key", text)
            return names[0]
        client = scope.get("client")
        return client[0] if client else "unknown"


def _given(scope: Scope) -> bytes:
    headers: dict[bytes, bytes] = dict(scope["headers"])
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and key:
        return key.strip()
    return headers.get(b"x-api-key", b"").strip()


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()

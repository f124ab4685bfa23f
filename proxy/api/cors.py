"""Web pages of other origins: a browser lets them read our answers only where they are named.

Off unless asked for: without keys, any page that a user opens could talk to a slotwise on their
own machine. Named origins may ask for models, completions and tokens; what others asked, the state
and the series stay out of their reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
_OURS = ("/slotwise", "/metrics")
_KEEP_S = 3600  # for a browser: how long it need not ask again
_SHOWN = tuple(
    f"X-Slotwise-{name}"
    for name in (
        *("Request-Id", "Slot", "Rule", "Why", "Prompt-Tokens", "Expected-Cached", "Wait-Ms"),
        *("Wait", "Max-Tokens", "Normalized"),
    )
)


class Cors:
    """The outermost ASGI layer: a browser asks first whether it may, and has no key for that."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._open = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # clients send many of their own; none is trusted more for it
            expose_headers=_SHOWN,
            max_age=_KEEP_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] != "http" or scope["path"].startswith(_OURS)
        await (self._app if ours else self._open)(scope, receive, send)


def origin_of(text: str) -> str:
    """The origin as browsers write it; raises ``ValueError`` that says what is wrong."""
    if text == ANY:
        return text
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname)
        port = parts.port
    except ValueError:
        known, port = False, None
    if not known or parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise ValueError(f"expected an origin like http://localhost:3000, or *, got {text!r:.80}")
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")

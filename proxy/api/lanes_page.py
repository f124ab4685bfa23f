"""``GET /slotwise/``: the lanes page. The files of ``proxy/api/lanes/``, and nothing that is known.

The page is a shell without data, so it is open to everybody: what it shows it asks for with the
reader's own key. It runs no script but its own, loads nothing from elsewhere, and whatever a client
or a model is called stays text: the browser is told to refuse anything else.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

ROOT = "/slotwise/"
_FOLDER = Path(__file__).parent / "lanes"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and mostly answered with 304
}
INDEX = "index.html"
FILES = tuple(sorted(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES))
PATHS = (ROOT.rstrip("/"), *(ROOT + ("" if name == INDEX else name) for name in FILES))


def routes() -> list[BaseRoute]:
    """One route per file; the bare address and the path without its last slash lead to the page."""
    found: list[BaseRoute] = [Route("/", _from_root), Route(PATHS[0], _to_page)]
    for name, path in zip(FILES, PATHS[1:], strict=True):
        found.append(Route(path, _File(_FOLDER / name).get))
    return found


class _File:
    """A file, read once."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._type = _TYPES[path.suffix]
        self._tag = f'"{sha256(self._body).hexdigest()[:20]}"'

    async def get(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self._tag}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        return Response(self._body, headers={**headers, "Content-Type": self._type})


async def _from_root(request: Request) -> Response:
    # Not for good: at this address something else may be served tomorrow.
    return RedirectResponse("slotwise/", status_code=307)


async def _to_page(request: Request) -> Response:
    return RedirectResponse("slotwise/", status_code=308)  # relative: a prefix stays

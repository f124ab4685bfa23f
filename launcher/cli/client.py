"""Asking a running slotwise, for the commands that show what it says. Every question is bounded."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "SLOTWISE_API_KEY"
TIMEOUT_S = 10.0
_MOST_BYTES = 32 * 2**20
_ERROR_CHARS = 300


class AskError(Exception):
    """Why there is no answer, in one line."""


def add_address(parser: argparse.ArgumentParser) -> None:
    """``--url`` and ``--key``."""
    parser.add_argument("--url", default=DEFAULT_URL, help="where slotwise serves (%(default)s)")
    parser.add_argument("--key", help=f"API key, where keys are set (else from {KEY_VARIABLE})")


def get(args: argparse.Namespace, path: str, query: Mapping[str, str] | None = None) -> Any:
    """The JSON object at ``path`` of the slotwise that ``args`` names; raises :class:`AskError`."""
    url = args.url.rstrip("/") + path
    key = args.key or os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.stream(
            "GET", url, params=query or None, headers=headers, timeout=TIMEOUT_S
        ) as reply:
            content = _read(reply, url)
        body = json.loads(content)
    except ValueError as error:
        if isinstance(error, UnicodeError) and not isinstance(error, UnicodeDecodeError):
            raise AskError(f"{url} cannot be asked: {error}") from None
        raise AskError(f"{url} answers {reply.status_code}, and not with JSON") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = str(error) or type(error).__name__
        raise AskError(f"{url} cannot be asked: {told} (--url names another)") from None
    if reply.status_code != httpx.codes.OK:
        raise AskError(f"{url} answers {reply.status_code}: {_reason(body)}")
    if not isinstance(body, dict):
        raise AskError(f"{url} answers, but not as slotwise does")
    return body


def _read(reply: httpx.Response, url: str) -> bytes:
    """The whole body: no more than so much, and no longer than so long."""
    until = time.monotonic() + TIMEOUT_S
    content = bytearray()
    for part in reply.iter_bytes():
        content += part
        if len(content) > _MOST_BYTES or time.monotonic() > until:
            limits = f"{TIMEOUT_S:g} s or {_MOST_BYTES // 2**20} MiB"
            raise AskError(f"{url} answers, but without an end within {limits}")
    return bytes(content)


def printable(text: object) -> str:
    """Nothing that moves the cursor: some of what is shown comes from clients."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def _reason(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    told = error.get("message") if isinstance(error, dict) else body
    return printable(str(told)[:_ERROR_CHARS])

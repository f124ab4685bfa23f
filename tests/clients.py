"""Clients as tests need them: one that posts and waits, and one that hangs up when told."""

from __future__ import annotations

import socket
from typing import Any, Protocol

import httpx
import orjson


class HasUrl(Protocol):
    """A stub, an engine or a proxy."""

    @property
    def url(self) -> str: ...


def post(
    server: HasUrl, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=20)


def words(n: int) -> str:
    """A text of n tokens; the chat template adds 8."""
    return " ".join(["word"] * n)


def chat(content: str = "hello there", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [orjson.loads(line.removeprefix("data: ")) for line in lines]


def cached(response: httpx.Response) -> int:
    n: int = response.json()["timings"]["cache_n"]
    return n


class HangingClient:
    """A request whose client hangs up on demand."""

    def __init__(self, server: HasUrl, body: dict[str, Any]) -> None:
        url = httpx.URL(server.url)
        assert url.port is not None
        content = orjson.dumps(body)
        self._socket = socket.create_connection((url.host, url.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}"
        self._socket.sendall(head.encode() + b"\r\n\r\n" + content)

    def read_to_end(self) -> bytes:
        """All bytes until the server closes the connection."""
        self._socket.settimeout(10)
        with self._socket:
            return b"".join(iter(lambda: self._socket.recv(65536), b""))

    def hang_up(self) -> None:
        self._socket.close()

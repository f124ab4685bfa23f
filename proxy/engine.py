"""The HTTP client of one llama-server.

Short JSON calls share a small pool; a generation gets a connection of its own, because the server
closes a connection after a stream without notice, and the next call on it would die. The server
closes idle connections after 5 s, so the pool lets go of them before that; and the one call that
still meets a dead socket is tried once more (all the short calls may be repeated without harm).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import orjson

from proxy.errors import EngineUnreachableError, UpstreamError

KEEPALIVE_EXPIRY_S = 3.0
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
OFF_LOOP_BYTES = 256 * 1024
"""JSON longer than this is parsed in a thread, so that other streams keep flowing."""

_KEPT_CONNECTIONS = 4
_MAX_ERROR_BYTES = 1024 * 1024


class EngineClient:
    """One llama-server at ``url``; every call is bounded in time.

    Calls raise :class:`EngineUnreachableError` when no answer came, :class:`UpstreamError` when the
    answer is an error status.
    """

    def __init__(self, url: str, api_key: str | None, *, timeout_s: float = 60.0) -> None:
        headers = {"Accept-Encoding": "identity"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._short = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(
                max_keepalive_connections=_KEPT_CONNECTIONS, keepalive_expiry=KEEPALIVE_EXPIRY_S
            ),
            trust_env=False,
        )
        self._streams = httpx.AsyncClient(
            base_url=self.url,
            headers={**headers, "Connection": "close"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._short.aclose()
        await self._streams.aclose()

    # ------------------------------------------------------------ short calls

    async def exchange(
        self, method: str, path: str, content: bytes | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        """One whole answer, whatever its status."""
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                try:
                    return await self._short.request(method, path, content=content, headers=headers)
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                    return await self._short.request(method, path, content=content, headers=headers)
        except (httpx.TransportError, TimeoutError, RuntimeError) as error:
            # RuntimeError: this client was closed, since its engine is gone.
            raise EngineUnreachableError(
                f"the engine did not answer {path}: {_what(error)}"
            ) from error

    async def call(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = None
    ) -> Any:
        """One JSON answer, parsed."""
        content = None if body is None else await _off_loop(orjson.dumps, body, _size(body))
        answer = await self.exchange(method, path, content, timeout_s)
        if answer.status_code >= 400:
            raise _upstream_error(answer.status_code, answer.content, answer.headers)
        try:
            return await _off_loop(orjson.loads, answer.content, len(answer.content))
        except orjson.JSONDecodeError as error:
            raise EngineUnreachableError(f"the engine's answer to {path} is not JSON") from error

    async def props(self) -> Any:
        return await self.call("GET", "/props", timeout_s=10)

    async def slots(self) -> Any:
        return await self.call("GET", "/slots", timeout_s=10)

    async def models(self) -> Any:
        return await self.call("GET", "/v1/models", timeout_s=10)

    async def apply_template(self, body: dict[str, Any]) -> str:
        """The prompt text that the engine's chat template makes of this body."""
        answer = await self.call("POST", "/apply-template", body)
        prompt = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(prompt, str):
            raise EngineUnreachableError("the engine's answer to /apply-template holds no prompt")
        return prompt

    async def tokenize(self, content: str | Sequence[str | int]) -> list[int]:
        """Token ids as the engine makes them for inference: special tokens added and parsed."""
        body = {"content": content, "add_special": True, "parse_special": True}
        answer = await self.call("POST", "/tokenize", body)
        ids = answer.get("tokens") if isinstance(answer, dict) else None
        if not isinstance(ids, list):
            raise EngineUnreachableError("the engine's answer to /tokenize holds no tokens")
        return ids

    async def detokenize(self, ids: Sequence[int]) -> str:
        answer = await self.call("POST", "/detokenize", {"tokens": list(ids)})
        return str(answer["content"])

    # ------------------------------------------------------------ generations

    async def open(self, path: str, content: bytes) -> UpstreamStream:
        """Post a generation; returns when the engine's head is here. The caller closes it."""
        request = self._streams.build_request(
            "POST", path, content=content, headers={"Content-Type": "application/json"}
        )
        try:
            response = await self._streams.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnreachableError(f"no connection: {_what(error)}", sent=False) from error
        except (httpx.TransportError, RuntimeError) as error:
            raise EngineUnreachableError(f"the engine hung up: {_what(error)}") from error
        return UpstreamStream(response)


class UpstreamStream:
    """The engine's answer to one generation, as it comes."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "application/json")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; raises :class:`EngineUnreachableError` if it breaks off."""
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except (httpx.TransportError, httpx.StreamError) as error:
            raise EngineUnreachableError(f"the engine broke off: {_what(error)}") from error

    async def whole(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def error(self) -> UpstreamError:
        """The engine's error answer, its body cut at 1 MiB."""
        content = (await self.whole())[:_MAX_ERROR_BYTES]
        return _upstream_error(self.status, content, self._response.headers)

    async def close(self) -> None:
        """Close the connection: the only way to tell the engine to stop. Bounded, never raises."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._response.aclose()
        except (httpx.HTTPError, TimeoutError, OSError):
            pass


def _upstream_error(status: int, content: bytes, headers: httpx.Headers) -> UpstreamError:
    return UpstreamError(status, content, headers.get("content-type", "application/json"))


def _what(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _size(body: Any) -> int:
    """A cheap guess at the length of this body as JSON: the long texts that it may hold."""
    content = body.get("content") if isinstance(body, dict) else None
    if isinstance(content, str | list):
        return len(content)
    return OFF_LOOP_BYTES + 1 if isinstance(body, dict) and "messages" in body else 0


async def _off_loop(work: Any, value: Any, size: int) -> Any:
    """Run ``work(value)`` here if it is small, in a thread if it would hold up the loop."""
    return work(value) if size <= OFF_LOOP_BYTES else await asyncio.to_thread(work, value)

"""One llama-server's HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson

from slotwise.proxy.engine.stream import CONNECT_TIMEOUT_S, NO_TLS, UpstreamStream, post
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError

KEEPALIVE_EXPIRY_S = 3.0
CLOSE_TIMEOUT_S = 1.0
OFF_LOOP_BYTES = 256 * 1024
"""JSON longer than this is parsed in a thread, so that other streams keep flowing."""

_KEPT_CONNECTIONS = 4


class EngineClient:
    """One llama-server at ``url``; every call is bounded in time.

    Calls raise :class:`EngineUnreachableError` when no answer came, :class:`UpstreamError` when the
    answer is an error status.
    """

    def __init__(self, url: str, api_key: str | None, *, timeout_s: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._calls: set[asyncio.Task[httpx.Response]] = set()
        self._lingering: set[UpstreamStream] = set()
        self._short = httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            verify=NO_TLS,
            limits=httpx.Limits(
                max_keepalive_connections=_KEPT_CONNECTIONS, keepalive_expiry=KEEPALIVE_EXPIRY_S
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        """End the short calls and close their pool; generations are closed by their owners."""
        calls = set(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls, timeout=CLOSE_TIMEOUT_S)
        await self._short.aclose()

    # ------------------------------------------------------------ short calls

    async def exchange(
        self, method: str, path: str, content: bytes | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        """One whole answer, whatever its status. Cancelled, it still ends by itself."""
        allowed_s = timeout_s or self._timeout_s
        call = asyncio.create_task(self._request(method, path, content, allowed_s))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(allowed_s):
                return await asyncio.shield(call)
        except (httpx.TransportError, TimeoutError, RuntimeError) as error:
            # RuntimeError: this client was closed, since its engine is gone.
            raise EngineUnreachableError(
                f"the engine did not answer {path}: {_what(error)}"
            ) from error
        except asyncio.CancelledError:
            if call.cancelled() and not _is_cancelled():
                raise EngineUnreachableError("the engine is gone") from None
            raise

    # ------------------------------------------------------------ emptied slots

    async def keep_emptied(self, id_slot: int) -> bool:
        """Keep the state of this idle slot, one token of no prompt, as what :meth:`empty` puts
        into a slot. False: the engine refuses."""
        return await self._slot_file(id_slot, "save")

    async def empty(self, id_slot: int) -> bool:
        """Replace what an idle slot holds by one token. Erased, it would not be filled from the
        RAM cache. False: the engine refuses."""
        return await self._slot_file(id_slot, "restore")

    async def _slot_file(self, id_slot: int, action: str) -> bool:
        # The port tells the engines apart whose files lie in one directory.
        name = f"emptied-{urlsplit(self.url).port}"
        body = orjson.dumps({"filename": name})
        answer = await self.exchange("POST", f"/slots/{id_slot}?action={action}", body)
        return answer.is_success

    async def _request(
        self, method: str, path: str, content: bytes | None, timeout_s: float
    ) -> httpx.Response:
        request = self._short.build_request(
            method,
            path,
            content=content,
            headers={} if content is None else {"Content-Type": "application/json"},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
        )
        try:
            return await self._short.send(request)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await self._short.send(request)

    def _ended(self, call: asyncio.Task[httpx.Response]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # looked at, also where nobody waits for it any more

    async def call(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = None
    ) -> Any:
        """One JSON answer, parsed."""
        content = None if body is None else await _off_loop(orjson.dumps, body, _size(body))
        answer = await self.exchange(method, path, content, timeout_s)
        if answer.status_code >= 400:
            content_type = answer.headers.get("content-type", "application/json")
            raise UpstreamError(answer.status_code, answer.content, content_type)
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

    async def tokenize(
        self,
        content: str | Sequence[str | int],
        *,
        add_special: bool = True,
        parse_special: bool = True,
    ) -> list[int]:
        """Token ids; by default as the engine makes them for inference."""
        body = {"content": content, "add_special": add_special, "parse_special": parse_special}
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
        return await post(self.url, path, self._headers, content, self._lingering)

    async def settled(self) -> None:
        """Wait until the engine has seen every hang-up, a bounded time each: what ``/slots`` says
        then is about those requests, too."""
        for stream in tuple(self._lingering):
            await stream.gone()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


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

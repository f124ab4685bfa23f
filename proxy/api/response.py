"""A client that leaves before its answer is complete ends the work for it.

A handler that waits is not told of a hang-up: something has to ask for it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from starlette.types import Receive, Send

from slotwise.proxy.errors import ProxyError, UpstreamError, framed

EVENT_STREAM = "text/event-stream"
_WRITE_TIMEOUT_S = 30.0  # for a comment to reach a client that reads slowly
_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Reply:
    """One response. ``headers`` may grow until the head goes out."""

    def __init__(self, send: Send) -> None:
        self.headers: dict[str, str] = {}
        self.opened = False
        self.complete = False  # its last byte is on its way
        self._send = send
        self._lock = asyncio.Lock()
        self._flowing = False  # the answer has begun: nobody but its writer writes any more
        self._quiet = asyncio.Event()  # set: no more comments

    def hush(self) -> None:
        """No comment from now on; one that is being written still goes out whole."""
        self._quiet.set()

    async def comment(self, text: str) -> None:
        """A line that clients skip; opens the stream if need be."""
        async with self._lock:
            if not self._quiet.is_set():
                await self._write(EVENT_STREAM, f": {text}\n\n".encode())

    async def stream(self, content_type: str, data: bytes) -> None:
        """The next bytes of a streamed answer."""
        if self._flowing:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        self.hush()
        async with self._lock:
            self._flowing = True
            await self._write(content_type, data)

    async def end(self) -> None:
        """The streamed answer is complete."""
        self.hush()
        async with self._lock:
            if not self.opened:
                await self._open(200, EVENT_STREAM, _STREAM_HEADERS)
            await self._finish(b"")

    async def whole(self, status: int, content_type: str, body: bytes) -> None:
        """A complete answer that is not streamed."""
        self.hush()
        async with self._lock:
            await self._open(status, content_type, {"Content-Length": str(len(body))})
            await self._finish(body)

    async def error(self, error: ProxyError | UpstreamError) -> None:
        """With its status if the head is not out; else one framed event and no end marker."""
        if not self.opened:
            self.headers.update(error.headers)
            await self.whole(error.status, error.content_type, error.body())
            return
        await self.stream(EVENT_STREAM, framed(error))
        await self.end()

    async def keep(self, every_s: float, text: Callable[[], str]) -> None:
        """Comment now, then every ``every_s``, until :meth:`hush`."""
        while not self._quiet.is_set():
            await self.comment(text())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._quiet.wait()

    async def _write(self, content_type: str, data: bytes) -> None:
        if not self.opened:
            await self._open(200, content_type, _STREAM_HEADERS)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _open(self, status: int, content_type: str, more: Mapping[str, str]) -> None:
        self.opened = True
        headers = {"Content-Type": content_type, **more, **self.headers}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            }
        )

    async def _finish(self, body: bytes) -> None:
        self.complete = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


class Comments:
    """Comment lines from ``first_s`` from now on. A timer until then, not a task: most answers
    begin before the first comment is due."""

    def __init__(
        self, reply: Reply, first_s: float, every_s: float, text: Callable[[], str]
    ) -> None:
        self._reply = reply
        self._every_s = every_s
        self._text = text
        self._keeper: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(first_s, self._begin)

    def _begin(self) -> None:
        self._keeper = asyncio.create_task(self._reply.keep(self._every_s, self._text))

    async def end(self) -> None:
        """No more of them."""
        self._timer.cancel()
        self._reply.hush()
        if self._keeper is not None:
            # Not cancelled at once: a comment that is half written has to go out whole.
            await asyncio.wait({self._keeper}, timeout=_WRITE_TIMEOUT_S)
            self._keeper.cancel()


_CANCEL_AGAIN_S = 2.0


class Departure:
    """Cancels the task that makes it when the client leaves: wherever that task stands, and again
    after a while, since a library may swallow the first cancellation.

    The watch begins when the task first waits: until then nothing could be cancelled.
    """

    def __init__(self, receive: Receive, reply: Reply) -> None:
        work = asyncio.current_task()
        assert work is not None
        self.seen = False
        self._work = work
        self._receive = receive
        self._reply = reply
        self._watch: asyncio.Task[None] | None = None
        self._begin = asyncio.get_running_loop().call_soon(self._start)

    def end(self) -> None:
        """The work is done."""
        self._begin.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def _start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._until_it_leaves())

    async def _until_it_leaves(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        while not self._reply.complete:
            self.seen = True
            self._work.cancel()
            await asyncio.sleep(_CANCEL_AGAIN_S)

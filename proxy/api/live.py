"""``GET /slotwise/events``: the status as a stream, for pages that stay open.

However many listen, one document is made for all of them, at most every 0.4 s and only when
something happened; at rest every five seconds, which also tells a listener that we are there. Who
reads slowly misses documents, never a part of one: each listener takes the newest when it is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable

import orjson
from starlette.types import Receive, Scope, Send

from slotwise.proxy.api.overview import overview
from slotwise.proxy.api.reply import EVENT_STREAM
from slotwise.proxy.errors import ProxyError
from slotwise.proxy.serving.driver import Driver

log = logging.getLogger(__name__)

MOST_LISTENERS = 16
PERIOD_S = 0.4
AT_REST_S = 5.0
_SEND_LIMIT_S = 20.0  # for one document to a listener; then its place is free again
_LONGEST_S = 3600.0  # then a page connects anew
_HEADERS = (
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class Live:
    """The ASGI endpoint. Makes documents only while somebody listens."""

    def __init__(self, driver: Driver, make: Callable[[Driver], object] = overview) -> None:
        """``make``: the document, as plain data."""
        self._driver = driver
        self._make = make
        self._listeners = 0
        self._closed = False
        self._frame = b""  # the newest document, as it is sent
        self._fresh = asyncio.Event()  # set, and replaced, when there is a newer one
        self._maker: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        return self._listeners

    def close(self) -> None:
        """End every stream now: an open page must not hold up the end of the program."""
        self._closed = True
        self._fresh.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "HEAD":
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await send({"type": "http.response.body", "body": b""})
            return
        if self._listeners >= MOST_LISTENERS:
            text = f"{MOST_LISTENERS} pages listen already, no more at once"
            raise ProxyError(503, "too_many_listeners", text, retry_after_s=10)
        self._listeners += 1
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait(
                {sending, leaving}, timeout=_LONGEST_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._listeners -= 1
            for task in (sending, leaving):
                task.cancel()
            if not self._listeners and self._maker is not None:
                self._maker.cancel()
                self._maker = None
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        """Documents to one listener, until it is too slow or all is over."""
        start = {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
        try:
            async with asyncio.timeout(_SEND_LIMIT_S):
                await send(start)
            seen = b""
            while not self._closed:
                fresh = self._fresh
                self._keep_making()
                if self._frame and self._frame is not seen:
                    seen = self._frame
                    async with asyncio.timeout(_SEND_LIMIT_S):
                        await send({"type": "http.response.body", "body": seen, "more_body": True})
                    continue
                await fresh.wait()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.info("a page reads too slowly, its stream ends")
        except OSError:
            pass  # it left

    def _keep_making(self) -> None:
        if self._maker is None or self._maker.done():
            self._frame = b""  # what is left of earlier listeners is old
            self._maker = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """One document for all, whenever something happened."""
        last: Hashable = None
        while self._listeners and not self._closed:
            mark = self._mark()
            if mark != last:
                last = mark
                try:
                    document = orjson.dumps(self._make(self._driver))
                except Exception:  # a page without news is better than none for good
                    log.exception("the status cannot be shown")
                else:
                    self._frame = b"data: " + document + b"\n\n"
                    fresh, self._fresh = self._fresh, asyncio.Event()
                    fresh.set()
            await asyncio.sleep(PERIOD_S)

    def _mark(self) -> Hashable:
        """Another value whenever there is something to show."""
        driver = self._driver
        lives = tuple((life.name, life.state, life.text) for life in driver.engines.lives.values())
        return driver.events_seen, lives, int(driver.clock() / AT_REST_S)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

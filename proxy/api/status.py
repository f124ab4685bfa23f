"""The status of everything, once and as a stream, with what became of each request."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Hashable, Sequence
from functools import cache, lru_cache
from importlib import metadata
from itertools import groupby
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slotwise.policies.attribution import Cause
from slotwise.proxy.api.auth import caller_of
from slotwise.proxy.api.response import EVENT_STREAM
from slotwise.proxy.core import snapshot
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, ProxyError, UpstreamError, bad
from slotwise.proxy.history import explain
from slotwise.proxy.history.explain import Texts
from slotwise.proxy.history.history import SPAN_S, Sums
from slotwise.proxy.history.record import Record
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import EngineLife, ServedProfile, build_of
from slotwise.proxy.tokens.media import FIRST_ID

LAST_REQUESTS = 12
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


def overview(driver: Driver) -> dict[str, Any]:
    """Everything as of now. ``time``: the time of day (s)."""
    now = driver.clock()
    profiles: dict[str, Any] = driver.scheduler.snapshot(now)
    for name, profile in profiles.items():
        profile["last_hour"] = reuse(driver.history.last_hour(name, now))
    return {
        "version": version(),
        "time": round(driver.history.time_of_day(now), 3),
        "profiles": profiles,
        "engines": {
            life.name: _engine(life, driver.profiles[life.profile])
            for life in driver.engines.lives.values()
        },
        "requests": [_brief(r) for r in reversed(driver.history.records(last=LAST_REQUESTS))],
        "memory": driver.memory.json(now),
        "history": driver.history.kept(),
        "tokens": driver.tokenizer.snapshot(),
    }


def reuse(sums: Sums) -> dict[str, Any]:
    """Tokens by cause. Both ratios are of the requests whose cached tokens the engine reported;
    None: there are none."""
    known = sums.reported
    return {
        "span_s": SPAN_S,
        "requests": sums.requests,
        "prompt_tokens": sums.prompt_tokens,
        "reported_tokens": sums.reported,
        "cached_tokens": sums.tokens[Cause.CACHED],
        "bound_tokens": sums.bound,
        "ratio": round(sums.tokens[Cause.CACHED] / known, 4) if known else None,
        "bound_ratio": round(sums.bound / known, 4) if known else None,
        "avoided_s": round(sums.avoided_s, 1),
        "lost_s": round(sums.lost_s, 1),
        "causes": [
            {"cause": cause.value, "text": snapshot.cause(cause), "tokens": sums.tokens[cause]}
            for cause in Cause
            if sums.tokens[cause]
        ],
    }


def _engine(life: EngineLife, served: ServedProfile) -> dict[str, Any]:
    return {
        "profile": life.profile,
        "state": life.state,
        "text": life.text,
        "pins": life.probe.pins if life.probe else None,
        "windows": life.probe.windows if life.probe else None,
        "build": build_of(life.probe, served) or None,
    }


@lru_cache(maxsize=2 * LAST_REQUESTS)
def _brief(record: Record) -> dict[str, Any]:
    """A request that ended, in one line; ``/slotwise/requests/ID`` tells more."""
    return {
        "id": record.id,
        "time": round(record.time, 3),
        "profile": record.profile,
        "session": record.session[: snapshot.SESSION_CHARS],
        "kind": record.kind,
        "slot": str(record.slot),
        "rule": record.rule.value,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached,
        "out_tokens": record.out_tokens,
        "wait_s": round(record.wait_s, 3),
        "ttft_s": record.known.ttft_s,
        "failure": record.failure.value if record.failure else None,
        "text": explain.culprit(record),
    }


@cache
def version() -> str:
    """Of the installed package; looked for on the disk, so once."""
    try:
        return metadata.version("slotwise")
    except metadata.PackageNotFoundError:
        return "unknown"


ADMIN = "admin"
_MOST_TEXTS = 20  # of one answer: each costs the engine two short calls


class RequestsPages:
    """The list and the single request. ``has_keys``: whether clients need a key."""

    def __init__(self, driver: Driver, has_keys: bool) -> None:
        self._driver = driver
        self._has_keys = has_keys

    async def listed(self, request: Request) -> Response:
        try:
            wanted = explain.wanted(request.query_params)
        except ValueError as error:
            raise bad(None, str(error)) from None
        records = self._driver.history.records(wanted.session, wanted.last)
        texts: dict[str, Texts] = {}
        if self._may_see_text(request):
            for record in records[-_MOST_TEXTS:]:
                found = await self._texts(record)
                if found is not None:
                    texts[record.id] = found
        return _json(explain.listing(records, texts))

    async def one(self, request: Request) -> Response:
        id = request.path_params["id"]
        record = self._driver.history.record(id)
        if record is None:
            text = f"request {id:.80} is not known: not ended yet, or too long ago"
            raise ProxyError(404, "request_not_found", text)
        texts = await self._texts(record) if self._may_see_text(request) else None
        return _json(explain.as_json(record, texts))

    def _may_see_text(self, request: Request) -> bool:
        caller = caller_of(request.scope)
        if self._has_keys:
            return caller.key == ADMIN
        # By the name that was asked for, too: a page of somebody else whose name leads here, or a
        # web server that passes on what others ask, is no client on this machine.
        try:
            asked = request.url.hostname or ""
        except ValueError:
            return False
        return _is_loopback(caller.key) and _is_loopback(asked)

    async def _texts(self, record: Record) -> Texts | None:
        """Both sides of a difference as text; None: there is none, or no engine to ask."""
        ids = explain.ids_to_show(record)
        life = self._driver.engines.ready(record.profile)
        if ids is None or life is None or life.client is None:
            return None
        try:
            before, after = [await _text(life.client, side) for side in ids]
        except (EngineUnreachableError, UpstreamError) as error:
            log.warning("request %s: its difference cannot be shown: %s", record.id, error)
            return None
        return Texts(before, after)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _text(client: EngineClient, ids: Sequence[int]) -> str:
    """The ids as text; those of an image or a recording have none."""
    parts = [
        "[media]" if is_media else await client.detokenize(list(run))
        for is_media, run in groupby(ids, key=lambda i: i >= FIRST_ID)
    ]
    return "".join(parts)


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


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

"""``GET /slotwise/requests``: what became of every prompt token of the last requests, and why.

Text of a prompt is shown only to the key named ``admin`` or, where there are no keys, to a client
on this machine that asks for this machine; it is made from token ids when it is asked for, and
kept nowhere.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from slotwise.proxy.api.gate import caller_of
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, ProxyError, UpstreamError, bad
from slotwise.proxy.history import explain
from slotwise.proxy.history.explain import Texts
from slotwise.proxy.history.record import Record
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.tokens.media import FIRST_ID

log = logging.getLogger(__name__)

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

"""The life of one generating request, from its first byte to its last.

Read, check, encode, wait for the scheduler, hand over to ``forward.py``. When the client
leaves (``departure.py``), the task is cancelled wherever it stands; closing the upstream
connection and ending the ticket are done on its way out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from slotwise.policies.types import Reason, Request, Rule
from slotwise.proxy.api.body import DEFAULT_LIMIT_BYTES, ClientGoneError, read_body
from slotwise.proxy.api.departure import Departure
from slotwise.proxy.api.forward import WAIT_HEADER, Forwarding
from slotwise.proxy.api.gate import caller_of
from slotwise.proxy.api.reply import Comments, Reply
from slotwise.proxy.chat.identity import Session, SessionTable
from slotwise.proxy.chat.kinds import kind_of
from slotwise.proxy.chat.prepare import Kind, Prepared, off_loop, prepare
from slotwise.proxy.core.actions import Dispatch
from slotwise.proxy.errors import (
    EngineUnreachableError,
    ProxyError,
    UpstreamError,
    internal_error,
    unreachable,
)
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.ticket import Ticket
from slotwise.proxy.tokens.tokenize import Encoded

log = logging.getLogger(__name__)

CLIENT_GONE = 499
_ERROR_TIMEOUT_S = 30.0  # for an error to reach a client that reads slowly
_CLIENT_CHARS = 40


@dataclass(frozen=True)
class Settings:
    """Times in seconds."""

    first_comment_s: float = 2.0
    comment_every_s: float = 15.0
    max_body_bytes: int = DEFAULT_LIMIT_BYTES


@dataclass(frozen=True)
class Services:
    """What every request shares."""

    driver: Driver
    sessions: SessionTable = field(default_factory=lambda: SessionTable(salt=os.urandom(16)))
    settings: Settings = field(default_factory=Settings)


class Relay:
    """The ASGI endpoint of one generating path."""

    def __init__(self, services: Services, kind: Kind, path: str) -> None:
        self._services = services
        self._kind = kind
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._services, scope, send)
        try:
            raw = await read_body(scope, receive, self._services.settings.max_body_bytes)
        except ClientGoneError:
            exchange.count(CLIENT_GONE)
            return
        except ProxyError as error:
            exchange.count(error.status)
            raise
        departure = Departure(receive, exchange.reply)
        try:
            await exchange.run(self._kind, self._path, raw)
        except asyncio.CancelledError:
            if not departure.seen:
                raise  # the server's own, at its end
        finally:
            departure.end()


class Exchange:
    """One request and its answer."""

    def __init__(self, services: Services, scope: Scope, send: Send) -> None:
        caller = caller_of(scope)
        self._driver = services.driver
        self._tokenizer = services.driver.tokenizer
        self._sessions = services.sessions
        self._headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        self._settings = services.settings
        self._id = caller.request_id
        self._key = caller.key
        self._arrived = self._driver.clock()
        self.reply = Reply(send)
        self._profile: str | None = None
        self._stage: str = Reason.ENGINE_LOADING
        self._ticket: Ticket | None = None

    async def run(self, kind: Kind, path: str, raw: bytes) -> None:
        """Serve it, or answer with what went wrong; counts it once."""
        code = CLIENT_GONE
        try:
            error: ProxyError | UpstreamError
            try:
                code = await self._serve(kind, path, raw)
                return
            except (ProxyError, UpstreamError) as known:
                error = known
            except EngineUnreachableError as lost:
                error = unreachable(lost)
            except ClientGoneError:
                return
            except Exception:
                log.exception("request %s: unexpected error", self._id)
                error = internal_error()
            code = error.status
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ERROR_TIMEOUT_S):
                    await self.reply.error(error)
        finally:
            self.count(code)

    def count(self, code: int) -> None:
        """One answer given: its status, or that of the error inside a stream opened before."""
        dispatch = self._ticket.dispatch if self._ticket else None
        rule = dispatch.rule if dispatch else Rule.NONE
        self._driver.metrics.answered(self._profile, rule, code)
        told = in_a_line(dispatch, self._ticket) if dispatch and self._ticket else "not placed"
        log.info("request %s: %d, %s", self._id, code, told)

    async def _serve(self, kind: Kind, path: str, raw: bytes) -> int:
        asked = await prepare(kind, path, raw, self._driver.names)
        self._profile = asked.profile
        served = self._driver.profiles[asked.profile]
        request = asked.normalize(served.normalize)
        if request.normalized:
            self._driver.metrics.normalized(asked.profile, request.normalized)
        comments = self._informed(request)
        try:
            encoded = await self._encoded(request)
            who = await self._identified(request)
            return await self._scheduled(request, encoded, who)
        finally:
            if comments is not None:
                await comments.end()

    async def _encoded(self, request: Prepared) -> Encoded:
        """The prompt's tokens, as soon as an engine is there to tell them."""
        rules = self._driver.profiles[request.profile].params
        bound_s = rules.request_timeout_s if request.stream else rules.whole_wait_s
        while True:
            self._stage = Reason.ENGINE_LOADING
            left_s = self._arrived + bound_s - self._driver.clock()
            engine = await self._driver.engines.wait_ready(request.profile, left_s)
            self._stage = "tokenizing"
            try:
                return await self._tokenizer.encode(engine, request)
            except EngineUnreachableError:
                life = self._driver.engines.ready(request.profile)
                if life is not None and life.client is engine:
                    self._driver.engines.suspect(life)
                    raise  # it should be there: say so; else it was lost, and the next one does it

    async def _identified(self, request: Prepared) -> Session:
        """Which conversation it belongs to. Reading a long one is done beside the loop."""
        reader = self._sessions.reader
        asked = await off_loop(
            lambda fields: reader.read(self._headers, fields), request.fields, request.size_bytes
        )
        return self._sessions.find(asked, self._key, self._driver.clock())

    async def _scheduled(self, request: Prepared, encoded: Encoded, session: Session) -> int:
        patterns = self._driver.profiles[request.profile].kinds
        ticket = self._driver.submit(
            Request(
                id=self._id,
                profile=request.profile,
                tokens=encoded.tokens,
                first_user_end=encoded.first_user_end,
                turns=encoded.turns,
                max_tokens=request.max_tokens,
                stream=request.stream,
                key=self._key,
                cache_prompt=request.cache_prompt,
                session=session.id,
                kind=kind_of(request.fields, patterns, request.path),
                sections=encoded.sections,
            )
        )
        self._ticket = ticket
        self._driver.note(self._id, client=_client(self._headers))
        try:
            dispatch = await ticket.decided()
            forwarding = Forwarding(self._driver, self.reply, request, ticket, self._arrived)
            return await forwarding.run(dispatch)
        finally:
            ticket.close()

    def _informed(self, request: Prepared) -> Comments | None:
        """A streaming client that sees no byte yet gets comment lines until these are ended."""
        if not request.stream:
            return None
        settings = self._settings
        first_s = self._arrived + settings.first_comment_s - self._driver.clock()
        return Comments(self.reply, max(0.0, first_s), settings.comment_every_s, self._standing)

    def _standing(self) -> str:
        """Where the request stands, as its comment line says it."""
        ticket = self._ticket
        if ticket is None:
            return f"waiting: {self._stage}"
        if ticket.dispatch is not None:
            progress = ticket.seen.progress if ticket.seen else None
            read = progress.processed if progress else 0
            return f"prefill {read}/{len(ticket.request.tokens)}"
        standing = self._driver.waiting_for(ticket.request.id)
        if standing is None:
            return "waiting"
        if standing.reason is Reason.MEMORY:
            if not self.reply.opened:
                self.reply.headers[WAIT_HEADER] = standing.reason.value
            return f"waiting: {standing.text}"
        return f"waiting: {standing.reason}, {standing.ahead} before you ({standing.text})"


def in_a_line(dispatch: Dispatch, ticket: Ticket) -> str:
    """A verdict with its rule and the figures it was made on."""
    return (
        f"{dispatch.rule} on {dispatch.slot}: {dispatch.why}; {dispatch.expected_cached} of "
        f"{len(ticket.request.tokens)} tokens expected in the cache, waited "
        f"{dispatch.waited_s:.2f} s ({dispatch.wait_reason})"
    )


def _client(headers: Mapping[str, str]) -> str | None:
    """The program that asks, as its User-Agent begins."""
    words = headers.get("user-agent", "").split()
    return words[0][:_CLIENT_CHARS] if words else None

"""A dispatched request: posted to its slot, and the engine's answer passed on as it comes.

The scheduler is told of the end when the engine's end marker is read, before that marker goes to
the client: a client that answers at once must find its slot idle. Everything that can go wrong has
its own name, since it decides what is believed of the slot afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from starlette.types import Receive, Scope, Send

from slotwise.policies.types import Reason, Request, Rule
from slotwise.proxy.api.auth import caller_of
from slotwise.proxy.api.body import DEFAULT_LIMIT_BYTES, ClientGoneError, read_body
from slotwise.proxy.api.response import EVENT_STREAM, Comments, DisconnectWatcher, ResponseWriter
from slotwise.proxy.chat.kinds import kind_of
from slotwise.proxy.chat.request import GenerationRequest, Kind, off_loop, prepare
from slotwise.proxy.chat.sessions import Session, SessionTable
from slotwise.proxy.core.events import Dispatch, Failure
from slotwise.proxy.engine.client import OFF_LOOP_BYTES, EngineClient
from slotwise.proxy.engine.sse import Gathered, Progress, Seen, SseReader
from slotwise.proxy.engine.stream import UpstreamStream
from slotwise.proxy.errors import (
    EngineUnreachableError,
    ProxyError,
    UpstreamError,
    internal_error,
    unreachable,
)
from slotwise.proxy.serving.driver import Driver, Ticket
from slotwise.proxy.tokens.tokenizer import Encoded

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
class GenerationServices:
    """What every request shares."""

    driver: Driver
    sessions: SessionTable = field(default_factory=lambda: SessionTable(salt=os.urandom(16)))
    settings: Settings = field(default_factory=Settings)


class Relay:
    """The ASGI endpoint of one generating path."""

    def __init__(self, services: GenerationServices, kind: Kind, path: str) -> None:
        self._services = services
        self._kind = kind
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Generation(self._services, scope, send)
        try:
            raw = await read_body(scope, receive, self._services.settings.max_body_bytes)
        except ClientGoneError:
            exchange.count(CLIENT_GONE)
            return
        except ProxyError as error:
            exchange.count(error.status)
            raise
        departure = DisconnectWatcher(receive, exchange.reply)
        try:
            await exchange.run(self._kind, self._path, raw)
        except asyncio.CancelledError:
            if not departure.seen:
                raise  # the server's own, at its end
        finally:
            departure.end()


class Generation:
    """One request and its answer."""

    def __init__(self, services: GenerationServices, scope: Scope, send: Send) -> None:
        caller = caller_of(scope)
        self._driver = services.driver
        self._tokenizer = services.driver.tokenizer
        self._sessions = services.sessions
        self._headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        self._settings = services.settings
        self._id = caller.request_id
        self._key = caller.key
        self._arrived = self._driver.clock()
        self.reply = ResponseWriter(send)
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
        reported = in_a_line(dispatch, self._ticket) if dispatch and self._ticket else "not placed"
        log.info("request %s: %d, %s", self._id, code, reported)

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

    async def _encoded(self, request: GenerationRequest) -> Encoded:
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

    async def _identified(self, request: GenerationRequest) -> Session:
        """Which conversation it belongs to. Reading a long one is done beside the loop."""
        reader = self._sessions.reader
        asked = await off_loop(
            lambda fields: reader.read(self._headers, fields), request.fields, request.size_bytes
        )
        return self._sessions.find(asked, self._key, self._driver.clock())

    async def _scheduled(
        self, request: GenerationRequest, encoded: Encoded, session: Session
    ) -> int:
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
        self._driver.history.note(self._id, client=_client(self._headers))
        try:
            dispatch = await ticket.decided()
            forwarding = Forwarding(self._driver, self.reply, request, ticket, self._arrived)
            return await forwarding.run(dispatch)
        finally:
            ticket.close()

    def _informed(self, request: GenerationRequest) -> Comments | None:
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


_TAIL_S = 5.0  # after the end marker: for what the engine may still send
_RETRY_AFTER_S = 5
_COMPLETE = 200
_JSON = "application/json; charset=utf-8"
WAIT_HEADER = "X-Slotwise-Wait"  # what a request waited for, where that is worth a header
_FAILED_INSIDE = 500  # counted for a stream in which the engine itself told of an error


class Forwarding:
    """One dispatched request. ``arrived``: s, on the driver's clock."""

    def __init__(
        self,
        driver: Driver,
        reply: ResponseWriter,
        request: GenerationRequest,
        ticket: Ticket,
        arrived: float,
    ) -> None:
        self._driver = driver
        self._reply = reply
        self._request = request
        self._ticket = ticket
        self._arrived = arrived
        self._rules = driver.profiles[request.profile].params
        self._guard = asyncio.timeout(None)
        self._silent_until = 0.0
        self._last_bound = False  # what ends next is the request's whole time
        self._writing = False
        self._progress: Progress | None = None
        self._first_token = False

    async def run(self, dispatch: Dispatch) -> int:
        """Returns the code to count; raises ``ProxyError`` or ``UpstreamError`` for the client.

        The ticket has ended, or is ended by its owner when this is cancelled.
        """
        self._reply.headers.update(self._headers(dispatch))
        try:
            async with self._guard:
                self._ticket.guarded_by(self._guard)
                return await self._exchange(dispatch)
        except TimeoutError:
            if self._ticket.seen is None or not self._ticket.seen.done or self._writing:
                raise self._timed_out() from None
            return await self._ended_early()
        except EngineUnreachableError as error:
            raise self._broken(error) from None
        finally:
            self._ticket.guarded_by(None)

    async def _exchange(self, dispatch: Dispatch) -> int:
        if self._ticket.lost is not None:  # between the decision and now
            raise EngineUnreachableError(self._ticket.lost)
        self._allow(self._rules.engine_silence_s)
        client = self._driver.engines.client(dispatch.slot.engine)
        body = await self._request.upstream(dispatch.slot, dispatch.max_tokens)
        if self._reply.opened:
            await self._reply.comment(self._line(dispatch))
        self._ticket.sent = True
        if dispatch.empties:
            await self._empty(client, dispatch)
        upstream = await client.open(self._request.path, body)
        try:
            if upstream.status >= 400:
                raise await self._refused(upstream)
            if self._request.stream:
                return await self._stream(upstream)
            if upstream.content_type.startswith(EVENT_STREAM):
                return await self._gathered(upstream)
            return await self._whole(upstream)
        finally:
            upstream.close()

    async def _empty(self, client: EngineClient, dispatch: Dispatch) -> None:
        """Where it cannot be done the request goes all the same: it finds less in the cache."""
        try:
            done = await client.empty(dispatch.slot.id_slot)
        except EngineUnreachableError:
            done = False
        if not done:
            log.warning("slot %s was not emptied for %s", dispatch.slot, dispatch.id)

    # ------------------------------------------------------------ the answer

    async def _stream(self, upstream: UpstreamStream) -> int:
        reader = SseReader(self._request.injected_progress)
        seen = self._ticket.seen = reader.seen
        try:
            while chunk := await upstream.read():
                self._allow(self._rules.engine_silence_s)
                data = reader.feed(chunk)
                if seen.done:
                    self._note(seen)
                    await self._pass_on(upstream, data)
                    self._allow(_TAIL_S)  # once the client has its answer, however slowly
                else:
                    await self._pass_on(upstream, data)
                    self._note_soon(seen)
        except EngineUnreachableError:
            if not seen.done and seen.error is None:
                raise
        await self._pass_on(upstream, reader.finish())
        if not seen.done:
            if seen.error is None:
                raise EngineUnreachableError("the engine ended its stream before the answer's end")
            self._ticket.failed(Failure.ENGINE_ERROR)
        self._writing = True
        await self._reply.end()
        self._writing = False
        return _COMPLETE if seen.done else _FAILED_INSIDE

    async def _ended_early(self) -> int:
        """The engine keeps its stream open behind the answer's end: the client's is ended."""
        try:
            async with asyncio.timeout(_TAIL_S):
                await self._reply.end()
        except TimeoutError:
            raise ClientGoneError from None  # it does not read
        return _COMPLETE

    async def _pass_on(self, upstream: UpstreamStream, data: bytes) -> None:
        if data:
            self._writing = True
            await self._reply.stream(upstream.content_type, data)
            self._writing = False

    async def _gathered(self, upstream: UpstreamStream) -> int:
        """A whole answer from the engine's stream of it."""
        reader = SseReader(drop_progress=True)
        gathered = Gathered(tokens=bool(self._request.fields.get("return_tokens")))
        seen = self._ticket.seen = reader.seen
        while not seen.done and (chunk := await upstream.read()):
            self._allow(self._rules.engine_silence_s)
            gathered.feed(reader.feed(chunk))
            if gathered.error is not None:
                self._ticket.failed(Failure.ENGINE_ERROR)
                raise UpstreamError.told(gathered.error)
            self._note(seen)
        if not seen.done:
            raise EngineUnreachableError("the engine ended its stream before the answer's end")
        content = gathered.answer()
        self._writing = True
        await self._reply.whole(_COMPLETE, _JSON, content)
        self._writing = False
        return _COMPLETE

    async def _whole(self, upstream: UpstreamStream) -> int:
        content = await upstream.whole()
        seen = Seen()
        try:
            big = len(content) > OFF_LOOP_BYTES
            answer = (
                await asyncio.to_thread(orjson.loads, content) if big else orjson.loads(content)
            )
            if isinstance(answer, dict):
                seen.read(answer)
        except orjson.JSONDecodeError:
            pass  # the engine's to explain; that it ended is certain
        self._finished(seen)
        await self._reply.whole(upstream.status, upstream.content_type, content)
        return upstream.status

    def _note_soon(self, seen: Seen) -> None:
        """In the loop's next turn: what was just passed on is written at the end of this one."""
        if seen.progress != self._progress or seen.started != self._first_token:
            asyncio.get_running_loop().call_soon(self._note, seen)

    def _note(self, seen: Seen) -> None:
        """Tell the scheduler and the metrics what is new."""
        if seen.progress is not None and seen.progress != self._progress:
            self._progress = seen.progress
            self._ticket.progressed(seen.progress)
        if seen.started and not self._first_token and self._request.stream:
            self._first_token = True
            waited_s = self._driver.clock() - self._arrived
            self._driver.metrics.first_token(self._ticket.request.id, waited_s)
            self._driver.history.note(self._ticket.request.id, ttft_s=waited_s)
        if seen.done and not self._ticket.ended:
            self._finished(seen)

    def _finished(self, seen: Seen) -> None:
        """The engine's own end: what it told goes into the record before the record is made."""
        self._driver.history.note(
            self._ticket.request.id,
            prefill_s=seen.prefill_s,
            decode_s=seen.decode_s,
            finish=seen.finish,
        )
        self._ticket.finished(seen)

    # ------------------------------------------------------------ what goes wrong

    def _allow(self, silence_s: float) -> None:
        """Wait this long for the next byte."""
        loop_now = asyncio.get_running_loop().time()
        left_s = self._arrived + self._rules.request_timeout_s - self._driver.clock()
        self._last_bound = left_s <= silence_s
        until = loop_now + (left_s if self._last_bound else silence_s)
        # Moving the timer for every token would cost more than passing the token on.
        if abs(until - self._silent_until) > silence_s / 20:
            self._silent_until = until
            self._guard.reschedule(until)

    def _timed_out(self) -> Exception:
        if self._ticket.lost is not None:
            return self._broken(EngineUnreachableError(self._ticket.lost))
        if self._writing:
            self._ticket.failed(Failure.CLIENT_GONE)
            return ClientGoneError()
        if self._last_bound:
            self._ticket.failed(Failure.TIMEOUT)
            text = f"the request was not complete after {self._rules.request_timeout_s:g} s"
            return ProxyError(504, "request_timeout", text)
        self._ticket.failed(Failure.SILENCE)
        text = f"the engine sent nothing for {self._rules.engine_silence_s:g} s"
        return ProxyError(504, "engine_silent", text)

    def _broken(self, error: EngineUnreachableError) -> ProxyError:
        lost = self._ticket.lost
        if lost is not None:
            text = f"the engine was lost: {lost}"
            return ProxyError(503, "engine_lost", text, retry_after_s=_RETRY_AFTER_S)
        self._ticket.sent = self._ticket.sent and error.sent
        self._ticket.failed(Failure.ENGINE_ERROR)
        return ProxyError(502, "engine_error", str(error))

    async def _refused(self, upstream: UpstreamStream) -> ProxyError | UpstreamError:
        """The engine's own error answer, and what it means for the slot."""
        error = await upstream.error()
        # 501: what is asked for is not of this model or launch, so nothing was started.
        refused = error.status < 500 or error.status == 501
        self._ticket.failed(Failure.REFUSED if refused else Failure.ENGINE_ERROR)
        if error.status in (401, 403):
            # The key the engine misses is ours, not the client's.
            return ProxyError(502, "engine_error", f"the engine refused slotwise ({error.status})")
        return error

    # ------------------------------------------------------------ what the client is told

    def _headers(self, dispatch: Dispatch) -> dict[str, str]:
        headers = {
            "X-Slotwise-Slot": str(dispatch.slot),
            "X-Slotwise-Rule": dispatch.rule.value,
            "X-Slotwise-Why": dispatch.why,
            "X-Slotwise-Prompt-Tokens": str(len(self._ticket.request.tokens)),
            "X-Slotwise-Expected-Cached": str(dispatch.expected_cached),
            "X-Slotwise-Wait-Ms": str(round(dispatch.waited_s * 1000)),
        }
        if dispatch.wait_reason is Reason.MEMORY:
            headers[WAIT_HEADER] = dispatch.wait_reason.value
        cut = self._request.cut(dispatch.max_tokens)
        if cut is not None:
            headers["X-Slotwise-Max-Tokens"] = cut
        if self._request.normalized:
            headers["X-Slotwise-Normalized"] = ", ".join(self._request.normalized)
        return headers

    def _line(self, dispatch: Dispatch) -> str:
        """The comment that stands for the headers where the head went out before the decision."""
        cut = self._request.cut(dispatch.max_tokens)
        return (
            f"slotwise slot={dispatch.slot} rule={dispatch.rule} "
            f"cached={dispatch.expected_cached} wait_ms={round(dispatch.waited_s * 1000)}"
            + (f" max_tokens={cut.replace(' ', '')}" if cut else "")
            + f" why: {dispatch.why}"
        )

"""A dispatched request: posted to its slot, and the engine's answer passed on as it comes.

The scheduler is told of the end when the engine's end marker is read, before that marker goes to
the client: a client that answers at once must find its slot idle. Everything that can go wrong has
its own name, since it decides what is believed of the slot afterwards.
"""

from __future__ import annotations

import asyncio
import logging

import orjson

from slotwise.policies.types import Reason
from slotwise.proxy.api.body import ClientGoneError
from slotwise.proxy.api.reply import EVENT_STREAM, Reply
from slotwise.proxy.chat.prepare import Prepared
from slotwise.proxy.core.actions import Dispatch
from slotwise.proxy.core.events import Failure
from slotwise.proxy.engine.client import OFF_LOOP_BYTES, EngineClient
from slotwise.proxy.engine.gathered import Gathered
from slotwise.proxy.engine.sse import Progress, Seen, SseReader
from slotwise.proxy.engine.upstream import UpstreamStream
from slotwise.proxy.errors import EngineUnreachableError, ProxyError, UpstreamError
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.ticket import Ticket

log = logging.getLogger(__name__)

_TAIL_S = 5.0  # after the end marker: for what the engine may still send
_RETRY_AFTER_S = 5
_COMPLETE = 200
_JSON = "application/json; charset=utf-8"
WAIT_HEADER = "X-Slotwise-Wait"  # what a request waited for, where that is worth a header
_FAILED_INSIDE = 500  # counted for a stream in which the engine itself told of an error


class Forwarding:
    """One dispatched request. ``arrived``: s, on the driver's clock."""

    def __init__(
        self, driver: Driver, reply: Reply, request: Prepared, ticket: Ticket, arrived: float
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
            # Behind the end of this one, which is on its way to the client.
            asyncio.get_running_loop().call_soon(client.expect_another)

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
            self._driver.note(self._ticket.request.id, ttft_s=waited_s)
        if seen.done and not self._ticket.ended:
            self._finished(seen)

    def _finished(self, seen: Seen) -> None:
        """The engine's own end: what it told goes into the record before the record is made."""
        self._driver.note(
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

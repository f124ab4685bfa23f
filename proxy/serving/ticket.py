"""One generating request's place in the scheduler, and the law that it ends exactly once.

Whatever happens to the task that serves it (an error, a hang-up, a cancellation at any ``await``),
:meth:`Ticket.close` runs in a plain ``finally`` and does not wait: a request that still waits is
cancelled, one that was dispatched and has not ended is failed. A second ending is ignored here, so
the scheduler sees one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slotwise.policies.types import Request
from slotwise.proxy.core.actions import Dispatch, Refuse
from slotwise.proxy.core.events import (
    Event,
    Failure,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
)
from slotwise.proxy.engine.sse import Progress, Seen
from slotwise.proxy.errors import refused


class Ticket:
    """Made by the driver when a request is submitted; the relay holds it until the end."""

    def __init__(self, request: Request, feed: Callable[[Event], None]) -> None:
        self.request = request
        self.dispatch: Dispatch | None = None
        self.lost: str | None = None  # why the engine is gone, once it is
        self.sent = False  # the engine may have got it
        self.ended = False
        self.seen: Seen | None = None  # what the answer told so far, once there is one
        self._feed = feed
        self._refusal: Refuse | None = None
        self._decided = asyncio.Event()
        self._guard: asyncio.Timeout | None = None

    # ------------------------------------------------------------ the driver's side

    def dispatched(self, action: Dispatch) -> None:
        self.dispatch = action
        self._decided.set()

    def refused(self, action: Refuse) -> None:
        self._refusal = action
        self.ended = True
        self._decided.set()

    def engine_lost(self, reason: str) -> None:
        """The engine is gone: end now, and wake whoever waits for its bytes."""
        self.lost = reason
        self.failed(Failure.ENGINE_LOST)
        if self._guard is not None and not self._guard.expired():
            self._guard.reschedule(asyncio.get_running_loop().time())

    # ------------------------------------------------------------ the relay's side

    async def decided(self) -> Dispatch:
        """Wait for the scheduler's decision; raises ``ProxyError`` when it refuses."""
        await self._decided.wait()
        if self._refusal is not None:
            raise refused(self._refusal)
        assert self.dispatch is not None
        return self.dispatch

    def guarded_by(self, guard: asyncio.Timeout | None) -> None:
        """The time-out around the wait for the engine, so that its loss can end that wait."""
        self._guard = guard

    def progressed(self, progress: Progress) -> None:
        if not self.ended:
            self._feed(RequestProgressed(self.request.id, progress.processed, progress.cached))

    def finished(self, seen: Seen) -> None:
        """The engine's own end was read."""
        self._end(
            RequestFinished(
                self.request.id,
                seen.prompt_tokens,
                seen.cached_tokens,
                seen.completion_tokens,
                seen.id_slot,
                seen.prefill_s,
                seen.decode_s,
                seen.finish == "tool_calls",
            )
        )

    def failed(self, failure: Failure) -> None:
        generated = self.seen.generated if self.seen else 0
        self._end(RequestFailed(self.request.id, failure, generated, self.sent))

    def close(self) -> None:
        """The end of the request's life; what is still open is ended. Never waits."""
        if self.dispatch is not None:
            self.failed(Failure.CLIENT_GONE)
        else:
            self._end(RequestCancelled(self.request.id))

    def _end(self, event: Event) -> None:
        if not self.ended:
            self.ended = True
            self._feed(event)

"""A client that leaves before its answer is complete ends the work for it.

A handler that waits is not told of a hang-up: something has to ask for it meanwhile.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from slotwise.proxy.api.reply import Reply

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

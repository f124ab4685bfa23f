"""Watches a llama-server that somebody else runs: in use while it answers, asked again when not."""

from __future__ import annotations

import asyncio
import logging

from slotwise.launcher.process import supervisor
from slotwise.launcher.process.supervisor import Cause, Listener, Loss

log = logging.getLogger(__name__)
PAUSE_S = 2.0  # between looks; also what an engine under load is spared
MISSED_LOOKS = 3  # this many in a row, and it is lost: one slow answer is not an outage


class Attachment:
    """One foreign engine. It can be watched and probed, never started or ended."""

    def __init__(
        self, name: str, url: str, api_key: str, listener: Listener, pause_s: float = PAUSE_S
    ) -> None:
        self.name = name
        self._url, self._api_key = url.rstrip("/"), api_key
        self._listener = listener
        self._pause_s = pause_s
        self._restart = asyncio.Event()
        self._reason = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to watch."""
        self._task = asyncio.create_task(self._watch(), name=f"attach {self.name}")

    def restart(self, reason: str) -> None:
        """It hangs: taken out of use, and probed anew as soon as it answers."""
        self._reason = reason
        self._restart.set()

    async def stop(self) -> None:
        """Ends the watch; the engine goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _watch(self) -> None:
        while True:
            self._listener.on_starting(self.name, f"waiting for {self._url}")
            await supervisor.until_ready(self._url, self._api_key, self._told)
            self._restart.clear()
            try:
                await self._listener.on_ready(self.name, self._url, self._api_key)
                loss = await self._lost()
            except Exception as error:
                log.error("%s: could not be taken into use", self.name, exc_info=error)
                loss = Loss(Cause.REFUSED, f"could not be taken into use: {error}")
            log.warning("%s: %s", self.name, loss.text)
            self._listener.on_lost(self.name, loss)
            await asyncio.sleep(self._pause_s)

    def _told(self, text: str) -> None:
        self._listener.on_starting(self.name, f"{self._url}: {text}")

    async def _lost(self) -> Loss:
        """Returns why it is no longer in use."""
        missed = 0
        async with supervisor.client(self._url, self._api_key) as engine:
            while missed < MISSED_LOOKS:
                try:
                    await asyncio.wait_for(self._restart.wait(), self._pause_s)
                    return Loss(Cause.HUNG, f"taken out of use: {self._reason}")
                except TimeoutError:
                    healthy, text = await supervisor.healthy(engine)
                missed = 0 if healthy else missed + 1
        return Loss(Cause.SILENT, f"{self._url}: {text}")

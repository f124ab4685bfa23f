"""Does what the scheduler wants taken back; whatever happens, each Reclaim has its one end.

Slots are emptied here, over the engine's own API. Ending or restarting an engine is the launcher's
business: it is handed in as a callback, which returns why it did nothing, or an empty text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from slotwise.proxy.core.actions import Level, Reclaim, Reclaimed
from slotwise.proxy.core.events import ReclaimEnded
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError

log = logging.getLogger(__name__)

_LIMIT_S = 60.0  # of one Reclaim; an engine takes up to 15 s to end
_ERASE_LIMIT_S = 10.0

Unload = Callable[[Reclaim], Awaitable[str]]


class Reclaimer:
    """``client``: of an engine by its name; raises ``EngineUnreachableError``."""

    def __init__(
        self, client: Callable[[str], EngineClient], feed: Callable[[ReclaimEnded], None]
    ) -> None:
        self.unload: Unload | None = None
        self._client = client
        self._feed = feed
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, action: Reclaim) -> None:
        """Begins it; never waits."""
        log.warning("memory: %s of %s: %s", action.level, action.target, action.why)
        task = asyncio.get_running_loop().create_task(self._run(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ERASE_LIMIT_S)

    async def _run(self, action: Reclaim) -> None:
        failed = "cut off"
        try:
            async with asyncio.timeout(_LIMIT_S):
                failed = await self._do(action)
        except TimeoutError:
            failed = f"not done within {_LIMIT_S:g} s"
        except (EngineUnreachableError, UpstreamError) as error:
            failed = str(error)
        except Exception as error:
            log.exception("memory: %s of %s", action.level, action.target)
            failed = f"{type(error).__name__}: {error}"
        finally:
            self._feed(ReclaimEnded(action.level, action.target, failed))

    async def _do(self, action: Reclaim) -> str:
        if action.level is Level.CHECKPOINTS:
            client = self._client(action.target)
            for id_slot in action.slots:
                path = f"/slots/{id_slot}?action=erase"
                await client.call("POST", path, timeout_s=_ERASE_LIMIT_S)
            return ""
        if self.unload is None:
            return "slotwise did not start this engine"
        return await self.unload(action)


def say(action: Reclaimed) -> None:
    """What a level gave back, in the log."""
    gave = action.given_back_bytes / 2**20
    level = log.info if action.result == "done" else log.warning
    level(
        "memory: %s of %s gave back %.0f MiB: %s%s",
        action.level,
        action.target,
        gave,
        action.result,
        "; left alone for 10 minutes" if action.result != "done" else "",
    )

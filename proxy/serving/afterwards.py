"""What nobody waits for, done a little later: behind a request that is sent on its way, and behind
the first token of an engine that answers at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

LATER_S = 0.005

log = logging.getLogger(__name__)


class Afterwards:
    """Jobs, done in the order in which they came. Where no loop runs, at once."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def add(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if len(self._jobs) > 1:
            return
        try:
            asyncio.get_running_loop().call_later(LATER_S, self.catch_up)
        except RuntimeError:
            self.catch_up()

    def catch_up(self) -> None:
        """Do all that is left: for whoever looks at what they do. An error is logged, not raised:
        what is to be done next has no part in it."""
        while self._jobs:
            job = self._jobs.popleft()
            try:
                job()
            except Exception:
                log.exception("noting what happened")

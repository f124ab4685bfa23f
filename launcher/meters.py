"""Measures every start of an engine, so that the next plan of the same launch line knows its size.

How far MemAvailable falls says something of one engine only while it alone starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from slotwise.launcher.measured import Meter
from slotwise.launcher.plan import in_gib
from slotwise.launcher.planned import Planned

log = logging.getLogger(__name__)


class Meters:
    """One meter for each engine. ``available``: MemAvailable in bytes now, None if unreadable."""

    def __init__(self, planned: Iterable[Planned], available: Callable[[], int | None]) -> None:
        self._available = available
        self._under_way: set[str] = set()
        self._meters = {
            one.plan.name: Meter(one.directory, one.line, one.plan, one.engine.on_gpu)
            for one in planned
        }

    def starting(self, engine: str) -> None:
        """Its process is about to be made."""
        meter = self._meters.get(engine)
        if meter is None:
            return
        for other in self._under_way - {engine}:
            self._meters[other].disturbed()
        meter.begin(None if self._under_way - {engine} else self._available())
        self._under_way.add(engine)

    def lost(self, engine: str) -> None:
        """It did not get ready, or is no longer."""
        self._under_way.discard(engine)

    def ready(self, engine: str) -> None:
        """It serves."""
        if engine not in self._under_way:
            return
        self._under_way.discard(engine)
        try:
            start = self._meters[engine].ended(self._available())
        except OSError as error:
            log.warning("%s: its size is not kept: %s", engine, error)
            return
        if start is not None:
            log.info("%s: took %s at load (%s)", engine, in_gib(start.at_load_bytes), start.how)

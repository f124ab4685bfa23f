"""The series of the machine's memory, and the same figures for the status page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import Action, Dispatch, Level, Reclaimed, Refuse

RESULTS = ("admitted", "waited", "timed_out", "unloaded")
_RECLAIMS = ("done", "too_little", "failed")
_PARTS = ("anon", "shmem", "file", "device")
ROLE_STATES = ("pending", "loading", "loaded", "unloaded", "off")


class MemorySeries:
    """Fed from the actions that pass the driver, and from the gate at each exposition."""

    def __init__(self, registry: CollectorRegistry) -> None:
        own: Any = {"namespace": "slotwise", "registry": registry}
        self._gauges = {
            name: Gauge(f"memory_{name}", text, **own)
            for name, text in (
                ("available_bytes", "What may still be taken: MemAvailable, or a lower limit."),
                ("floor_bytes", "Below it nothing new is admitted."),
                ("hard_floor_bytes", "Below it memory is taken back."),
                ("reserved_bytes", "What running requests may still make grow."),
                ("sample_age_seconds", "Since memory was last read."),
            )
        }
        self._reclaims = Counter(
            "reclaims_total", "Times memory was taken back.", ("level", "result"), **own
        )
        self._reclaimed = Counter(
            "reclaimed_bytes_total", "What was given back, by the next sample.", ("level",), **own
        )
        self._admissions = Counter(
            "admissions_total", "Requests by what memory meant for them.", ("result",), **own
        )
        self._engines = Gauge(
            "engine_memory_bytes",
            "An engine's memory by kind; file is page cache, which counts as available.",
            ("engine", "part"),
            **own,
        )
        self._split = Gauge(
            "memory_part_bytes", "Who holds what is used; adds up to all of it.", ("part",), **own
        )
        self._roles = Gauge("role_state", "1: the small model is so.", ("role", "state"), **own)
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        for result in RESULTS:
            self._admissions.labels(result)
        for level in Level:
            self._reclaimed.labels(level)
            for result in _RECLAIMS:
                self._reclaims.labels(level, result)

    def observe(self, actions: Iterable[Action]) -> None:
        """Count one ``handle`` call of the scheduler."""
        for action in actions:
            match action:
                case Dispatch():
                    waited = action.wait_reason is Reason.MEMORY
                    self.admission("waited" if waited else "admitted")
                case Refuse(code="memory_wait_timeout"):
                    self.admission("timed_out")
                case Refuse(code="unloaded_for_memory"):
                    self.admission("unloaded")
                case Reclaimed():
                    self._reclaims.labels(action.level, action.result).inc()
                    self._reclaimed.labels(action.level).inc(action.given_back_bytes)

    def admission(self, result: str) -> None:
        """``result``: one of RESULTS."""
        self._admissions.labels(result).inc()

    def sync(
        self,
        figures: Mapping[str, Any],
        split: Mapping[str, int],
        engines: Mapping[str, Mapping[str, int]],
        roles: Mapping[str, str],
        since_start_s: float,
    ) -> None:
        """Set the gauges to what is so now. ``split``: part -> bytes; ``roles``: name -> state."""
        age_s = figures["sample_age_s"]
        if age_s is None:  # never read: as old as we are, unless nobody wants to know
            age_s = since_start_s if figures["enabled"] else 0.0
        values = {**figures, "sample_age_seconds": age_s}
        for name, gauge in self._gauges.items():
            gauge.set(values[name] or 0)
        self._split.clear()
        for part, n_bytes in split.items():
            self._split.labels(part).set(n_bytes)
        self._engines.clear()
        for engine, parts in engines.items():
            for part in _PARTS:
                self._engines.labels(engine, part).set(parts.get(part, 0))
        for role, now in roles.items():
            for state in ROLE_STATES:
                self._roles.labels(role, state).set(int(state == now))

"""Who is told about engines, whether we run them or somebody else does."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Cause(StrEnum):
    """Why an engine is lost, in a word: a label of a metric."""

    NOT_STARTED = "not_started"
    NOT_READY = "not_ready"
    REFUSED = "refused"
    EXITED = "exited"
    SILENT = "silent"
    HUNG = "hung"
    UNLOADED = "unloaded"  # it gave way, or starts again smaller, for want of memory


@dataclass(frozen=True, slots=True)
class Loss:
    """The cause, and the whole story in one line."""

    cause: Cause
    text: str


class Listener(Protocol):
    """Between ``on_ready`` and ``on_lost`` an engine is in use; lost is told before a new start."""

    def on_starting(self, engine: str, text: str) -> None:
        """It is on its way; ``text`` says how far."""

    def on_ready(self, engine: str, url: str, api_key: str) -> Awaitable[None]:
        """It serves. Awaited; an exception counts as a failure of the engine."""

    def on_lost(self, engine: str, loss: Loss) -> None:
        """It no longer serves, or did not start."""

    def on_log_line(self, engine: str, line: str) -> None:
        """It wrote this. Called in another thread; must not raise."""

"""One line per request that ended, in ``requests.jsonl``: numbers and names, no text of a prompt.

The file is rotated, so all of it takes a bounded room, and only its owner may read it. Lines are
written by a thread of their own: a slow disk costs the server nothing, and what a full one refuses
is dropped, said once, and tried again with the next line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import orjson

from slotwise.proxy.history.record import Record, times
from slotwise.proxy.telemetry.journal import end_thread, open_own

log = logging.getLogger(__name__)

DEFAULT_MAX_BYTES = 16 * 2**20
DEFAULT_FILES = 4
_MAX_PENDING = 10_000  # lines
_CLOSE_LIMIT_S = 5.0


class RequestLog:
    """Appends to ``path``; older lines are in ``path``.1 and so on."""

    def __init__(
        self, path: Path, max_bytes: int = DEFAULT_MAX_BYTES, files: int = DEFAULT_FILES
    ) -> None:
        """``files`` of ``max_bytes`` each, at most. Raises ``OSError`` if it cannot be opened."""
        self._file = _OwnersFile(path, max_bytes, files - 1)
        self._pending: queue.Queue[Record | None] = queue.Queue(_MAX_PENDING)
        self._late = False
        self._thread = threading.Thread(target=self._drain, name="request-log", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Note one record; never blocks and never raises."""
        try:
            self._pending.put_nowait(record)
            self._late = False
        except queue.Full:
            if not self._late:
                log.warning(
                    "request log: the disk is %d lines behind, lines are lost", _MAX_PENDING
                )
            self._late = True

    def close(self) -> None:
        """Write what is pending; takes 5 s at most for it. May be called twice."""
        end_thread(self._thread, self._pending, _CLOSE_LIMIT_S)

    def _drain(self) -> None:
        while (record := self._pending.get()) is not None:
            try:
                text = orjson.dumps(line(record)).decode()
            except TypeError as error:  # such as half a character in a client's name
                log.warning("request log: no line for request %s: %s", record.id, error)
                continue
            self._file.emit(logging.makeLogRecord({"msg": text}))
        with contextlib.suppress(OSError):  # what a full disk refused is refused again
            self._file.close()


class _OwnersFile(RotatingFileHandler):
    """The standard library's rotation, with files that only their owner may read."""

    def __init__(self, path: Path, max_bytes: int, older: int) -> None:
        self._broken = False
        super().__init__(path, maxBytes=max_bytes, backupCount=older, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        return open(open_own(self.baseFilename, os.O_APPEND), "a", encoding=self.encoding)

    def emit(self, record: logging.LogRecord) -> None:
        failed_before, self._broken = self._broken, False
        super().emit(record)
        if self._broken and not failed_before:
            log.warning("request log %s cannot be written, lines are lost", self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        self._broken = True


def line(record: Record) -> dict[str, Any]:
    """A record as the plain data of its line. Seconds; ``time`` is the time of day at its end."""
    known = record.known
    return {
        "time": round(record.time, 3),
        "id": record.id,
        "profile": record.profile,
        "session": record.session,
        "kind": record.kind,
        "slot": str(record.slot),
        "rule": record.rule.value,
        "why": record.why,
        "expected_cached": record.expected_cached,
        "prompt_tokens": record.prompt_tokens,
        "tokens": {cause.value: count for cause, count in record.tokens().items()},
        "changed": record.changed.section if record.changed else None,
        **times(record),
        "finish": known.finish or (record.failure.value if record.failure else None),
        "client": known.client,
        "key": record.key,
    }

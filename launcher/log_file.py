"""A child's output in a file that cannot fill the disk: bounded lines, bounded size, one rotation.

Whoever reads a child's pipe must never stop: a full pipe stops the child in the middle of a
request. So nothing here raises; what cannot be written is dropped.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 8 * 2**20
MAX_LINE_BYTES = 8192
_CUT = b" ... (line cut)\n"
_RECENT_LINES = 400  # a debugger's backtrace may follow an engine's own last words


class RotatingLog:
    """Takes bytes as they come; writes whole lines to ``path``, the older ones in ``path``.1."""

    def __init__(
        self,
        path: Path,
        max_bytes: int = MAX_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        seen: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``seen`` is told each line, in the thread that feeds; it must not raise."""
        self.path = path
        self._seen = seen
        self._max_bytes, self._max_line_bytes = max_bytes, max_line_bytes
        self._file: BinaryIO | None = None
        self._size = 0
        self._line = bytearray()
        self._cutting = False  # inside a line that is too long: its rest is dropped
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)

    def __repr__(self) -> str:
        return f"<RotatingLog {self.path} {self._size} bytes>"

    def recent(self) -> list[str]:
        """The last lines, for an error message."""
        return list(self._recent)

    def feed(self, data: bytes) -> None:
        """Takes a chunk of output; a chunk need not end with a line."""
        for piece in data.splitlines(keepends=True):
            ended = piece.endswith((b"\n", b"\r"))
            if not self._cutting:
                room = self._max_line_bytes - len(self._line)
                self._line += piece[:room]
                if len(piece) > room:
                    self._cutting = True
                    self._write(bytes(self._line) + _CUT)
                elif ended:
                    self._write(bytes(self._line))
            if ended:
                self._line.clear()
                self._cutting = False

    def close(self) -> None:
        """Writes the last line even if it has no end."""
        if self._line and not self._cutting:
            self._write(bytes(self._line) + b"\n")
        self._line.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _write(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").strip()
        if text:
            self._recent.append(text)
            self._seen(text)
        try:
            if self._file is None or self._size + len(line) > self._max_bytes:
                self._rotate()
            assert self._file is not None
            self._file.write(line)
            self._size += len(line)
        except OSError:  # a full disk: the child goes on, its log does not
            self._file = None

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        if size >= self._max_bytes // 2:
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))
            size = 0
        # Unbuffered: the log of an engine that was killed must be complete.
        self._file = self.path.open("ab", buffering=0)
        self._size = size

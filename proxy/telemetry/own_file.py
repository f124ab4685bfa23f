"""What journal and ledger share: files for the owner's eyes, and a thread that writes them.

Both hold what users did. The server's loop pays for one ``put``; a disk that hangs holds up neither
a request nor the end of the server.
"""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path
from typing import Any

_OWNER = 0o600


def open_own(path: str | Path, flags: int) -> int:
    """A descriptor for writing; only the owner may read the file. Raises ``OSError``.

    ``flags``: beside O_WRONLY and O_CREAT, such as O_APPEND.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, _OWNER)
    os.fchmod(descriptor, _OWNER)  # a file that was there keeps its mode otherwise
    return descriptor


def end_thread(thread: threading.Thread, pending: queue.Queue[Any], limit_s: float) -> None:
    """Let a thread that ends on None write what is pending; takes twice ``limit_s`` at most.

    May be called twice.
    """
    if not thread.is_alive():
        return
    try:
        pending.put(None, timeout=limit_s)
    except queue.Full:
        return  # a disk that hangs: the thread ends with the process
    thread.join(limit_s)

"""What slotwise sets for its own process, once, before it serves."""

from __future__ import annotations

import contextlib
import gc
import resource

_MOST_FILES = 65_536
COLLECT_AFTER_OBJECTS = 20_000
"""A request leaves a few hundred objects in lists and tables, next to none of them in cycles."""


def raise_fd_limit() -> None:
    """Each stream takes two connections; the soft limit is often 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))


def spare_the_collector() -> None:
    """What is loaded now stays until the end, so no collection looks at it again. And one request
    in five would wait for a collection, 0.2 ms, by Python's own setting: it may come later."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS)

"""A child that dies with its parent, also with one that was killed (PR_SET_PDEATHSIG).

The kernel binds this to the *thread* that starts the child: start it in one that lives as long as
the child shall.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def dying_with_us() -> Callable[[], None]:
    """For ``preexec_fn`` of the child started next; one system call: safe beside threads."""
    parent = os.getpid()

    def in_the_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return in_the_child

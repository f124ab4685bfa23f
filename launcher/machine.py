"""What a plan has to know of the machine: its memory, and whose memory the GPU's is.

MemAvailable is the one figure that is right where CPU and GPU share memory: CUDA's free figure
counts the page cache as used there, nvidia-smi says nothing, and a process's own size does not
show what it holds on the GPU. nvidia-smi is asked one thing only: whether the GPU has memory of
its own, which is then not this machine's to plan.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

_ASK_LIMIT_S = 5.0
_ASK = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Machine:
    """One look at its memory, in bytes. ``problem``: why it cannot be told, else empty."""

    total_bytes: int
    available_bytes: int
    floor_bytes: int
    source: str
    problem: str = ""


def gpu_own_memory_mib() -> int | None:
    """MiB that a GPU has for itself; None: there is none, or it shares the machine's memory.

    On GB10 the tool answers [N/A]. No answer, or none in time, counts as none.
    """
    try:
        asked = subprocess.run(_ASK, capture_output=True, text=True, timeout=_ASK_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes = [int(line) for line in asked.stdout.splitlines() if line.strip().isdecimal()]
    return sum(sizes) or None

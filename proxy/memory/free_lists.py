"""Free pages that wait on a list of each CPU: nobody uses them, and yet they are not available.

What a process gives back goes first onto a list of the CPU that it ran on, and from there to the
machine's free memory over the next seconds to minutes. Meanwhile neither MemFree nor MemAvailable
counts it, so MemTotal - MemAvailable counts it as used. Since Linux 6.7 these lists grow and
shrink by themselves, together up to an eighth of the memory: after a big process has ended, or
while one loads, they hold hundreds of megabytes that no process shows.

The kernel takes them back before memory runs out. Still nothing is admitted on their strength: that
goes by MemAvailable alone, which without them is the safe side. They are told apart only so that
what others hold is not overstated.
"""

from __future__ import annotations

import re
import resource
from pathlib import Path

ZONEINFO = Path("/proc/zoneinfo")
# One for each CPU and zone, under ``pagesets``; in pages.
_COUNT = re.compile(rb"^\s+count:\s+(\d+)$", re.MULTILINE)
_MOST_BYTES = 2**20  # a machine of 128 CPUs fills a tenth of it


def read_bytes(path: Path = ZONEINFO, page_bytes: int = resource.getpagesize()) -> int:
    """What lies on the lists of all CPUs now; takes about 0.1 ms for a few CPUs. 0 where the file
    is not there, may not be read, or knows no such lists."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return 0
    return sum(map(int, _COUNT.findall(content))) * page_bytes

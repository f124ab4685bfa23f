"""A meminfo file that a test writes: what it says goes on being written, as a kernel would."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path
from typing import Self

GIB = 2**30
_EVERY_S = 0.05


def text(
    available_gib: float,
    total_gib: float = 128.0,
    free_gib: float | None = None,
    held_gib: float | None = None,
) -> str:
    """The lines of /proc/meminfo that matter, and one that must not. ``held_gib``: by processes."""
    kib = {
        "MemTotal": total_gib,
        "MemFree": available_gib / 4 if free_gib is None else free_gib,
        "MemAvailable": available_gib,
    }
    if held_gib is not None:
        kib |= {"AnonPages": held_gib * 3 / 4, "Shmem": held_gib / 4}
    return "".join(f"{name}: {round(gib * 2**20):>12} kB\n" for name, gib in kib.items())


def zones(on_lists_bytes: int, cpus: int = 4) -> str:
    """A zoneinfo in the kernel's form: so much on the lists of two zones, and counts of other
    kinds that are no lists."""
    pages = on_lists_bytes // mmap.PAGESIZE
    counts = [pages // (2 * cpus)] * (2 * cpus)
    counts[-1] += pages - sum(counts)
    return "".join(
        f"Node 0, zone {name:>8}\n  per-node stats\n      nr_mapped    4711\n  pages free     815\n"
        f"        high     {pages}\n      nr_free_pages 815\n  pagesets\n"
        + "".join(
            f"    cpu: {cpu}\n              count:    {count}\n              high:     90895\n"
            f"              batch:    63\n              high_max: 139264\n"
            for cpu, count in enumerate(lists)
        )
        + "  node_unreclaimable:  0\n  start_pfn:           4096\n"
        for name, lists in (("DMA32", counts[:cpus]), ("Normal", counts[cpus:]))
    )


class ScriptedMeminfo:
    """Writes the file anew twenty times a second, until the block ends or :meth:`freeze`."""

    def __init__(self, path: Path, available_gib: float, total_gib: float = 128.0) -> None:
        self.path = path
        self.total_gib = total_gib
        self._content: str | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_writing, daemon=True)
        self.say(available_gib)

    def say(self, available_gib: float, free_gib: float | None = None) -> None:
        """From now on so much is available."""
        self.write(text(available_gib, self.total_gib, free_gib))

    def write(self, content: str) -> None:
        """From now on the file holds this."""
        self._content = content
        self._write(content)

    def freeze(self) -> None:
        """It stays, and is not written any more."""
        self._content = None

    def vanish(self) -> None:
        self._content = None
        self.path.unlink(missing_ok=True)

    def _keep_writing(self) -> None:
        while not self._end.wait(_EVERY_S):
            content = self._content
            if content is not None:
                self._write(content)

    def _write(self, content: str) -> None:
        aside = self.path.with_suffix(f".{threading.get_ident()}")
        aside.write_text(content)
        aside.replace(self.path)  # nobody reads half a file

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5)

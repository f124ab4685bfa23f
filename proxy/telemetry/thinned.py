"""The journal without the memory samples that change nothing: most of a quiet day.

Two samples a second are 173,000 lines and 35 MB a day, and next to all of them say that there is
room. Of such samples in a row, with no other event between them, the first and the last are
written, and one a minute, so that the file still shows what the memory was. What lies between is
told by no action and left in no state: a replay ends up in the same one.

The last is held back until something else comes, or the journal is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slotwise.proxy.core.actions import Action
from slotwise.proxy.core.events import Event, MemorySampled

_ONE_EVERY_S = 60.0
_Entry = tuple[float, MemorySampled]


class Writer(Protocol):
    """What a journal is to whoever writes."""

    def write(self, now: float, event: Event, actions: Sequence[Action]) -> None: ...

    def close(self) -> None: ...


class Thinned:
    """Passes entries on to ``journal``, but for the samples that nobody misses.

    ``calm``: whether the sample that was just taken is forgotten with the next: it was read, it is
    not counted as low, and nobody waits for memory.
    """

    def __init__(self, journal: Writer, calm: Callable[[], bool]) -> None:
        self._journal = journal
        self._calm = calm
        self._written: _Entry | None = None  # the last entry written, while it is a calm sample
        self._held: _Entry | None = None  # the calm sample after it

    def write(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Note one ``handle`` call; never blocks and never raises."""
        calm = isinstance(event, MemorySampled) and not actions and self._calm()
        if not calm or not isinstance(event, MemorySampled):
            self._let_go()
            self._journal.write(now, event, actions)
            self._written = None
        elif self._written is None or not _alike(self._held or self._written, event):
            self._let_go()
            self._journal.write(now, event, actions)
            self._written = now, event
        else:
            self._held = now, event
            if now - self._written[0] >= _ONE_EVERY_S:
                self._let_go()

    def close(self) -> None:
        """May be called twice."""
        self._let_go()
        self._journal.close()

    def _let_go(self) -> None:
        """Write the sample that was held back."""
        if self._held is not None:
            self._journal.write(*self._held, [])
            self._written, self._held = self._held, None


def _alike(before: _Entry, event: MemorySampled) -> bool:
    """Whether both tell of the same engines: what one took is kept from the last that told it."""
    return {name for name, _ in before[1].grown} == {name for name, _ in event.grown}

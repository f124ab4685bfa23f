"""Displacements that proved wrong, and what the slots that stayed idle owe for them.

What a slot holds is kept by what its loss would cost and how likely somebody comes back for it. A
guess may be wrong for long: nobody comes back for a chat of one question, and while it is kept two
voice satellites displace each other in the slot beside it, at every request. So a slot pays rent.
Where a prompt comes back for what was displaced a little while ago, each slot that nobody has used
since would have been the better choice; the seconds of reading it again are taken from what the
content of that slot is worth. Nothing is kept at the price of more reads than its own.
"""

from __future__ import annotations

from typing import NamedTuple

from slotwise.policies.prefix import Tokens, lcp
from slotwise.policies.ram_cache import State

_LEAST = 4  # displacements that are remembered


class Displaced(NamedTuple):
    """What nobody can have again, and since when."""

    state: State
    at: float  # s


class Displacements:
    """The last ones of one profile, about as many as it has slots."""

    def __init__(self) -> None:
        self._last: list[Displaced] = []

    def add(self, state: State, now: float, slots: int) -> None:
        """This is lost now."""
        self._last.append(Displaced(state, now))
        del self._last[: -max(_LEAST, slots)]

    def missed(self, prompt: Tokens) -> tuple[int, float]:
        """Tokens of the prompt that one of them held, the most, and when it was displaced."""
        return max(
            ((min(lcp(prompt, one.state.view), one.state.held), one.at) for one in self._last),
            default=(0, 0.0),
        )

"""How long conversations pause between two turns, learned.

An answer that asks for tools is followed by their results, mostly within seconds; any other answer
by a person, who takes minutes. Each kind has a typical pause of its own: the median of the last
ones, because pauses spread over four orders of magnitude and a few of them are next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from slotwise.policies.params import Affinity

_LEAST_S = 1e-3
_SEEN = 32  # pauses that are remembered
_FADE = 1 - 1 / 64
_UNDECIDED = 4.0  # conversations that count as having come back, and as many as gone
_GUESSES = 2  # the given value counts as so many pauses


@dataclass(frozen=True, slots=True)
class Pause:
    """One kind's typical pause in seconds, by the given value and the last ones seen."""

    typical_s: float
    given_s: float
    seen_s: tuple[float, ...] = ()

    def after(self, pause_s: float) -> Pause:
        """With one more pause."""
        seen_s = (*self.seen_s, max(pause_s, _LEAST_S))[-_SEEN:]
        typical_s = median([*seen_s, *[self.given_s] * _GUESSES])
        return Pause(typical_s, self.given_s, seen_s)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Both kinds of one profile."""

    tools: Pause
    others: Pause
    begun: float = 0.0  # conversations that were seen to begin; old ones fade
    returned: float = 0.0  # of them, those that came back

    @classmethod
    def first(cls, knobs: Affinity) -> Pauses:
        """Before any was seen."""
        tools_s, others_s = knobs.tools_gap_s, knobs.return_gap_s
        return cls(Pause(tools_s, tools_s), Pause(others_s, others_s))

    def typical_s(self, calling: bool) -> float:
        """The typical pause after an answer of this kind."""
        return (self.tools if calling else self.others).typical_s

    def saw(self, pause_s: float, calling: bool) -> Pauses:
        """With one more pause after an answer of this kind."""
        if calling:
            return replace(self, tools=self.tools.after(pause_s))
        return replace(self, others=self.others.after(pause_s))

    def came(self, again: bool) -> Pauses:
        """With one more conversation that began, or came back for the first time."""
        if again:
            return replace(self, returned=self.returned + 1)
        return replace(self, begun=_FADE * self.begun + 1, returned=_FADE * self.returned)

    @property
    def first_odds(self) -> float:
        """Odds to one that a conversation of one turn comes back. Where every prompt is a new one,
        as in a batch of calls, nobody does."""
        gone = max(0.0, self.begun - self.returned)
        return min(1.0, (self.returned + _UNDECIDED) / (gone + _UNDECIDED))

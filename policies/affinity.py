"""What a slot is worth: what a request would reuse there, and who will want it back, and when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from slotwise.policies.cost import piece_s
from slotwise.policies.params import Cost
from slotwise.policies.prefix import Tokens, lcp
from slotwise.policies.ram_cache import SlotContent
from slotwise.policies.types import Match, Request, SlotView

LIVE_S = 60.0  # a conversation of one turn counts as live for so long
EXPIRE_S = 1800.0  # a conversation idle this long has ended
_RETURN_ODDS, _TOOLS_ODDS = 4.0, 20.0  # to one that it goes on; where its answer asked for tools
# Typical pauses until some were seen: tool results come after seconds, people after minutes. Longer
# ones count as these: a state that is wanted again after minutes is mostly lost by then.
_RETURN_GAP_S, _TOOLS_GAP_S = 60.0, 10.0
_GAP_STEP = 1.25  # a pause moves the typical one by this factor towards itself
_LEAST_GAP_S = 1e-3
_REPEATED = 2  # turns: what a one-shot prompt begins with was asked for twice
_FIRST_REPEAT = 0.1  # chance that one comes that begins like another, before any did
_FADE = 1 - 1 / 64  # what was seen of older conversations counts for less
_UNDECIDED = 4.0  # conversations that count as having come back, and as many as gone


@dataclass(frozen=True, slots=True)
class Returns:
    """How conversations of one profile come back: after how long, and whether at all."""

    tools_gap_s: float = _TOOLS_GAP_S  # typical pause after an answer that asked for tools
    others_gap_s: float = _RETURN_GAP_S  # and after any other
    begun: float = 0.0  # conversations that began; old ones fade
    returned: float = 0.0  # of them, those that came back

    def saw(self, is_new: bool) -> Returns:
        """With one more conversation that began, or came back for the first time."""
        if not is_new:
            return replace(self, returned=self.returned + 1)
        return replace(self, begun=_FADE * self.begun + 1, returned=_FADE * self.returned)

    def after(self, pause_s: float, calling: bool) -> Returns:
        """With one more pause. Steps of one size find the median, whatever a few pauses are."""
        gap_s, most_s = self.gap_s(calling), _TOOLS_GAP_S if calling else _RETURN_GAP_S
        gap_s *= _GAP_STEP if pause_s > gap_s else 1 / _GAP_STEP
        gap_s = min(max(gap_s, _LEAST_GAP_S), most_s)
        return replace(self, tools_gap_s=gap_s) if calling else replace(self, others_gap_s=gap_s)

    def gap_s(self, calling: bool) -> float:
        """The typical pause after an answer of this kind (s)."""
        return self.tools_gap_s if calling else self.others_gap_s

    @property
    def first_odds(self) -> float:
        """Odds to one that a conversation of one turn comes back. Where every prompt is a new one,
        as in a batch of calls, nobody does."""
        gone = max(0.0, self.begun - self.returned)
        return min(1.0, (self.returned + _UNDECIDED) / (gone + _UNDECIDED))


NONE_SEEN = Returns()


def reuse(request: Request, slot: SlotView, match: Match) -> int:
    """Tokens the engine will take from the slot's cache; it always computes at least one.

    The generated tail counts only for a prompt that goes on past everything the slot served:
    its ids are not known, but a template that renders an answer as it was generated repeats them.
    """
    if not request.cache_prompt:
        return 0
    shared = min(match.lcp, slot.held)
    if match.covers and slot.held == slot.view_len:
        shared += slot.tail
    return max(0, min(shared, request.tokens.length - 1))


def is_live(slot: SlotView) -> bool:
    """Whether somebody is likely to come back for what the slot holds."""
    if slot.view_len == 0 or slot.guest or slot.idle_s >= EXPIRE_S:
        return False
    return slot.turns >= 2 or slot.idle_s < LIVE_S


def chance_of_return(turns: int, idle_s: float, calling: bool, returns: Returns) -> float:
    """Chance that a conversation comes back.

    By Bayes: before the pause, odds to one that it goes on; pauses are log-logistic (heavy
    tailed, as think times are) around the typical one, so a pause of t leaves
    odds / (1 + (t/gap)^2).
    """
    if idle_s >= EXPIRE_S:
        return 0.0
    gap_s = returns.gap_s(calling)
    odds = _RETURN_ODDS if turns >= 2 else returns.first_odds
    odds = _TOOLS_ODDS if calling else odds
    odds /= 1 + (max(0.0, idle_s) / gap_s) ** 2
    return odds / (odds + 1)


def expected_loss_s(
    state: SlotContent, kept: int, idle_s: float, returns: Returns, cost: Cost
) -> float:
    """Seconds that are lost, as far as may be expected, where of a state only the first ``kept``
    tokens go on.

    A conversation's next turn repeats all of it. A one-shot prompt never comes again, but what it
    begins with may: as much as came from the cache for it was asked for twice; of the rest nobody
    knows yet. What others paid for it already is taken off, see :class:`Displacements`.
    """
    return max(0.0, _expected_s(state, kept, idle_s, returns, cost) - state.rent_s)


def _expected_s(
    state: SlotContent, kept: int, idle_s: float, returns: Returns, cost: Cost
) -> float:
    if not state.guest:
        chance = chance_of_return(state.turns, idle_s, state.calling, returns)
        return chance * piece_s(cost, kept, state.tokens)
    repeated = min(state.cached, state.held)
    seconds = _FIRST_REPEAT * piece_s(cost, max(kept, repeated), state.held)
    if kept < repeated:
        chance = chance_of_return(_REPEATED, idle_s, False, returns)
        seconds += chance * piece_s(cost, kept, repeated)
    return seconds


_LEAST = 4  # displacements that are remembered


class Displaced(NamedTuple):
    """What nobody can have again, and since when."""

    state: SlotContent
    at: float  # s


class Displacements:
    """The last displacements of one profile, about as many as it has slots.

    A guess about who comes back may be wrong for long: nobody comes back for a chat of one
    question, and while it is kept two voice satellites displace each other in the slot beside it,
    at every request. So a slot pays rent. Where a prompt comes back for what was displaced a little
    while ago, each slot that nobody has used since would have been the better choice: the seconds
    of reading the prompt again are taken from what the content of that slot is worth.
    """

    def __init__(self) -> None:
        self._last: list[Displaced] = []

    def add(self, state: SlotContent, now: float, slots: int) -> None:
        """This is lost now."""
        self._last.append(Displaced(state, now))
        del self._last[: -max(_LEAST, slots)]

    def missed(self, prompt: Tokens) -> tuple[int, float]:
        """Tokens of the prompt that one of them held, the most, and when it was displaced."""
        return max(
            ((min(lcp(prompt, one.state.view), one.state.held), one.at) for one in self._last),
            default=(0, 0.0),
        )

"""A mirror of llama-server's RAM cache of prompts (``--cache-ram``): what can be had back.

The engine saves a slot's state when a prompt comes that keeps less than half of it, makes room by
dropping the oldest entries, and then loads the entry that serves the new prompt better than the
slot does. All of it follows from what the proxy sends, so the proxy knows what is there: what a
displacement really destroys are the entries it drops, and a conversation that lost its slot may
come back for the price of a copy.

That what a slot holds is always worth more than the oldest entries is the engine's idea, not ours.
Where a slot can be emptied first, it is chosen which of them is lost.

The mirror is a belief: sizes are counted in tokens where the engine counts bytes. Where the engine
reuses less than was expected, what is believed of it is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slotwise.policies.prefix import EMPTY, Tokens, lcp

_SAVED_BELOW = 0.5  # of the slot's content that the new prompt keeps
_LEAST_KEEP = 0.25  # an entry of which less would be kept is not spent on a prompt


@dataclass(frozen=True, slots=True)
class State:
    """What a slot holds, or held when it was saved. Tokens of ``view`` beyond ``held`` are not in
    the KV; ``tail`` generated tokens follow them, whose ids are not known."""

    view: Tokens = EMPTY
    held: int = 0
    tail: int = 0
    turns: int = 0
    guest: bool = False
    calling: bool = False  # its last answer asked for tools
    session: str = ""
    request: str | None = None  # whose prompt the view is
    kind: str = ""
    cached: int = 0  # tokens of the prompt that came from the cache, expected until reported
    last_used: float = 0.0  # s
    rent_s: float = 0.0  # others had to read so much again while this was kept

    @property
    def tokens(self) -> int:
        """Tokens whose KV it is."""
        return self.held + self.tail

    def shared(self, prompt: Tokens) -> int:
        """Tokens of it that serve this prompt. The tail counts where the prompt goes on past all
        of the view: a template that renders an answer as it was generated repeats it."""
        common = lcp(self.view, prompt)
        if common < len(self.view) or self.held < len(self.view):
            return min(common, self.held)
        return min(self.held + self.tail, len(prompt))


class Swap(NamedTuple):
    """What sending a prompt to a slot does to the cache."""

    states: tuple[State, ...]  # the cache behind it
    loaded: State | None  # what the slot is given


@dataclass(frozen=True, slots=True)
class Park:
    """The states of one engine's RAM cache, the oldest first."""

    limit_tokens: int
    states: tuple[State, ...] = ()
    empties: bool = False  # a slot can be emptied first, and then nothing of it is saved

    def best(self, prompt: Tokens) -> tuple[int, State | None]:
        """Tokens of the prompt that the cache could serve, and by which entry."""
        found: tuple[int, State | None] = (0, None)
        for state in self.states:
            shared = state.shared(prompt)
            if shared > found[0] and shared >= _LEAST_KEEP * state.tokens:
                found = shared, state
        return found

    def saves(self, old: State, kept: int) -> bool:
        """Whether the engine saves a slot's content of which ``kept`` tokens go on."""
        return self.limit_tokens > 0 and old.tokens > 0 and kept < _SAVED_BELOW * old.tokens

    def room_for(self, old: State) -> tuple[tuple[State, ...], tuple[State, ...]]:
        """The cache once this state is saved, and what is lost by it."""
        if old.tokens > self.limit_tokens:
            return self.states, (old,)
        if any(_contains(state, old) for state in self.states):
            return self.states, ()
        left = [state for state in self.states if not _contains(old, state)]
        used = old.tokens + sum(state.tokens for state in left)
        gone = 0
        while used > self.limit_tokens:
            used -= left[gone].tokens
            gone += 1
        return (*left[gone:], old), tuple(left[:gone])

    def swap(self, old: State, prompt: Tokens) -> Swap | None:
        """What happens when this prompt goes to a slot with that content. None: nothing."""
        kept = old.shared(prompt)
        if not self.saves(old, kept):
            return None
        states, _ = self.room_for(old)
        return self._load(states, prompt, kept / old.tokens, kept / len(prompt))

    def into_emptied(self, prompt: Tokens) -> Swap:
        """What happens when it goes to a slot that was emptied for it."""
        return self._load(self.states, prompt, 0.0, 0.0)

    def _load(self, states: tuple[State, ...], prompt: Tokens, keep: float, similar: float) -> Swap:
        """The entry that is better than what the slot has, by both shares, moves there."""
        best: State | None = None
        for state in states:
            shared = state.shared(prompt)
            state_keep, state_similar = shared / state.tokens, shared / len(prompt)
            if state_keep >= _LEAST_KEEP and state_keep > keep and state_similar > similar:
                best, keep, similar = state, state_keep, state_similar
        if best is not None:
            states = tuple(state for state in states if state is not best)
        return Swap(states, best)


def _contains(state: State, other: State) -> bool:
    """Whether one holds all of the other; of two tails the longer is taken to repeat the other."""
    if state.tokens < other.tokens:
        return False
    return lcp(state.view, other.view) >= min(other.held, len(other.view))


NOTHING = State()

"""How many conversations live, over how many slots and RAM cache can keep warm.

A slot holds one conversation, however short, so live contexts are counted, not their tokens; each
counts by its chance of return. What the engine's RAM cache holds beside the slots adds to the
capacity in units of the mean context.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotwise.policies.affinity import Returns, chance_of_return
from slotwise.policies.params import Params

SCARCE = 0.6  # of a working set: from there on it matters who goes first
KEEP_ABOVE = 0.5  # of a working set: from there on idle slots are kept for their owners
_FEW = 2  # requests: one is read while another generates
_COUNTED_TURNS = 2  # a single call that was answered is no conversation yet


@dataclass(slots=True)
class Context:
    """One conversation as the scheduler remembers it."""

    last_seen: float  # s, its last request's arrival or end
    tokens: int = 0  # its last prompt
    turns: int = 0
    open: int = 0  # requests that wait or run
    calling: bool = False  # its last answer asked for tools


def counts(context: Context) -> bool:
    """Whether it is a conversation at all, or one that may become one now."""
    return bool(context.open) or context.calling or context.turns >= _COUNTED_TURNS


def working_set(
    contexts: Iterable[Context], slots: int, now: float, returns: Returns, params: Params
) -> float:
    """Live conversations over those that stay warm; 0 where there is no slot."""
    live = tokens = 0.0
    for context in contexts:
        if not counts(context):
            continue
        chance = 1.0
        if not context.open:
            idle_s = now - context.last_seen
            chance = chance_of_return(context.turns, idle_s, context.calling, returns)
        live += chance
        tokens += chance * context.tokens
    if not slots or not live:
        return 0.0
    mean = tokens / live
    in_cache = params.cache_tokens / mean if mean and params.ram_cache else 0.0
    return live / (slots + in_cache)


def most_running(working_set: float, slots: int, params: Params) -> int:
    """How many requests may run at once. Where all that lives stays warm, every slot may be at
    work. Where it does not, each that runs holds a slot that somebody else will want: few run."""
    if params.max_running:
        return params.max_running
    if working_set <= 1:
        return slots
    return min(slots, max(_FEW, int(slots / working_set)))

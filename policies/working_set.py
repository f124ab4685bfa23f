"""How many conversations live beside how many can be kept warm; and who may start a new one.

A slot holds one conversation, however short, so live contexts are counted, not their tokens; each
counts by its chance of return. What the engine's RAM cache holds beside the slots adds to the
capacity in units of the mean context.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from slotwise.policies.affinity import chance_of_return
from slotwise.policies.bounds import bound_s
from slotwise.policies.cost import run_s
from slotwise.policies.params import Params
from slotwise.policies.pauses import Pauses
from slotwise.policies.types import WaitingView

_SCARCE = 0.6  # of what stays warm: from there on it matters who goes first
_FEW = 2  # requests: one is read while another generates
_COUNTED_TURNS = 2  # a single call that was answered is no conversation yet


@dataclass(slots=True)
class Context:
    """One conversation as the scheduler remembers it."""

    began: float  # s
    last_seen: float  # s, its last request's arrival or end
    tokens: int = 0  # its last prompt
    turns: int = 0
    open: int = 0  # requests that wait or run
    calling: bool = False  # its last answer asked for tools
    started: bool = False  # a slot has held it: until then it takes nobody's place


def counts(context: Context) -> bool:
    """Whether it is a conversation at all, or one that may become one now."""
    return bool(context.open) or context.calling or context.turns >= _COUNTED_TURNS


class WorkingSet(NamedTuple):
    """Live conversations over what slots and park can hold."""

    warm: float  # those that a slot has held
    wanted: float  # and those that wait for their first

    @property
    def scarce(self) -> bool:
        """Whether so much lives that it matters who goes first."""
        return self.wanted > _SCARCE

    @classmethod
    def of(
        cls, contexts: Iterable[Context], slots: int, now: float, pauses: Pauses, params: Params
    ) -> WorkingSet:
        """Both are 0 where there is no slot."""
        warm = wanted = tokens = 0.0
        for context in contexts:
            chance = 1.0
            if not counts(context):
                continue
            if not context.open:
                idle_s = now - context.last_seen
                chance = chance_of_return(
                    context.turns, idle_s, context.calling, pauses, params.affinity
                )
            wanted += chance
            tokens += chance * context.tokens
            if context.started:
                warm += chance
        if not slots or not wanted:
            return cls(0.0, 0.0)
        mean = tokens / wanted
        parked = params.keep.park_tokens / mean if mean and params.keep.park else 0.0
        capacity = slots + parked
        return cls(warm / capacity, wanted / capacity)


def most_running(working_set: WorkingSet, slots: int, params: Params) -> int:
    """How many requests may run at once. Where all that lives stays warm, every slot may be at
    work. Where it does not, each that runs holds a slot that somebody else will want: few run."""
    if params.queue.max_running:
        return params.queue.max_running
    if working_set.wanted <= 1:
        return slots
    return min(slots, max(_FEW, int(slots / working_set.wanted)))


def longest_wait_s(waiting: WaitingView, params: Params) -> float:
    """After how long a new conversation starts all the same: three times its own run, bounded."""
    knobs, request = params.cap, waiting.request
    own_s = run_s(params.cost, 0, len(request.tokens), request.max_tokens)
    longest_s = bound_s(knobs.cap_max_wait_s, waiting, params)
    return min(max(3 * own_s, knobs.cap_min_wait_s), longest_s)


def may_start(stopped: bool, working_set: WorkingSet, params: Params) -> bool:
    """Whether a new conversation may start; ``stopped``: the answer before was no."""
    if not params.cap.enabled:
        return True
    return working_set.warm < (params.cap.admit_below if stopped else params.cap.stop_at)

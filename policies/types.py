"""The plain data the rules work on: what is asked (in) and what was decided (out). No behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from slotwise.policies.prefix import Tokens
from slotwise.policies.ram_cache import NOTHING, State


class SlotId(NamedTuple):
    """One slot of one engine; an engine is one llama-server process."""

    engine: str
    id_slot: int

    def __str__(self) -> str:
        return f"{self.engine}/{self.id_slot}"


class Rule(StrEnum):
    """By which rule a request was placed; the ``rule`` label of the series."""

    HOME = "home"  # its conversation's slot
    BRANCH = "branch"  # an edit or a regeneration of what a slot holds
    SESSION = "session"  # its session's slot, though the prompt changed
    GUEST = "guest"  # short, shares little: a place that costs nobody much
    NEW = "new"  # an empty slot
    AFFINITY = "affinity"  # least seconds, what is destroyed included
    UNPINNED = "unpinned"  # the engine does not keep pins: it chooses
    NONE = "none"  # never placed


class Reason(StrEnum):
    """Why a request waits; the ``reason`` label of the series."""

    NONE = "none"
    ENGINE_LOADING = "engine_loading"  # no engine of its profile is ready
    MAX_RUNNING = "max_running"  # as many generations run as the profile allows
    HOME_BUSY = "home_busy"  # the slot that holds its conversation is at work
    SLOTS_BUSY = "slots_busy"  # every slot that could take it is at work
    HELD = "held"  # what is idle is kept for its owners
    COLD_PREFILL = "cold_prefill"  # a long prompt is being read already
    BACKGROUND = "background"  # a side job, while somebody waits for a first token
    WINDOW = "window"  # only slots with too small a window are idle
    POOL = "pool"  # the unified KV pool has no room beside what runs
    MEMORY = "memory"  # the machine's memory is almost full


SIDE_JOB = "side"  # the kind of a request that comes between the turns of a conversation


class Section(NamedTuple):
    """A part of a prompt. Sections come in order and cover it from the first token on."""

    name: str  # tools | system | user | assistant | tool | template
    message: int  # its index in the request; -1: none
    end: int  # token position just past it


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt that wants a slot. ``first_user_end`` is a token position, see continuation.py."""

    id: str
    profile: str
    tokens: Tokens
    first_user_end: int  # tokens up to and including the first user turn; 0: a raw prompt
    turns: int  # 1 + assistant turns in it: what the prompt itself tells of its past
    max_tokens: int | None  # None or -1: no limit asked for
    stream: bool
    key: str  # who asks: the key's name, else the client's address
    cache_prompt: bool = True
    session: str = ""  # opaque id of its conversation; empty: not known
    kind: str = "chat"  # agent | chat | side | summary | raw
    sections: tuple[Section, ...] = ()


class Match(NamedTuple):
    """How one prompt compares with what one slot last served; made once per (request, content)."""

    lcp: int  # tokens
    covers: bool  # the slot's whole view is a prefix of the prompt: no rollback needed
    same: bool  # the very same prompt
    kind: Literal["continues", "branch", "session", "kin", "stranger"]

    @property
    def is_home(self) -> bool:
        """The slot holds this request's conversation."""
        return self.kind in ("continues", "branch", "session")


class Parked(NamedTuple):
    """What an engine's RAM cache has of a prompt."""

    shared: int  # tokens of the prompt
    state: State


@dataclass(slots=True)
class WaitingView:
    """One waiting request as the rules see it. ``matches`` runs parallel to the view's slots."""

    request: Request
    arrived: float  # s
    matches: list[Match]
    owns: bool  # some slot holds its conversation
    line_s: float = float("inf")  # what it would have waited where who comes first goes first
    overdue: bool = False  # others went before it for too long
    service_s: float = 0.0  # what its key was served lately
    parked: dict[str, Parked] = field(default_factory=dict)  # by engine

    @property
    def parked_most(self) -> bool:
        """Whether a RAM cache holds most of the prompt."""
        n = len(self.request.tokens)
        return any(2 * parked.shared >= n for parked in self.parked.values())


@dataclass(slots=True)
class SlotView:
    """One slot as the rules see it. Tokens of ``view`` beyond ``held`` are not in the KV."""

    id: SlotId
    window: int  # tokens
    idle: bool  # shown idle: may be pinned
    view_len: int  # length of the last prompt served here
    held: int  # tokens of that prompt in the KV
    tail: int  # generated tokens held behind it
    guest: bool  # what it holds is a guest
    turns: int
    idle_s: float  # since its last use
    calling: bool = False  # its last answer asked for tools
    state: State = NOTHING
    kept: bool = False  # held for its owner's next turn
    run_left_s: float = 0.0  # of the request at work here, estimated
    running_key: str | None = None  # who asked for it

    @property
    def resident(self) -> int:
        """Tokens whose KV the slot holds."""
        return self.held + self.tail


@dataclass(frozen=True, slots=True)
class Place:
    """Give it this slot now."""

    slot: int  # index into the view's slots
    rule: Rule
    expected_cached: int  # tokens
    max_tokens: int | None  # what it may generate, cut to the room; None: as asked
    why: str  # the numbers it was decided on
    empties: bool = False  # the slot is emptied first: what it holds is lost


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave it waiting. ``recheck_s``: when time alone may change the answer."""

    reason: Reason
    why: str
    recheck_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """It can never be served as it is."""

    code: str
    why: str
    n_ctx: int  # tokens, the limit it broke


Verdict = Place | Hold | Reject

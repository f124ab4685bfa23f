"""What to do about it: all that the scheduler ever says to what happens (``events``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from slotwise.policies.order import Promotion
from slotwise.policies.regret import Loss
from slotwise.policies.types import Reason, Rule, SlotId


class Level(StrEnum):
    """How memory is taken back, least first."""

    CHECKPOINTS = "checkpoints"  # an idle slot is emptied, and its checkpoints with it
    ROLE = "role"  # a small model is unloaded
    RAM_CACHE = "ram_cache"  # an idle engine starts again with a smaller RAM cache
    STOP = "stop"  # an engine is ended


class HoldResult(StrEnum):
    """How the time ended in which an idle slot was kept for its owner."""

    RETURNED = "returned"  # the owner's next turn took it
    EXPIRED = "expired"  # the owner did not come
    BROKEN = "broken"  # another request had waited long enough


class HomeWait(StrEnum):
    """What came of the wait for a busy home."""

    PLACED = "placed"  # there
    GAVE_UP = "gave_up"  # elsewhere


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send it to the engine now. It ends in exactly one RequestFinished or RequestFailed."""

    id: str
    slot: SlotId  # id_slot -1: unpinned
    rule: Rule
    expected_cached: int  # tokens
    waited_s: float
    wait_reason: Reason  # what it waited for last
    max_tokens: int | None  # cut to the room; None: as asked
    why: str
    here: int = 0  # tokens of the prompt that the slot held, by known ids
    tail: int = 0  # generated tokens behind them, of unknown ids
    elsewhere: int = 0  # most tokens of the prompt that another slot held
    displaces: str | None = None  # request whose content, another conversation's, is replaced
    regret: tuple[Loss, ...] = ()  # seconds lost against the best slot at once, see policies.regret
    promoted: Promotion | None = None  # it went first because it had waited
    home_wait: HomeWait | None = None  # it had waited for a busy home
    empties: bool = False  # what the slot holds goes first, so that the engine does not save it


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a waiting request with an error."""

    id: str
    status: int
    code: str
    message: str
    retry_after_s: int | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    wait_reason: Reason = Reason.NONE
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AskSlots:
    """Ask this engine for ``/slots`` soon: a slot's end is not proven."""

    engine: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Feed a Tick at this time, unless another event comes first."""

    at: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Say it out loud: the engine reported something else than was believed."""

    slot: SlotId
    id: str
    what: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Take memory back. It ends in exactly one ReclaimEnded."""

    level: Level
    target: str  # engine
    slots: tuple[int, ...] = ()  # idle slots to be emptied, oldest first; none: the engine itself
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a Reclaim gave back, by the first sample after its end: for series and journal."""

    level: Level
    target: str
    result: str  # done | too_little | failed
    before_bytes: int
    after_bytes: int
    why: str = ""

    @property
    def given_back_bytes(self) -> int:
        return max(0, self.after_bytes - self.before_bytes)


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """Count it: an idle slot is not kept for its owner any more."""

    slot: SlotId
    profile: str
    result: HoldResult
    kept_s: float  # while somebody waited who could have had it


Action = Dispatch | Refuse | AskSlots | WakeAt | Mismatch | HoldEnded | Reclaim | Reclaimed

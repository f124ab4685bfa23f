"""What the scheduler is told (events), and all that it ever answers (actions)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from slotwise.policies.admission import Growth
from slotwise.policies.order import Promotion
from slotwise.policies.regret import Loss
from slotwise.policies.types import Reason, Request, Rule, SlotId


class Failure(StrEnum):
    """How a dispatched request ended without its final event."""

    CLIENT_GONE = "client_gone"  # the client hung up; the engine may work on for a while
    REFUSED = "refused"  # the engine answered 4xx: it never touched the slot's content
    ENGINE_ERROR = "engine_error"  # an error status, an error event, a broken stream
    SILENCE = "silence"  # no byte for too long
    TIMEOUT = "timeout"  # the request's whole time is over
    ENGINE_LOST = "engine_lost"  # the process is gone


@dataclass(frozen=True, slots=True)
class EngineReady:
    """An engine answers and all its slots are idle and empty."""

    engine: str
    profile: str
    windows: tuple[int, ...]  # tokens, by id_slot
    pool: int | None  # tokens of the unified KV pool; None: one stream per slot
    pins: bool  # False: a probe showed that pins do not hold
    growth: Growth = field(default_factory=Growth)  # what it can still take of the machine's memory
    empties: bool = False  # its slots can be emptied so that its RAM cache serves them all the same


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The engine's process ended or is being stopped: nothing it held is left."""

    engine: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestArrived:
    request: Request


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The client left while its request waited."""

    id: str


@dataclass(frozen=True, slots=True)
class RequestProgressed:
    """The engine reported a prefill step: this many prompt tokens are in the KV."""

    id: str
    processed: int
    cached: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The engine's own final event or whole answer was read. None: it did not say."""

    id: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    id_slot: int | None  # the slot it says it used
    prefill_s: float | None = None  # its own time of the prompt
    decode_s: float | None = None  # and of the answer, from the first token to the last
    tool_calls: bool = False  # the answer asks for tools: their results come back soon


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A dispatched request ended in any other way."""

    id: str
    failure: Failure
    generated: int = 0  # tokens seen before the end
    started: bool = True  # False: it certainly never reached the engine


@dataclass(frozen=True, slots=True)
class SlotReport:
    id_slot: int
    busy: bool
    n_tokens: int | None  # tokens it holds; None: it does not say


@dataclass(frozen=True, slots=True)
class SlotsReported:
    """A ``/slots`` reply. ``asked_at``: when the question was *sent*."""

    engine: str
    asked_at: float
    slots: tuple[SlotReport, ...]


@dataclass(frozen=True, slots=True)
class EngineLoading:
    """An engine's process was started: it takes its memory now."""

    engine: str
    profile: str


@dataclass(frozen=True, slots=True)
class ProfileUnloaded:
    """Its engine was ended, or not started, for want of memory: nobody waits for it."""

    profile: str
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class MemorySampled:
    """What the machine's memory was just now, in bytes."""

    available_bytes: int | None  # None: it could not be read, which counts as no memory
    total_bytes: int
    loading_bytes: int = 0  # what engines that load are still to take
    grown: tuple[tuple[str, int], ...] = ()  # engine -> what it took since it was ready
    stalled: float = 0.0  # percent of the last 10 s in which all tasks stood still for memory
    text: str = ""  # where it was not read: why


@dataclass(frozen=True, slots=True)
class ReclaimEnded:
    """The one end of a Reclaim. ``failed``: why nothing was done; empty: it was done."""

    level: Level
    target: str
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """A timer asked for by WakeAt fired."""


Event = (
    EngineReady
    | EngineLost
    | RequestArrived
    | RequestCancelled
    | RequestProgressed
    | RequestFinished
    | RequestFailed
    | SlotsReported
    | EngineLoading
    | ProfileUnloaded
    | MemorySampled
    | ReclaimEnded
    | Tick
)


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

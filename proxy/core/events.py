"""What happens: all that the scheduler is ever told. What it answers with is in ``actions``.

Times are seconds on one monotonic clock that the caller owns; the scheduler never reads one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from slotwise.policies.admission import Growth
from slotwise.policies.types import Request
from slotwise.proxy.core.actions import Level


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

"""What may come in at all: windows, the unified pool, and the machine's memory.

Memory: ``available`` is MemAvailable and nothing else. A request reserves what it can *still* make
grow; it is admitted if what is available, less all that is reserved, less its own need, stays at or
above the floor. No figure at all counts as no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotwise.policies.params import Params
from slotwise.policies.types import Request

_MIN_ROOM = 1024  # tokens of an answer that a slot should have room for
MARGIN = 64  # tokens of a template that the count cannot foresee


def room_wanted(request: Request, params: Params) -> int:
    """Tokens a request should have room to generate: its limit, or the usual length at most."""
    if not params.window:
        return 0
    asked = request.max_tokens
    if asked is None or asked < 0:
        return _MIN_ROOM
    return min(asked, _MIN_ROOM)


def fits(request: Request, window: int, params: Params) -> bool:
    """Whether a slot of this window may take it, where another has a larger one (the largest
    takes whatever the engine would: a prompt shorter than its window)."""
    n = len(request.tokens)
    if n >= window:
        return False
    if not params.window:
        return True
    return n + room_wanted(request, params) + MARGIN <= window


def granted_tokens(request: Request, window: int, params: Params) -> int | None:
    """``max_tokens`` cut to the room behind the prompt; None: leave it as it was asked."""
    asked = request.max_tokens
    if not params.window or asked is None or asked < 0:
        return None
    room = max(1, window - len(request.tokens) - MARGIN)
    return room if asked > room else None


def pool_need(request: Request, params: Params) -> int:
    """Tokens of a unified KV pool that a running request may come to use."""
    return len(request.tokens) + room_wanted(request, params) + MARGIN


# ---------------------------------------------------------------- memory

GIB = 2**30
MIB = 2**20
_FLOOR_GIB, _FLOOR_SHARE = 15, 0.12  # of MemTotal
_STALLED_PERCENT = 10.0  # of the time all tasks stood still for memory, over 10 s
_MORE_CHECKPOINTS = 4  # beside those a step apart: the first, the last user turn, two near the end
# Measured at 30,000 tokens: 130 bytes a token stay in the engine for each slot and thread that it
# uses for the first time (the parsed body, the ids), 30 here.
_BUFFER_BYTES, _BUFFER_BYTES_PER_TOKEN = 1 * MIB, 256
SCRATCH_GUESS_BYTES = 256 * MIB  # what an engine takes at its first request, until it was seen


@dataclass(frozen=True, slots=True)
class Limits:
    """By which figures a machine's memory is watched; one machine, one set of them."""

    floor_gib: float | None = None  # None: the smaller of 15 GiB and 12 % of MemTotal
    hard_floor_gib: float | None = None  # None: two thirds of the floor
    margin_gib: float = 4.0
    stale_s: float = 2.0  # an older sample counts as no memory
    hard_samples: int = 3  # in a row below the hard floor, before anything is taken back

    def floor_bytes(self, total_bytes: int) -> int:
        """What stays free: below it nothing new is admitted."""
        if self.floor_gib is not None:
            return round(self.floor_gib * GIB)
        return min(_FLOOR_GIB * GIB, round(_FLOOR_SHARE * total_bytes))

    def hard_floor_bytes(self, total_bytes: int) -> int:
        """Below it memory is taken back, and in the end an engine is stopped."""
        floor = self.floor_bytes(total_bytes)
        if self.hard_floor_gib is not None:
            return min(floor, round(self.hard_floor_gib * GIB))
        return floor * 2 // 3


@dataclass(frozen=True, slots=True)
class Growth:
    """What an engine can still take once it has loaded. Its KV is not among it: llama.cpp takes
    and clears all of it at load, so MemAvailable has it already."""

    checkpoint_bytes: int = 0  # of one; 0: the model can be rolled back and needs none
    checkpoints: int = 32  # that a slot keeps at most
    checkpoint_step: int = 8192  # tokens between two of them
    cache_ram_bytes: int = 0  # the RAM cache's limit
    kv_bytes_per_token: int = 0  # of a state that goes there
    scratch_bytes: int = SCRATCH_GUESS_BYTES  # taken at the first request
    most_bytes: int | None = None  # its declared peak less what it took at load


@dataclass(frozen=True, slots=True)
class Need:
    """What a request may make grow, by part (bytes)."""

    checkpoints: int = 0
    cache: int = 0
    scratch: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        return self.checkpoints + self.cache + self.scratch + self.buffers

    def cut_to(self, most: int) -> Need:
        """The same within ``most`` bytes in all; the parts that are least sure go first."""
        left = max(0, most)
        kept = {}
        for part in ("buffers", "scratch", "checkpoints", "cache"):
            kept[part] = min(getattr(self, part), left)
            left -= kept[part]
        return Need(**kept)


def new_checkpoints(uncached: int, growth: Growth) -> int:
    """How many checkpoints a prompt may leave behind of which so many tokens are computed."""
    if not growth.checkpoint_bytes or uncached <= 0:
        return 0
    return min(growth.checkpoints, uncached // max(1, growth.checkpoint_step) + _MORE_CHECKPOINTS)


def buffer_bytes(tokens: int) -> int:
    """The buffers of proxy and engine for a prompt of so many tokens."""
    return _BUFFER_BYTES + _BUFFER_BYTES_PER_TOKEN * tokens


@dataclass(frozen=True, slots=True)
class Headroom:
    """What may be admitted against: one sample and what is promised already (bytes)."""

    available: int
    floor: int
    reserved: int  # promised to running requests, and not taken yet
    loading: int = 0  # that engines which load are still to take
    margin: int = 0
    stalled: float = 0.0  # percent of the last 10 s in which all tasks stood still for memory

    @property
    def free(self) -> int:
        """What a new request may make grow; negative below the floor."""
        return self.available - self.reserved - self.loading - self.floor

    @property
    def pressed(self) -> bool:
        """The kernel's own word, near the floor: far above it others may be pressed, not we."""
        return self.stalled >= _STALLED_PERCENT and self.available < self.floor + self.margin


def memory_shortage(need_bytes: int, room: Headroom) -> str | None:
    """Why a request that needs so much does not fit, in words; None: it fits."""
    if need_bytes <= room.free and not room.pressed:
        return None
    reported = f"MemAvailable {gib(room.available)} GiB, floor {gib(room.floor)}"
    promised = room.reserved + room.loading
    if promised >= MIB:
        reported += f", promised {gib(promised)}"
    if need_bytes:
        small = need_bytes < GIB // 10
        reported += ", this request needs "
        reported += f"{max(1, round(need_bytes / MIB))} MiB" if small else gib(need_bytes)
    if need_bytes <= room.free:
        reported += f", tasks stand still for it {room.stalled:.0f} % of the time"
    return f"memory is almost full ({reported})"


def gib(n_bytes: int) -> str:
    """A size in GiB as people read it."""
    return f"{n_bytes / GIB:.1f}"

"""What an engine of the simulator is given and what it says: its launch line, requests, outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from slotwise.bench.rows import Row

# Tokens: what llama-server takes without -b, and what slotwise gives it.
BARE_BATCH, SLOTWISE_BATCH = 2048, 512


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The launch line, as far as it matters."""

    slots: int
    park_tokens: int = 0  # --cache-ram
    idle_snapshots: bool = True  # off: --no-cache-idle-slots
    batch_tokens: int = BARE_BATCH  # -b
    streams: bool = False  # whole answers too, and tells its progress: it notices who left


@dataclass(slots=True)
class Job:
    """One request at the engine. ``output`` tokens are generated, one at least."""

    id: str
    row: Row
    output: int
    pin: int | None  # None: the engine chooses
    empties: bool = False  # its slot is given a state of one token before it is sent
    slot: int = -1
    cached: int = 0
    begun: float = -1.0  # s, when it got its slot
    started: float = -1.0  # s, since when the engine counts its prompt's time
    done: int = 0  # prompt tokens in the KV
    left: int = 0  # tokens still to generate
    streams: bool = True  # else one answer at the end
    abandoned: float | None = None  # s, when its client left
    told: bool = False  # each batch is reported to the client, whoever it is


class Output(NamedTuple):
    """What the engine said at the end of a batch."""

    job: Job
    first: bool  # its first token
    finished: bool

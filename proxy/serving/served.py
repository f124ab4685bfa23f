"""What is served, one life of one engine, and the look at an engine before it is used."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Literal

from slotwise.policies.admission import Growth
from slotwise.policies.params import Params
from slotwise.proxy.chat.kinds import Patterns
from slotwise.proxy.chat.normalize import Normalize
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.probe import ProbeResult, probe
from slotwise.proxy.engine.slots_poller import SlotsPoller
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.tokens.encoders import Source

log = logging.getLogger(__name__)

_BUSY_PROBES = 30  # how often an engine at work for others is asked again before it is used


@dataclass(frozen=True)
class ServedProfile:
    """What the proxy has to know of a profile."""

    name: str
    aliases: tuple[str, ...] = ()
    params: Params = field(default_factory=Params)
    cache_ram_mib: int = 0
    kv_unified: bool = False
    windows: tuple[int, ...] | None = None  # tokens by id_slot; None: the engine's own
    tokenizer: Source = field(default_factory=Source)
    normalize: Normalize = field(default_factory=Normalize)
    kinds: Patterns = field(default_factory=Patterns)
    growth: Growth = field(default_factory=Growth)  # what its engine may take after its load
    peak_bytes: int | None = None  # what its engine takes at most, all in all
    build: str = ""  # of its engine, as far as whoever starts it knows


@dataclass
class EngineRun:
    """What is known of it. A new start is a new life: nothing is carried over."""

    name: str
    profile: str
    state: Literal["starting", "probing", "up", "down"]
    text: str  # a sentence for the status page
    client: EngineClient | None = None
    poller: SlotsPoller | None = None
    probe: ProbeResult | None = None
    models: dict[str, Any] | None = None  # its own /v1/models


def build_of(probe: ProbeResult | None, served: ServedProfile) -> str:
    """Which llama.cpp it is: by its own word, else by who starts it; empty: nobody can tell."""
    reported = str(probe.props.get("build_info") or "") if probe is not None else ""
    # What llama.cpp says where its sources were built outside git, as a wheel's are.
    return served.build if reported in ("", "b0-unknown") else reported


async def look_at(life: EngineRun, client: EngineClient, pause_s: float) -> ProbeResult:
    """Probe it, with ``pause_s`` between two tries while others use it; keep its model list."""
    result = await probe(client)
    for _ in range(_BUSY_PROBES):
        if result.idle or life.state != "probing":
            break
        life.text = result.text
        await asyncio.sleep(pause_s)
        result = await probe(client)
    if result.reachable:
        try:
            life.models = await client.models()
        except (EngineUnreachableError, UpstreamError) as error:
            log.warning("engine %s: no model list: %s", life.name, error)
    return result

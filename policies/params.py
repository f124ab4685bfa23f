"""Every knob of the rules with its default, unit and reason: the one place for numbers.

Sections mirror the rules; each rule has ``enabled`` for an A/B. :func:`from_mapping` builds the
parameters from a profile's ``policy`` section and reports every fault at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def _knob(default: Any, unit: str, low: float, high: float, why: str) -> Any:
    """A dataclass field with its unit, its bounds (inclusive) and the reason for its default."""
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "why": why})


def _switch(why: str, default: bool = True) -> Any:
    return field(default=default, metadata={"unit": "switch", "why": why})


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: prefill of tokens n0..n1 is ``c + a (n1-n0) + b (n1^2-n0^2)/2``.

    The defaults reproduce a published curve of a 125B/6B-active MoE on GB10 within 2 %:
    23,581 tokens in 55.7 s, the marginal rate falling from 634 to 297 tok/s.
    """

    prefill_c_s: float = _knob(1.15, "s", 0, 60, "fixed cost of starting a prefill")
    prefill_a_s: float = _knob(1.05e-3, "s/token", 0, 1, "at the start: 950 tok/s")
    prefill_b_s: float = _knob(1.1e-7, "s/token^2", 0, 1e-3, "attention grows with depth")
    decode_s: float = _knob(0.042, "s/token", 0, 10, "23.8 tok/s at one slot")
    decode_more_s: float = _knob(0.045, "s/token", 0, 10, "each further sequence adds")
    expected_output: int = _knob(512, "tokens", 1, 1_000_000, "where a request names no limit")
    fit: bool = _switch("off: these values stay; on: they are the first, the engine tells more")
    fit_requests: int = _knob(64, "requests", 2, 100_000, "what older ones told fades")


@dataclass(frozen=True, slots=True)
class Home:
    """Rule 3: a conversation returns to the slot that holds it."""

    enabled: bool = _switch("off: a conversation is placed like a newcomer")
    chunk_tokens: int = _knob(512, "tokens", 0, 65536, "templates rewrite the end of a turn")
    branch_share: float = _knob(0.5, "ratio", 0, 1, "an edit that keeps less starts afresh")
    by_session: bool = _switch("off: only tokens tell a conversation, not who asks")
    patience: bool = _switch("off: a busy home is left at once")
    patience_max_s: float = _knob(30, "s", 0, 3600, "a long re-read is worth half a minute")
    home_max_wait_s: float = _knob(300, "s", 0, 86400, "the bound of the wait for a busy home")


@dataclass(frozen=True, slots=True)
class Guest:
    """Rule 4: short work that shares little sits where it destroys little."""

    enabled: bool = _switch("off: short work is placed like any newcomer")
    guest_max_tokens: int = _knob(2048, "tokens", 0, 1_000_000, "titles, tags, commit messages")
    resident_share: float = _knob(0.25, "ratio", 0, 1, "small beside the largest resident")
    protect_s: float = _knob(600, "s", 0, 86400, "a recent conversation is left alone")
    break_after_s: float = _knob(0, "s", 0, 3600, "before that it displaces nobody")
    break_ratio: float = _knob(2, "s/s", 0, 1000, "seconds destroyed per second waited")
    follow: bool = _switch("off: it does not wait for the slot that another guest has now")
    guest_max_wait_s: float = _knob(60, "s", 0, 3600, "then it takes the cheapest slot")


@dataclass(frozen=True, slots=True)
class Affinity:
    """Rule 5: the slot that costs the fewest seconds, what it destroys included."""

    enabled: bool = _switch("off: the least recently used idle slot")
    destruction: float = _knob(1, "ratio", 0, 100, "weight of what is destroyed; 0: pure prefix")
    return_odds: float = _knob(4, "ratio", 0, 1000, "conversations of several turns that return")
    return_gap_s: float = _knob(60, "s", 0.001, 86400, "typical pause, until some were seen")
    tools_odds: float = _knob(20, "ratio", 0, 1000, "those whose answer asked for tools")
    tools_gap_s: float = _knob(10, "s", 0.001, 86400, "their typical pause, until some were seen")
    by_tools: bool = _switch("off: every answer is followed by the same pause")
    return_gaps: float = _knob(1, "pauses", 0.01, 1000, "after which the odds are halved")
    return_power: float = _knob(2, "exponent", 0.1, 10, "how fast they fall after that")
    horizon_s: float = _knob(150, "s", 0, 864000, "a return later than this is no loss")
    learn_gap: bool = _switch("off: the typical pauses stay as given")
    slot_order: bool = _switch("off: what is read in other slots counts for nothing")
    rent: bool = _switch("off: what a kept slot makes others read again counts for nothing")
    protect_live: bool = _switch("off: a conversation may be displaced beside an empty slot")
    live_s: float = _knob(60, "s", 0, 86400, "how long a single turn counts as live")
    expire_s: float = _knob(1800, "s", 1, 864000, "a conversation idle this long has ended")


@dataclass(frozen=True, slots=True)
class Window:
    """Rules 1 and 6: prompt and room choose the slot; ``max_tokens`` is cut to the room."""

    enabled: bool = _switch("off: only a prompt longer than the window is kept away")
    min_room: int = _knob(1024, "tokens", 0, 1_000_000, "room asked for, at most")
    margin: int = _knob(64, "tokens", 0, 65536, "template tokens the count cannot foresee")
    cut_max_tokens: bool = _switch("off: max_tokens goes to the engine as it came")


@dataclass(frozen=True, slots=True)
class Order:
    """Who goes first."""

    enabled: bool = _switch("off: first come, first served")
    promote_s: float = _knob(5, "s", 0, 3600, "a guest that waited this long goes first")
    max_overtake_s: float = _knob(300, "s", 0, 3600, "nobody is overtaken for longer")
    by_session: bool = _switch("on: by the conversation's first request, not its own", False)
    by_service: bool = _switch("off: all keys are alike")
    service_half_life_s: float = _knob(60, "s", 1, 86400, "what a key was served is forgotten")
    service_step_s: float = _knob(24, "s", 0.001, 86400, "less is no difference between keys")
    background: bool = _switch("off: side jobs start beside a prompt that is being read")
    background_max_wait_s: float = _knob(120, "s", 0, 86400, "the bound of a side job's wait")


_COPIED_TPS = 200_000  # tokens/s, where nobody knows the model's bytes a token


@dataclass(frozen=True, slots=True)
class Keep:
    """An idle slot is kept for its owner's next turn while more conversations live than fit."""

    enabled: bool = _switch("off: an idle slot is anybody's")
    keep_s: float = _knob(60, "s", 0, 3600, "nine of ten tool calls return within a minute")
    keep_gaps: float = _knob(20, "pauses", 0, 1000, "nor longer than so many typical pauses")
    above: float = _knob(0.5, "ratio", 0, 100, "of live contexts over what slots and park hold")
    worth: float = _knob(30, "s/s", 0, 1e6, "waits so long for each second that would be lost")
    keep_max_wait_s: float = _knob(300, "s", 0, 86400, "the bound of a newcomer's wait for it")
    park: bool = _switch("off: what the engine's RAM cache holds is not counted on")
    choose: bool = _switch("off: what a slot holds is saved there, whatever it is worth")
    park_tokens: int = _knob(0, "tokens", 0, 1_000_000_000, "what that holds; 0: by its MiB")
    restore_tps: float = _knob(0, "tokens/s", 0, 1e9, "copied from there; 0: by the model's bytes")

    def copy_s(self, tokens: int) -> float:
        """Seconds to copy a state of so many tokens to the RAM cache or back."""
        return tokens / (self.restore_tps or _COPIED_TPS)


@dataclass(frozen=True, slots=True)
class Cap:
    """New conversations wait while those that live fill what slots and park can keep warm."""

    enabled: bool = _switch("off: every conversation starts at once")
    admit_below: float = _knob(0.85, "ratio", 0, 100, "of live contexts: starts again below")
    stop_at: float = _knob(0.95, "ratio", 0, 100, "of live contexts: stops at")
    cap_min_wait_s: float = _knob(30, "s", 0, 86400, "it starts after three times its own run")
    cap_max_wait_s: float = _knob(300, "s", 0, 86400, "but after this at the latest")


@dataclass(frozen=True, slots=True)
class Cold:
    """One long prompt is read at a time: each stalls every stream of the engine."""

    enabled: bool = _switch("off: as many as run")
    max_cold_prefills: int = _knob(1, "requests", 1, 256, "they share one compute")
    cold_tokens: int = _knob(2048, "tokens", 0, 1_000_000, "uncached; less is read in passing")
    cold_max_wait_s: float = _knob(300, "s", 0, 86400, "the bound of the wait")


@dataclass(frozen=True, slots=True)
class Queue:
    """Bounds: every wait ends."""

    max_running: int = _knob(0, "requests", 0, 256, "0: all slots; fewer while not all stays warm")
    max_waiting: int = _knob(256, "requests", 1, 100_000, "beyond it 503")
    max_waiting_per_key: int = _knob(64, "requests", 1, 100_000, "beyond it 429")
    bound_reads: float = _knob(10, "reads", 0, 1000, "of a prompt; shorter bounds are that long")
    queue_timeout_s: float = _knob(600, "s", 0.01, 86400, "longest wait of a non-streamed request")
    request_timeout_s: float = _knob(3600, "s", 0.01, 864000, "longest life of any request")
    engine_silence_s: float = _knob(300, "s", 0.01, 86400, "a running request that does not go on")


@dataclass(frozen=True, slots=True)
class Params:
    """All knobs of one profile."""

    cost: Cost = field(default_factory=Cost)
    home: Home = field(default_factory=Home)
    guest: Guest = field(default_factory=Guest)
    affinity: Affinity = field(default_factory=Affinity)
    window: Window = field(default_factory=Window)
    order: Order = field(default_factory=Order)
    keep: Keep = field(default_factory=Keep)
    cap: Cap = field(default_factory=Cap)
    cold: Cold = field(default_factory=Cold)
    queue: Queue = field(default_factory=Queue)


def from_mapping(given: Mapping[str, Any], path: str = "policy") -> tuple[Params, list[str]]:
    """Parameters from nested plain data; faults name the YAML path, the value and the limit.

    Unknown keys, wrong types and values outside their bounds are faults; the defaults stand in
    for them, so that all faults come back at once.
    """
    faults: list[str] = []
    sections: dict[str, Any] = {}
    known = {f.name: f.default_factory for f in fields(Params)}
    for name, values in given.items():
        where = f"{path}.{name}"
        factory = known.get(name)
        if factory is None:
            faults.append(f"{where}: unknown section, expected one of {', '.join(known)}")
        elif not isinstance(values, Mapping):
            faults.append(f"{where}: expected a mapping, got {values!r}")
        else:
            sections[name] = _section(factory, values, where, faults)
    return Params(**sections), faults


def _section(cls: Any, values: Mapping[str, Any], path: str, faults: list[str]) -> Any:
    known = {f.name: f for f in fields(cls)}
    accepted: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            faults.append(f"{path}.{name}: unknown key, expected one of {', '.join(known)}")
            continue
        fault = _fault(known[name], value)
        if fault:
            faults.append(f"{path}.{name}: {fault}")
        else:
            accepted[name] = value
    return cls(**accepted)


def _fault(knob: Any, value: Any) -> str | None:
    """What is wrong with this value for this knob, or None."""
    if isinstance(knob.default, bool):
        return None if isinstance(value, bool) else f"expected true or false, got {value!r}"
    whole = isinstance(knob.default, int) and knob.metadata["unit"] in ("tokens", "requests")
    allowed = (int,) if whole else (int, float)
    is_number = isinstance(value, allowed) and not isinstance(value, bool)
    # A whole number may be too large to be asked whether it is finite.
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        return f"expected a {'whole ' if whole else ''}number, got {value!r}"
    low, high = knob.metadata["low"], knob.metadata["high"]
    if not low <= value <= high:
        return f"expected {low:g} to {high:g} {knob.metadata['unit']}, got {value!r}"
    return None

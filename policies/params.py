"""What a profile's ``policy`` may say: a dozen numbers and a switch for each rule.

All other numbers are constants beside their rule, with the reason. :func:`from_mapping` builds the
parameters and reports every fault at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


def _knob(default: Any, unit: str, low: float, high: float, why: str) -> Any:
    """A dataclass field with its unit, its bounds (inclusive) and the reason for its default."""
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "why": why})


def _switch(why: str) -> Any:
    return field(default=True, metadata={"unit": "switch", "why": why})


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds: prefill of tokens n0..n1 is ``c + a (n1-n0) + b (n1^2-n0^2)/2``.

    The defaults reproduce a published curve of a 125B/6B-active MoE on GB10 within 2 %:
    23,581 tokens in 55.7 s, the marginal rate falling from 634 to 297 tok/s.
    """

    prefill_c_s: float = 1.15  # starting a prefill
    prefill_a_s: float = 1.05e-3  # a token at the start
    prefill_b_s: float = 1.1e-7  # and by how much each further token is dearer
    decode_s: float = 0.042  # a token of an answer, where one sequence runs
    decode_more_s: float = 0.045  # each further sequence adds
    expected_output: int = 512  # tokens of an answer whose request names no limit

    @classmethod
    def of_rates(cls, prefill_tps: float, decode_tps: float) -> Cost:
        """The default curve at other rates: of a prompt's first tokens, and of one answer."""
        scaled = cls().scaled(PREFILL_TPS / prefill_tps, DECODE_TPS / decode_tps)
        return replace(scaled, prefill_c_s=_START_STEPS / decode_tps)

    def scaled(self, prefill: float, decode: float, start: float = 1.0) -> Cost:
        """The same with prefill, decode and the start of a prefill so many times as long."""
        return replace(
            self,
            prefill_c_s=self.prefill_c_s * start,
            prefill_a_s=self.prefill_a_s * prefill,
            prefill_b_s=self.prefill_b_s * prefill,
            decode_s=self.decode_s * decode,
            decode_more_s=self.decode_more_s * decode,
        )


PREFILL_TPS, DECODE_TPS = 950.0, 24.0  # of the default costs, rounded
# Decode steps that starting a prefill takes: 4 to 6 on two engines that were measured, 27 on the
# published curve.
_START_STEPS = 5.0
_COPIED_TPS = 200_000  # tokens/s, where nobody knows the model's bytes a token


@dataclass(frozen=True, slots=True)
class Params:
    """The rules of one profile."""

    max_running: int = _knob(0, "requests", 0, 256, "0: all slots; fewer while not all stays warm")
    max_waiting: int = _knob(256, "requests", 1, 100_000, "beyond it 503; 429 at a quarter a key")
    max_wait_s: float = _knob(300, "s", 0.01, 86400, "longest wait that a rule imposes")
    request_timeout_s: float = _knob(3600, "s", 0.01, 864000, "longest life of any request")
    engine_silence_s: float = _knob(300, "s", 0.01, 86400, "a running request that does not go on")
    guest_max_tokens: int = _knob(2048, "tokens", 0, 1_000_000, "titles, tags, commit messages")
    keep_s: float = _knob(60, "s", 0, 3600, "nine of ten tool calls return within a minute")
    cold_tokens: int = _knob(2048, "tokens", 0, 1_000_000, "uncached; less is read in passing")
    chunk_tokens: int = _knob(512, "tokens", 0, 65536, "templates rewrite the end of a turn")
    prefill_tps: float = _knob(PREFILL_TPS, "tokens/s", 1, 1e7, "first value; the engine corrects")
    decode_tps: float = _knob(DECODE_TPS, "tokens/s", 0.1, 1e6, "first value; the engine corrects")
    cache_tokens: int = _knob(0, "tokens", 0, 1_000_000_000, "of the RAM cache; 0: by its MiB")

    window: bool = _switch("off: a prompt need only fit; max_tokens is not cut to the room")
    home: bool = _switch("off: a conversation is placed like a newcomer")
    guest: bool = _switch("off: short work is placed like any newcomer")
    affinity: bool = _switch("off: the least recently used idle slot")
    order: bool = _switch("off: first come, first served")
    keep: bool = _switch("off: an idle slot is anybody's")
    cold: bool = _switch("off: as many long prompts are read at a time as run")
    ram_cache: bool = _switch("off: what the engine's RAM cache holds is not counted on")

    # Not a profile's: these follow from the engine.
    cost: Cost = field(default_factory=Cost)
    copy_tps: float = _COPIED_TPS  # tokens/s, to or from the RAM cache
    long_reads: float = 10.0  # see bounds.py

    @property
    def max_waiting_per_key(self) -> int:
        """Requests of one key that may wait; beyond it 429."""
        return max(1, self.max_waiting // 4)

    @property
    def whole_wait_s(self) -> float:
        """Longest wait of a request that is not streamed (s)."""
        return min(2 * self.max_wait_s, self.request_timeout_s)

    @property
    def guest_wait_s(self) -> float:
        """Longest wait of a guest for a slot (s)."""
        return self.max_wait_s / 5

    @property
    def side_job_wait_s(self) -> float:
        """Longest wait of a side job for others' first tokens (s)."""
        return 2 / 5 * self.max_wait_s

    def copy_s(self, tokens: int) -> float:
        """Seconds to copy a state of so many tokens to the RAM cache or back."""
        return tokens / self.copy_tps


KNOBS = {knob.name: knob for knob in fields(Params) if knob.metadata}

# What earlier profiles said, and what says it now; None: a constant, or not needed any more.
_SECTIONS = {"queue", "cost", "window", "home", "guest", "affinity", "order", "keep", "cap", "cold"}
_MOVED = {
    **{f"{rule}.enabled": rule for rule in _SECTIONS & KNOBS.keys()},
    **{f"queue.{name}": name for name in ("max_running", "max_waiting", "request_timeout_s")},
    **dict.fromkeys(("queue.queue_timeout_s", "home.home_max_wait_s"), "max_wait_s"),
    **dict.fromkeys(("guest.guest_max_wait_s", "order.max_overtake_s"), "max_wait_s"),
    **dict.fromkeys(("order.background_max_wait_s", "keep.keep_max_wait_s"), "max_wait_s"),
    **dict.fromkeys(("cold.cold_max_wait_s", "cap.cap_max_wait_s"), "max_wait_s"),
    **dict.fromkeys(("cost.prefill_a_s", "cost.prefill_b_s", "cost.prefill_c_s"), "prefill_tps"),
    **dict.fromkeys(("cost.decode_s", "cost.decode_more_s"), "decode_tps"),
    "queue.max_waiting_per_key": "max_waiting",
    "queue.engine_silence_s": "engine_silence_s",
    "guest.guest_max_tokens": "guest_max_tokens",
    "keep.keep_s": "keep_s",
    "keep.park": "ram_cache",
    "keep.park_tokens": "cache_tokens",
    "cold.cold_tokens": "cold_tokens",
    "home.chunk_tokens": "chunk_tokens",
    "window.cut_max_tokens": "window",
}


def from_mapping(given: Mapping[str, Any], path: str = "policy") -> tuple[Params, list[str]]:
    """Parameters from plain data; faults name the YAML path, the value and the limit.

    Unknown keys, wrong types and values outside their bounds are faults; the defaults stand in
    for them, so that all faults come back at once.
    """
    faults: list[str] = []
    accepted: dict[str, Any] = {}
    for name, value in given.items():
        if name in _SECTIONS and isinstance(value, Mapping):
            faults += [_moved(f"{name}.{key}", path) for key in value]
        elif name not in KNOBS:
            faults.append(f"{path}.{name}: unknown key, expected one of {', '.join(KNOBS)}")
        elif fault := _fault(KNOBS[name], value):
            faults.append(f"{path}.{name}: {fault}")
        else:
            accepted[name] = value
    params = Params(**accepted)
    if {"prefill_tps", "decode_tps"} & accepted.keys():
        params = replace(params, cost=Cost.of_rates(params.prefill_tps, params.decode_tps))
    return params, faults


def _moved(old: str, path: str) -> str:
    new = _MOVED.get(old)
    if new is None:
        return f"{path}.{old}: no longer a setting; remove it"
    return f"{path}.{old}: is now {path}.{new} (docs/profiles.md)"


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

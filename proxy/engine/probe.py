"""Asks a running engine whether pins hold and whether idle slots keep what they hold.

Both are launch flags, and neither is told by any endpoint; so it is tried, on an idle engine: a
short prompt is pinned to the last slot, another to slot 0, then the first one, grown by a few
tokens, to the last slot again. It must be found there. A faulty launch is thus said in one
sentence at the start, in place of a low hit rate for weeks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError

_TIMEOUT_S = 60.0
_ENOUGH_TOKENS = 24
_BAD_ANSWERS = (
    EngineUnreachableError,
    UpstreamError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
# A model may compute its last tokens again. One that cannot roll back (a sliding window, a
# recurrent state) resumes from a checkpoint, and the engine makes that four tokens before a
# prompt's end: it keeps five fewer. A slot that was cleared keeps none.
_SLACK_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the engine is, as far as asking tells. ``reachable`` False: it did not answer."""

    reachable: bool
    pins: bool
    text: str  # one sentence
    windows: tuple[int, ...] = ()  # tokens, by id_slot
    props: dict[str, Any] = field(default_factory=dict)
    idle: bool = True  # False: at work for somebody else, so it was not probed
    empties: bool = False  # its slots can be emptied with EngineClient.empty


async def probe(engine: EngineClient) -> ProbeResult:
    """Ask ``/props`` and ``/slots``, then try a pin; bounded, and never raises for a bad answer."""
    try:
        props = await engine.props()
        slots = await engine.slots()
        windows = _windows(props, slots)
        busy = any(slot.get("is_processing") for slot in slots)
    except _BAD_ANSWERS as error:
        return ProbeResult(False, False, f"the engine cannot be asked: {error}")
    if not windows:
        return ProbeResult(False, False, "the engine has no slots")
    if busy:
        # Without pins nothing is ever pinned to a slot that somebody else keeps busy.
        text = "not probed: the engine is at work for another client"
        return ProbeResult(True, False, text, windows, props, idle=False)
    fault = await _try_pins(engine, len(windows))
    text = fault or "pins hold and idle slots keep what they hold"
    empties = await _try_emptying(engine, {0, len(windows) - 1}) and fault is None
    return ProbeResult(True, fault is None, text, windows, props, empties=empties)


def _windows(props: Any, slots: Any) -> tuple[int, ...]:
    """The window of each slot in tokens, by id."""
    whole = props["default_generation_settings"]["n_ctx"]
    by_id = {slot["id"]: int(slot.get("n_ctx", whole)) for slot in slots}
    if int(props["total_slots"]) != len(by_id) or sorted(by_id) != list(range(len(by_id))):
        raise ValueError(f"/props tells of {props['total_slots']} slots, /slots of {len(by_id)}")
    return tuple(by_id[i] for i in range(len(by_id)))


async def _try_pins(engine: EngineClient, n_slots: int) -> str | None:
    """What is wrong with pinning here, or None."""
    last = n_slots - 1
    try:
        first = await engine.tokenize("The quick brown fox jumps over the lazy dog. " * 8)
        other = await engine.tokenize("Pack my box with five dozen liquor jugs. " * 4)
        if len(first) <= _ENOUGH_TOKENS:
            return f"/tokenize gave {len(first)} tokens for a text of 360 characters"
        await _pinned(engine, first, last)
        if last:
            await _pinned(engine, other, 0)
        grown = await _pinned(engine, first + other[:8], last)
        slots = await engine.slots()
        return _fault(grown, slots, last, len(first))
    except _BAD_ANSWERS as error:
        return f"the probe failed: {error!r}"


async def _try_emptying(engine: EngineClient, used: set[int]) -> bool:
    """Erase the slots used; then make the state that :meth:`EngineClient.empty` puts into one, and
    try that. Without a directory for such files the engine refuses, and the text just stays."""
    try:
        if not await _erase(engine, used):
            return False
        word = await engine.tokenize(" fox")
        await _pinned(engine, word[-1:], 0)
        done = await engine.keep_emptied(0) and await engine.empty(0)
        return await _erase(engine, {0}) and done
    except _BAD_ANSWERS:
        return False


def _fault(grown: dict[str, Any], slots: Any, last: int, n_first: int) -> str | None:
    """What the grown prompt's answer and the slots say; raises for answers of another shape."""
    used = grown.get("id_slot", last)
    if used != last:
        return f"a request pinned to slot {last} was run on slot {used}: pins do not hold"
    cached = int(grown["timings"]["cache_n"])
    if cached < n_first - _SLACK_TOKENS:
        return (
            f"slot {last} kept {cached} of {n_first} tokens for the next turn: idle slots are "
            "cleared (start the engine with -np N, --no-kv-unified and --no-cache-idle-slots)"
        )
    if {slot["id"]: slot for slot in slots}[last].get("n_prompt_tokens", 1) == 0:
        return f"/slots shows slot {last} empty after a request pinned to it"
    return None


async def _pinned(engine: EngineClient, ids: list[int], id_slot: int) -> dict[str, Any]:
    body = {
        "prompt": ids,
        "id_slot": id_slot,
        "n_predict": 1,
        "temperature": 0,
        "cache_prompt": True,
        "stream": False,
    }
    answer = await engine.call("POST", "/completion", body, timeout_s=_TIMEOUT_S)
    if not isinstance(answer, dict):
        raise ValueError("/completion gave no object")
    return answer


async def _erase(engine: EngineClient, ids: set[int]) -> bool:
    """Whether all of them were erased."""
    answers = [
        await engine.exchange("POST", f"/slots/{id_slot}?action=erase", b"{}", timeout_s=10)
        for id_slot in ids
    ]
    return all(answer.is_success for answer in answers)

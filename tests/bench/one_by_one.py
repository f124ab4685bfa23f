"""The scheduler as a choice of slot: one request at a time, in virtual time, without an engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import orjson
from tokenizers import Tokenizer

from slotwise.bench.sim import bounds
from slotwise.bench.trace.rows import Row
from slotwise.bench.trace.trace import Call, Message
from slotwise.policies.params import Params
from slotwise.policies.prefix import EMPTY, pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import (
    Dispatch,
    EngineReady,
    RequestArrived,
    RequestFinished,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.scheduler import Scheduler

WINDOW_TOKENS = 131_072
RUN_S = 1.0  # of each request


def rendered(calls: Iterable[Call], tokenizer: Path) -> list[Row]:
    """The calls as rows in ChatML. Nothing generated is held: answers occur in no later prompt."""
    encoder = Tokenizer.from_file(str(tokenizer))

    @lru_cache(maxsize=100_000)
    def encode(text: str) -> tuple[int, ...]:
        return tuple(encoder.encode(text, add_special_tokens=False).ids)

    def row(call: Call) -> Row:
        tools = f"<|im_start|>system\n{orjson.dumps(call.tools).decode()}<|im_end|>\n"
        ids = [*encode(tools)] if call.tools else []
        first_user_end = 0
        for message in call.messages:
            ids += encode(f"<|im_start|>{message['role']}\n{_body(message)}<|im_end|>\n")
            if not first_user_end and message.get("role") == "user":
                first_user_end = len(ids)
        prompt = pack([*ids, *encode("<|im_start|>assistant\n")])
        turns = 1 + sum(m.get("role") == "assistant" for m in call.messages)
        return Row(call.session, prompt, prompt, first_user_end, turns, call.max_tokens)

    return [row(call) for call in calls]


def _body(message: Message) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = orjson.dumps(content).decode()
    calls = message.get("tool_calls")
    return content + (orjson.dumps(calls).decode() if calls else "")


def reused(rows: Sequence[Row], slots: int, params: Params, think_s: float) -> int:
    """Prompt tokens from the cache; ``think_s``: from a request's end to the next one's arrival."""
    scheduler, now = Scheduler({"p": params}), 0.0
    scheduler.handle(EngineReady("e", "p", (WINDOW_TOKENS,) * slots, None, True), now)
    held, found = [EMPTY] * slots, 0
    for number, row in enumerate(rows):
        request = Request(
            id=f"r{number}",
            profile="p",
            tokens=row.prompt,
            first_user_end=row.first_user_end,
            turns=row.turns,
            max_tokens=row.max_tokens,
            stream=True,
            key="k",
        )
        slot, now = _placed(scheduler, RequestArrived(request), now + think_s)
        cached = bounds.reusable(row.prompt, held[slot])
        held[slot], found, now = row.full, found + cached, now + RUN_S
        answered = len(row.full) - len(row.prompt) + 1
        scheduler.handle(RequestFinished(request.id, len(row.prompt), cached, answered, slot), now)
    return found


def _placed(scheduler: Scheduler, event: RequestArrived, now: float) -> tuple[int, float]:
    """Its slot, and when it got that."""
    actions = scheduler.handle(event, now)
    for _ in range(1000):
        dispatched = [a for a in actions if isinstance(a, Dispatch)]
        if dispatched:
            return dispatched[0].slot.id_slot, now
        now = max(now, min(a.at for a in actions if isinstance(a, WakeAt))) + 1e-3
        actions = scheduler.handle(Tick(), now)
    raise AssertionError(f"{event.request.id} was never placed")

"""A model of one engine for property tests: what its slots truly hold, and when they are busy."""

from __future__ import annotations

from dataclasses import dataclass, field

from slotwise.policies.prefix import Tokens, lcp, pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import SlotReport

ANSWER_ID = 999_999_999  # generated tokens: no prompt of a test contains them


@dataclass
class Slot:
    """``content``: the ids in the KV. ``request``: at work here, its client may have left."""

    content: list[int] = field(default_factory=list)
    request: Request | None = None
    started: bool = False
    abandoned: bool = False


class ModelEngine:
    """Does as llama-server does: keeps the common prefix at the start of a prompt, computes the
    rest in steps, keeps what it has after an abort, and goes on for a while then."""

    def __init__(self, slots: int) -> None:
        self.slots = [Slot() for _ in range(slots)]

    def send(self, request: Request, slot: int) -> None:
        target = self.slots[slot]
        assert target.request is None, f"pinned to the busy slot {slot}"
        target.request, target.started, target.abandoned = request, False, False

    def start(self, slot: int) -> int:
        """Begin the prompt; returns the tokens reused."""
        target = self.slots[slot]
        assert target.request is not None
        ids = target.request.tokens.ids()
        cached = min(lcp(pack(target.content), target.request.tokens), len(ids) - 1)
        target.content = ids[:cached]
        target.started = True
        return cached

    def step(self, slot: int, tokens: int) -> int:
        """Compute some of the prompt; returns the prompt tokens in the KV."""
        target = self.slots[slot]
        assert target.request is not None
        if not target.started:
            self.start(slot)
        ids = target.request.tokens.ids()
        target.content = ids[: min(len(ids), len(target.content) + tokens)]
        return len(target.content)

    def finish(self, slot: int, generated: int) -> None:
        """Prompt and answer are there, but for the last token."""
        target = self.slots[slot]
        assert target.request is not None
        self.step(slot, len(target.request.tokens))
        target.content += [ANSWER_ID] * (generated - 1)
        target.request = None

    def settle(self, slot: int, steps: int) -> None:
        """An abandoned request is noticed, maybe a step later."""
        target = self.slots[slot]
        if target.request is not None and target.abandoned:
            if target.started:
                self.step(slot, steps)
            target.request = None

    def clear(self, slot: int) -> None:
        """A failed decode: the slot is emptied and free."""
        self.slots[slot].content = []
        self.slots[slot].request = None

    def report(self) -> tuple[SlotReport, ...]:
        return tuple(
            SlotReport(i, s.request is not None, len(s.content)) for i, s in enumerate(self.slots)
        )

    def holds(self, slot: int, claimed: Tokens, total: int) -> bool:
        """Whether the slot's content begins with this, and has so many tokens in all."""
        content = self.slots[slot].content
        return content[: len(claimed)] == claimed.ids() and len(content) >= total

"""llama-server's RAM cache of prompts (``--cache-ram``), with a limit in tokens.

It keeps whole states, oldest first. A state that an entry contains is not stored; entries that are
a prefix of a new one are dropped; the oldest go first. An entry is loaded only where it beats what
the slot holds both in the share of itself that is kept and in the share of the prompt that it
covers, and loading moves it out.
"""

from __future__ import annotations

from slotwise.policies.prefix import Tokens, lcp

_LEAST_KEEP = 0.25  # an entry of which less would be kept is not spent on a prompt


class RamCache:
    """``limit_tokens``: 0 keeps nothing."""

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.entries: list[Tokens] = []
        self.tokens = 0

    def save(self, held: Tokens) -> int:
        """Store a slot's state; returns the tokens copied, 0 where there was nothing to do."""
        if not len(held) or len(held) > self.limit_tokens:
            return 0
        shared = [len(held) if entry is held else lcp(entry, held) for entry in self.entries]
        if any(n == len(held) for n in shared):
            return 0
        self.entries = [e for e, n in zip(self.entries, shared, strict=True) if n < len(e)]
        self.entries.append(held)
        self.tokens = sum(map(len, self.entries))
        while self.tokens > self.limit_tokens:
            self.tokens -= len(self.entries.pop(0))
        return len(held)

    def load(self, held: Tokens, prompt: Tokens) -> Tokens | None:
        """Take out the entry that serves the prompt better than what the slot holds, if any."""
        common = lcp(held, prompt)
        keep = common / len(held) if len(held) else -1.0
        similar = common / len(prompt)
        best: Tokens | None = None
        for entry in self.entries:
            common = lcp(entry, prompt)
            entry_keep, entry_similar = common / len(entry), common / len(prompt)
            if entry_keep >= _LEAST_KEEP and entry_keep > keep and entry_similar > similar:
                keep, similar, best = entry_keep, entry_similar, entry
        if best is not None:
            self.entries.remove(best)
            self.tokens -= len(best)
        return best

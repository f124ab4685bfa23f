"""Conversations for tests on a real engine: texts of a wanted length, streams read bit by bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from slotwise.policies.params import from_mapping
from slotwise.proxy.serving.served import ServedProfile
from tests.engine.engines import RunningEngine
from tests.running_proxy import RunningProxy, run_proxy

_WORDS = [
    "self",
    "return",
    "value",
    "import",
    "class",
    "print",
    "list",
    "name",
    "test",
    "data",
    "file",
    "error",
    "call",
    "none",
]

# What the launcher passes to every engine whose slots are pinned.
PINNABLE = ("--no-kv-unified", "--no-cache-idle-slots", "-b", "512", "--metrics", "--slots")
NO_RAM_CACHE = ("--cache-ram", "0", "-sps", "0")
RAM_CACHE = ("--cache-ram", "8192", "-sps", "0.1")

# The tiny model on one core; without it every choice would be weighed with a big model's seconds.
TINY_RATES = {"prefill_tps": 52_000, "decode_tps": 2000}


def words(seed: str, n: int) -> str:
    """``n`` words, one token each or little more; another seed parts at once."""
    rng = random.Random(seed)
    return seed + " " + " ".join(rng.choice(_WORDS) for _ in range(n))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@dataclass
class Conversation:
    """A growing chat; :meth:`say` is its next turn."""

    proxy: RunningProxy
    system: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str, max_tokens: int = 8, **more: Any) -> httpx.Response:
        if not self.messages:
            self.messages.append({"role": "system", "content": self.system})
        self.messages.append(user(text))
        body = {"messages": self.messages, "max_tokens": max_tokens, "temperature": 0, **more}
        answer = self.proxy.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        self.messages.append(answer.json()["choices"][0]["message"])
        return answer


def cached_share(answer: httpx.Response) -> float:
    """Prompt tokens from the cache over all prompt tokens, as the engine reports them."""
    usage = answer.json()["usage"]
    share: float = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return share


def slot_of(answer: httpx.Response) -> str:
    return answer.headers["X-Slotwise-Slot"]


def text_of(answer: httpx.Response) -> str:
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON events of a stream; comments and the end marker are passed over."""
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


@contextmanager
def proxied(engine: RunningEngine, **policy: Any) -> Iterator[RunningProxy]:
    """slotwise in front of one engine; ``policy`` as in a profile."""
    found, faults = from_mapping({**TINY_RATES, **policy})
    assert not faults, faults
    with run_proxy(engine.url, profile=ServedProfile("p", params=found)) as proxy:
        assert proxy.inside(lambda: proxy.driver.engines.lives["p-0"].probe.pins)  # type: ignore[union-attr]
        yield proxy

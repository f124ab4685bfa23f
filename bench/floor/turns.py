"""Turns of made-up clients: what one request is, and how conversations and agents go on.

Earlier answers appear in later prompts as they were generated: an assistant message has as many
words as its turn generated tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from slotwise.bench.workload import text

CHAT, INFILL = "/v1/chat/completions", "/infill"
Message = dict[str, Any]
Lane = list["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. ``output``: tokens that are generated; ``pause_s``: since the answer before it,
    in a lane's first turn since the start."""

    lane: str
    body: Mapping[str, Any]  # without the model
    output: int
    answer: str = ""  # its words, where a later prompt repeats them
    asks_tools: bool = False  # the answer does
    pause_s: float = 0.0
    path: str = CHAT
    gives_up_s: float | None = None  # the client closes after so long, and goes on
    side: bool = False  # a side job: nobody waits for it
    beside: tuple[Turn, ...] = ()  # sent at the same moment


@dataclass(frozen=True, slots=True)
class Draw:
    """What a shape draws its sizes with."""

    rng: Random
    pace: float  # s, the scale of all pauses: about what reading 2,000 tokens takes

    def tokens(self, low: int, high: int) -> int:
        """Small sizes as likely as large ones: uniform in the logarithm."""
        return round(math.exp(self.rng.uniform(math.log(low), math.log(high))))

    def count(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pause_s(self, paces: float) -> float:
        """Around so many paces, log-normal as people's and tools' pauses are."""
        return self.pace * paces * self.rng.lognormvariate(0, 0.6)

    def words(self, low: int, high: int) -> str:
        return self.filler(self.tokens(low, high))

    def filler(self, words: int) -> str:
        return text(words, str(self.rng.random()))


def body(messages: list[Message], stream: bool, limit: int = 0, **fields: Any) -> dict[str, Any]:
    """A chat's request; ``limit``: ``max_tokens``, where it names one."""
    return {
        "messages": list(messages),
        "stream": stream,
        **({"max_tokens": limit} if limit else {}),
        **fields,
    }


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def one_shot(lane: str, system: str, said: str, output: int, stream: bool, **more: Any) -> Turn:
    messages = [message("system", system), message("user", said)]
    return Turn(lane, body(messages, stream, output), output, **more)


def tools(draw: Draw, count: int) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool_{k}", "description": draw.words(30, 120)}}
        for k in range(count)
    ]


def conversation(
    lane: str,
    draw: Draw,
    turns: int,
    head: str,
    first: int,
    grows: tuple[int, int],
    output: tuple[int, int],
    paces: float,
    **fields: Any,
) -> Iterator[Turn]:
    """A chat that grows: the user's words, the answer, the user's next words."""
    messages = [message("system", head)] if head else []
    for k in range(turns):
        messages.append(message("user", draw.filler(first) if not k else draw.words(*grows)))
        n = draw.tokens(*output)
        said = draw.filler(n)
        yield Turn(lane, body(messages, True, **fields), n, said, pause_s=draw.pause_s(paces))
        messages.append(message("assistant", said))


def agent(
    lane: str, draw: Draw, turns: int, head: str, grows: tuple[int, int] = (60, 900)
) -> Iterator[Turn]:
    """Each answer asks for a tool, whose result comes after a short pause."""
    offered = tools(draw, 6)
    messages = [message("system", head), message("user", draw.words(40, 400))]
    for k in range(turns):
        n = draw.tokens(30, 300)
        said, pause_s = draw.filler(n), draw.pause_s(1 if k else 0.5)
        request = body(messages, True, tools=offered)
        yield Turn(lane, request, n, said, asks_tools=k + 1 < turns, pause_s=pause_s)
        call = {
            "id": f"c{k}",
            "type": "function",
            "function": {"name": "tool_1", "arguments": "{}"},
        }
        asked = message("assistant", said) | {"tool_calls": [call]}
        result = message("tool", draw.words(*grows)) | {"tool_call_id": f"c{k}"}
        messages += [asked, result]

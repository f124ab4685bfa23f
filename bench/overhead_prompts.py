"""The prompts of the overhead benchmark, counted by the real engine.

The fake engine counts nothing, so each request carries what it shall report of itself, and slotwise
hears what a real engine would have told it.
"""

from __future__ import annotations

from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import orjson

from slotwise.bench.overhead_load import CHAT, post
from slotwise.bench.prompt_corpus import code_text
from slotwise.policies.prefix import EMPTY, Tokens, lcp, pack

LIMIT_S = 60.0
CHARS_A_TOKEN = 3.4  # of code, by the tiny model's vocabulary
SYSTEM_CHARS, USER_CHARS = 300, 260  # of a short prompt: some 200 tokens with the template
TURN_CHARS = {"assistant": 500, "user": 1200}  # some 500 tokens
LONG_CHARS = {"assistant": 700, "user": 5000}  # of the turns before
SOURCE_CHARS = 2_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its messages, and the tokens a real engine would tell."""

    messages: tuple[dict[str, str], ...]
    prompt_tokens: int
    cached_tokens: int

    def request(self, max_tokens: int, pace_us: int) -> bytes:
        """The bytes to send for a streamed answer of so many events, so far apart."""
        body = {
            **self.shape(),
            "max_tokens": max_tokens,
            "stream": True,
            "pace_us": pace_us,
            "reports": [self.prompt_tokens, self.cached_tokens],
        }
        return post(CHAT, body)

    def shape(self) -> dict[str, Any]:
        """What makes the prompt."""
        return {"messages": list(self.messages)}


class Counter:
    """Asks the engine at ``url`` what messages are in tokens."""

    def __init__(self, url: str) -> None:
        self._engine = HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
        self._last = EMPTY

    def turn(self, messages: list[dict[str, str]]) -> Turn:
        """The turn of these messages; what it shares with the one before is cached."""
        prompt = self._ask("/apply-template", {"messages": messages})["prompt"]
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        tokens: Tokens = pack(self._ask("/tokenize", asked)["tokens"])
        cached = min(lcp(tokens, self._last), len(tokens) - 1)
        self._last = tokens
        return Turn(tuple(messages), len(tokens), cached)

    def _ask(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        try:
            self._engine.request("POST", path, orjson.dumps(body), headers)
            return orjson.loads(self._engine.getresponse().read())
        finally:
            self._engine.close()  # engines close idle connections without notice


class Text:
    """Code, one piece after the other, so that no piece comes twice."""

    def __init__(self) -> None:
        self._text = code_text()[:SOURCE_CHARS]
        self.taken = 0  # characters

    def some(self, chars: int) -> str:
        """The next piece."""
        begin = self.taken % (len(self._text) - chars)
        self.taken += chars
        return self._text[begin : begin + chars]


def short_turns(engine_url: str, count: int) -> list[Turn]:
    """New conversations of about 200 tokens with one system text."""
    text, counter = Text(), Counter(engine_url)
    system = _message("system", text.some(SYSTEM_CHARS))
    return [counter.turn([system, _message("user", text.some(USER_CHARS))]) for _ in range(count)]


def long_turns(engine_url: str, first_tokens: int, count: int) -> list[Turn]:
    """A conversation that has about ``first_tokens`` and adds some 500 a turn."""
    text, counter = Text(), Counter(engine_url)
    messages = [_message("system", text.some(6000)), _message("user", text.some(900))]
    while text.taken < first_tokens * CHARS_A_TOKEN:
        messages += [_message(role, text.some(chars)) for role, chars in LONG_CHARS.items()]
    turns = []
    for _ in range(count):
        turns.append(counter.turn(messages))
        messages += [_message(role, text.some(chars)) for role, chars in TURN_CHARS.items()]
    return turns


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}

"""One whole answer, put together from the events of a stream.

The engine is asked to stream whatever the client asked for: it notices that a client left at the
next token of a stream, where it goes on with a whole answer to its end, and it tells how far it
has read. A client that wants the answer whole gets what the engine would have sent it whole: texts
are joined, lists of tokens too, and of all else the last word counts.
"""

from __future__ import annotations

from typing import Any

import orjson

from slotwise.proxy.engine.sse import DONE, EVENT_END, event_data

_OBJECTS = {"chat.completion.chunk": "chat.completion"}
_JOINED = ("content", "tokens", "completion_probabilities")  # of llama.cpp's own form


class Gathered:
    """Bytes of a stream in, split anywhere; the answer out."""

    def __init__(self, tokens: bool) -> None:
        """``tokens``: the client wants their ids (``return_tokens``), which streams always have."""
        self._tokens = tokens
        self.error: dict[str, Any] | None = None  # what the engine said in place of an answer
        self._pending = bytearray()
        self._top: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._own: dict[str, Any] = {}  # of llama.cpp's own form

    def feed(self, data: bytes) -> None:
        """The next bytes; what is not an event of an answer is left out."""
        searched = max(0, len(self._pending) - 2)  # no event ended before; one may end here
        self._pending += data
        start = 0
        for end in EVENT_END.finditer(self._pending, searched):
            self._event(bytes(self._pending[start : end.start()]))
            start = end.end()
        del self._pending[:start]

    def answer(self) -> bytes:
        """All of it as JSON, as far as it came."""
        top = dict(self._top)
        if self._choices:
            top["choices"] = [_finished(self._choices[index]) for index in sorted(self._choices)]
            top["object"] = _OBJECTS.get(top.get("object", ""), top.get("object"))
        else:
            top.update(self._own)
            if not self._tokens and "tokens" in top:
                top["tokens"] = []
            settings = top.get("generation_settings")
            if isinstance(settings, dict):
                top["generation_settings"] = {**settings, "stream": False}
        return orjson.dumps(top)

    def _event(self, event: bytes) -> None:
        data = event_data(event)
        if data is None or data == DONE:
            return
        try:
            said = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if not isinstance(said, dict):
            return
        error = said.get("error")
        if error:
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        elif "prompt_progress" not in said:
            self._merge(said)

    def _merge(self, said: dict[str, Any]) -> None:
        choices = said.pop("choices", None)
        if choices is None:
            for name in _JOINED:
                part = said.pop(name, None)
                if part is not None:
                    self._own[name] = self._own[name] + part if name in self._own else part
        self._top.update(said)
        for choice in choices or ():
            self._choose(choice)

    def _choose(self, choice: dict[str, Any]) -> None:
        """One choice's next part: a ``delta`` of a message, or a piece of ``text``."""
        known = self._choices.setdefault(choice.get("index", 0), {})
        for name, value in choice.items():
            if name == "delta":
                _add(known.setdefault("message", {}), value)
            elif name == "text":
                known[name] = known.get(name, "") + value
            elif name == "logprobs":
                known[name] = _joined_logprobs(known.get(name), value)
            elif value is not None or name not in known:
                known[name] = value


def _joined_logprobs(before: Any, more: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(more, dict):
        return before if more is None else more
    tokens = (before.get("content") or []) + (more.get("content") or [])
    return {**before, **more, "content": tokens}


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Texts go on; a tool call's parts go to the call of the same index; the role stays."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, {})
            for call in value or ():
                _add_call(calls.setdefault(call.get("index", 0), {}), call)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None or name not in message:
            message[name] = value


def _add_call(call: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name == "function" and isinstance(value, dict):
            function = call.setdefault(name, {})
            for key, text in value.items():
                function[key] = function.get(key, "") + text if isinstance(text, str) else text
        elif name != "index" and value is not None:
            call[name] = value


def _finished(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice.get("message")
    if message is None:
        return choice
    message = dict(message)
    calls = message.pop("tool_calls", None)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    elif message.get("content") is None:
        message["content"] = ""
    if choice.get("logprobs") is None:
        choice = {name: value for name, value in choice.items() if name != "logprobs"}
    return {**choice, "message": message}

"""Reads a stream of server-sent events beside its way to the client, and never changes a byte.

Only one thing is ever taken out: whole progress events, and those only where the proxy itself asked
for them. For that, events are held until complete while the engine still reads the prompt; from the
first event that is an answer on, every byte is returned at once and parsing happens beside. A token
event is not parsed as JSON: a few byte searches tell whether it says anything worth reading, and of
the next one it is enough that it is the same but for its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

MAX_HELD_BYTES = 16 * 1024 * 1024
"""An event longer than this is not looked at, only passed on."""

_MOST_MS = 1e12
_FINISH_CHARS = 40
_T = TypeVar("_T")

EVENT_END = re.compile(rb"\n\r?\n")
DONE = b"[DONE]"
_GENERATED = re.compile(rb'"(?:content|text|reasoning_content|arguments)"\s*:\s*"(?!")')
_TEXT = b'"content":"'  # as llama-server writes it
_PROGRESS = re.compile(  # as llama-server writes it
    rb'"prompt_progress":\{"total":(\d{1,9}),"cache":(\d{1,9}),"processed":(\d{1,9}),"time_ms":\d+\}'
)
_WORTH_PARSING = re.compile(
    rb'"(?:timings"|usage"|error"|prompt_progress"|__verbose"'
    rb'|finish_reason":"'  # on the way it is null
    rb'|stop"\s*:\s*true)'
)


class Progress(NamedTuple):
    """How far the engine has read the prompt, in tokens."""

    total: int
    cached: int
    processed: int


@dataclass(slots=True)
class Seen:
    """What an answer has told so far. Counts are tokens; None: the engine did not say."""

    progress: Progress | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    id_slot: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    finish: str | None = None  # the engine's reason
    generated: int = 0  # events that carried text: at least one token each
    started: bool = False  # an event that is no progress was seen
    done: bool = False  # the engine's end marker was seen
    error: str | None = None  # the message of an error event

    def read(self, answer: Mapping[str, Any]) -> None:
        """Take usage, timings and the slot from one event or from a whole JSON answer."""
        usage = _mapping(answer.get("usage"))
        details = _mapping(usage.get("prompt_tokens_details"))
        timings = _mapping(answer.get("timings"))
        verbose = _mapping(answer.get("__verbose"))
        cached, evaluated = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
        whole = None if cached is None or evaluated is None else cached + evaluated
        self.prompt_tokens = _first(
            whole,
            _count(usage.get("prompt_tokens")),
            _count(answer.get("tokens_evaluated")),
            self.prompt_tokens,
        )
        self.cached_tokens = _first(
            cached, _count(details.get("cached_tokens")), self.cached_tokens
        )
        self.completion_tokens = _first(
            _count(timings.get("predicted_n")),
            _count(usage.get("completion_tokens")),
            _count(answer.get("tokens_predicted")),
            self.completion_tokens,
        )
        self.id_slot = _first(
            _count(answer.get("id_slot")), _count(verbose.get("id_slot")), self.id_slot
        )
        self.prefill_s = _first(_seconds(timings.get("prompt_ms")), self.prefill_s)
        self.decode_s = _first(_seconds(timings.get("predicted_ms")), self.decode_s)
        self.finish = _finish(answer) or self.finish


class SseReader:
    """An incremental reader of one stream; accepts bytes split anywhere."""

    def __init__(self, drop_progress: bool) -> None:
        """``drop_progress``: the proxy asked for progress events, the client did not."""
        self.seen = Seen()
        self._drop = drop_progress
        self._holding = drop_progress
        self._pending = b""
        self._before, self._behind = b"", b""  # of the text in the last event that was only text

    def feed(self, data: bytes) -> bytes:
        """Read the next bytes; returns what goes to the client now, unchanged."""
        if self._holding:
            return self._feed_holding(data)
        self._read_beside(data)
        return data

    def finish(self) -> bytes:
        """The stream ended: what is still held goes out as it came."""
        rest, self._pending = self._pending, b""
        return rest if self._holding else b""

    def _feed_holding(self, data: bytes) -> bytes:
        """Whole events only, so that a progress event can be left out."""
        searched = max(0, len(self._pending) - 2)
        self._pending += data
        out = []
        start = 0
        for end in EVENT_END.finditer(self._pending, searched):
            event = self._pending[start : end.end()]
            start = end.end()
            if not self._is_progress(event):
                out.append(event)
            if self.seen.started:
                break
        self._pending = self._pending[start:]
        if self.seen.started or len(self._pending) > MAX_HELD_BYTES:
            rest, self._pending = self._pending, b""
            self._holding = False
            self._read_beside(rest)
            out.append(rest)
        return b"".join(out)

    def _is_progress(self, event: bytes) -> bool:
        """Read one event; True if it is nothing but a progress report."""
        before = self.seen.started
        self._read_event(event)
        return b'"prompt_progress"' in event and not before and not self.seen.started

    def _read_beside(self, data: bytes) -> None:
        if not self._pending and self._is_like_last(data):
            return
        searched = max(0, len(self._pending) - 2)  # no event ended before; one may end here
        pending = self._pending + data
        start = 0
        for end in EVENT_END.finditer(pending, searched):
            event = pending[start : end.end()]
            if not self._is_like_last(event):
                self._read_event(event)
            start = end.end()
        rest = pending[start:]
        # An event this long is given up, so that memory stays bounded.
        self._pending = rest if len(rest) <= MAX_HELD_BYTES else b""

    def _is_like_last(self, data: bytes) -> bool:
        """Count one more whole event that differs from the last one in nothing but its text."""
        before, behind = self._before, self._behind
        if not before or not data.startswith(before) or not data.endswith(behind):
            return False
        text = data[len(before) : -len(behind)]
        if not text or b'"' in text or b"\n" in text:
            return False
        self.seen.generated += 1
        return True

    def _remember(self, event: bytes) -> None:
        """The frame of an event of one line that says nothing but its text."""
        at = event.find(_TEXT) + len(_TEXT)
        end = event.find(b'"', at)
        if at >= len(_TEXT) and end > at and b"\n" not in event[:-2] and event.endswith(b"\n\n"):
            self._before, self._behind = event[:at], event[end:]

    def _read_event(self, event: bytes) -> None:
        data = event_data(event)
        if data is None:
            return
        if data == DONE:
            self.seen.started = self.seen.done = True
            return
        parsed = None
        reported = _PROGRESS.search(data) if not self.seen.started else None
        if reported is not None:
            self.seen.progress = Progress(int(reported[1]), int(reported[2]), int(reported[3]))
            return
        if _WORTH_PARSING.search(data):
            parsed = _parse(data)
            if parsed is not None:
                self._read_parsed(parsed)
        if parsed is None or not isinstance(parsed.get("prompt_progress"), Mapping):
            self.seen.started = True
            if _GENERATED.search(data):
                self.seen.generated += 1
                if parsed is None:
                    self._remember(event)

    def _read_parsed(self, event: Mapping[str, Any]) -> None:
        progress = event.get("prompt_progress")
        if isinstance(progress, Mapping):
            self.seen.progress = Progress(
                *(_count(progress.get(name)) or 0 for name in ("total", "cache", "processed"))
            )
            return
        if "error" in event and event["error"] is not None:
            self.seen.error = _message(event["error"])
        if event.get("stop") is True:
            self.seen.done = True
        self.seen.read(event)


def event_data(event: bytes) -> bytes | None:
    """The joined data lines of an event; None for one without data (a comment, a ping).

    An ``error:`` line, which older servers write in place of ``data:``, counts as data.
    """
    lines = []
    for line in event.splitlines():
        name, colon, value = line.partition(b":")
        if colon and name in (b"data", b"error"):
            value = value.removeprefix(b" ")
            lines.append(value if name == b"data" else b'{"error":' + value + b"}")
    return b"\n".join(lines) if lines else None


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    """A whole number from 0 up; anything else is as good as not said."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _seconds(ms: Any) -> float | None:
    """Milliseconds as the engine tells them; anything else is as good as not said."""
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < _MOST_MS:
        return None
    return ms / 1000


def _finish(answer: Mapping[str, Any]) -> str | None:
    """Why the answer ended, in OpenAI's word or in llama.cpp's own."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    for said in (_mapping(first).get("finish_reason"), answer.get("stop_type")):
        if isinstance(said, str) and said:
            return said[:_FINISH_CHARS]
    return None


def _first(*values: _T | None) -> _T | None:
    return next((value for value in values if value is not None), None)


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, Mapping) else error
    return str(text)


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

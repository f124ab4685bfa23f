"""A client's body -> what we need to know of it, and the body that the engine gets.

Only what the proxy itself reads is checked here, with an error that names field, value and what
was expected; all else is the engine's to judge. The client's own ``id_slot`` never goes on: a pin
to a busy slot can mix two conversations, so the pin is ours alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from slotwise.policies.types import SlotId
from slotwise.proxy.chat.normalize import Normalize, normalize
from slotwise.proxy.errors import ProxyError, bad

_ID_LIMIT = 2**31


def raw_prompt(prompt: Any) -> str | list[str | int]:
    """One prompt: a text, ids, or a mix of both; anything else is a clear 400."""
    if isinstance(prompt, list) and len(prompt) == 1 and not _is_id(prompt[0]):
        prompt = prompt[0]  # a list of one prompt is that prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        names = ", ".join(sorted(str(name) for name in prompt)) or "no fields"
        raise bad(
            "prompt",
            f"prompt: an object ({names}) is not supported through slotwise, "
            "expected a string, token ids, or a mixed list of both",
        )
    if not isinstance(prompt, list) or not prompt:
        got = "an empty list" if prompt == [] else type(prompt).__name__
        raise bad("prompt", f"prompt: expected a string or a list of token ids, got {got}")
    if any(isinstance(part, list | Mapping) for part in prompt) or all(
        isinstance(part, str) for part in prompt
    ):
        raise bad(
            "prompt",
            f"prompt: a list of {len(prompt)} prompts is not supported through slotwise, "
            "send one request for each",
        )
    for i, part in enumerate(prompt):
        if not isinstance(part, str) and not _is_id(part):
            raise bad(f"prompt[{i}]", f"prompt[{i}]: expected a token id or text, got {part!r:.60}")
    return prompt


def check_infill(body: Mapping[str, Any]) -> None:
    """The fields that the prompt of ``/infill`` is made of; a clear 400 for a wrong one."""
    for name in ("input_prefix", "input_suffix"):
        value = body.get(name)
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, str) or _is_id(part) for part in parts) or _is_id(value):
            got = "none" if value is None else type(value).__name__
            raise bad(name, f"{name}: expected a string or a list of texts and ids, got {got}")
    prompt = body.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise bad("prompt", f"prompt: expected a string, got {type(prompt).__name__}")
    files = body.get("input_extra")
    if files is not None and not isinstance(files, list):
        raise bad("input_extra", f"input_extra: expected a list, got {type(files).__name__}")
    for i, file in enumerate(files or ()):
        if (
            not isinstance(file, Mapping)
            or not isinstance(file.get("text"), str)
            or not isinstance(file.get("filename", ""), str)
        ):
            where = f"input_extra[{i}]"
            raise bad(where, f'{where}: expected {{"text": string, "filename": string}}')


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ID_LIMIT


OFF_LOOP_BYTES = 1024 * 1024
"""A body longer than this is parsed in a thread, so that other streams keep flowing."""

_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")
_CONTENT = (str, list, type(None))  # of a message
_SHOWN_CHARS = 60
_INT_LIMIT = 2**31  # the engine's own
_MAX_DEPTH = 200  # of lists and objects in each other; what writes the body again stops at 254


class Kind(StrEnum):
    """Which of the generating forms a path takes."""

    CHAT = "chat"
    COMPLETION = "completion"  # OpenAI's and llama.cpp's own: both take a prompt
    INFILL = "infill"  # the text before and behind a cursor


@dataclass(frozen=True, slots=True)
class Prepared:
    """One generating request, checked."""

    kind: Kind
    path: str
    profile: str
    fields: dict[str, Any]  # the client's body without the fields that are ours
    stream: bool
    max_tokens: int | None  # None: no limit asked for
    cache_prompt: bool
    injected_progress: bool  # the proxy asked for progress, which the client shall not see
    size_bytes: int
    normalized: tuple[str, ...] = ()  # what was changed in it, by name

    async def upstream(self, slot: SlotId, max_tokens: int | None) -> bytes:
        """The body for the engine, pinned to ``slot`` (-1: it chooses), its limit cut."""
        body = dict(self.fields)
        if slot.id_slot >= 0:
            body["id_slot"] = slot.id_slot
        if self.injected_progress:
            body["return_progress"] = True
        if not self.stream:  # see slotwise.proxy.engine.sse
            body["stream"] = True
            if self.kind is Kind.CHAT:
                body["stream_options"] = {"include_usage": True}
        if self.cut(max_tokens) is not None:
            for name in _LIMITS:
                asked = body.get(name)
                if asked is not None:
                    body[name] = max_tokens if asked < 0 else min(asked, max_tokens or 0)
        content: bytes = await off_loop(orjson.dumps, body, self.size_bytes)
        return content

    def normalize(self, settings: Normalize) -> Prepared:
        """Without the parts that change with every request for nothing, as far as asked for."""
        fields, applied = normalize(self.fields, settings)
        return replace(self, fields=dict(fields), normalized=applied) if applied else self

    def cut(self, max_tokens: int | None) -> str | None:
        """``N -> M`` where the limit asked for was cut to ``max_tokens``, else None."""
        if max_tokens is None or self.max_tokens is None or max_tokens >= self.max_tokens:
            return None
        return f"{self.max_tokens} -> {max_tokens}"


async def parse(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises a 400 that says what is wrong."""
    try:
        body = await off_loop(_loads, raw, len(raw))
    except orjson.JSONDecodeError as error:
        raise bad(None, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad(None, f"the body: expected a JSON object, got {_kind(body)}")
    return body


def _loads(raw: bytes) -> Any:
    body = orjson.loads(raw)
    if raw.count(b"[") + raw.count(b"{") <= _MAX_DEPTH:
        return body  # so few cannot stand so deep in each other
    level = [body] if isinstance(body, dict | list) else []
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return body
    text = f"the body: expected lists and objects at most {_MAX_DEPTH} deep in each other"
    raise bad(None, text)


def _inside(outer: Any) -> list[Any]:
    """The lists and objects that stand directly in this one."""
    parts = outer.values() if isinstance(outer, dict) else outer
    return [part for part in parts if isinstance(part, dict | list)]


async def prepare(kind: Kind, path: str, raw: bytes, names: Mapping[str, str]) -> Prepared:
    """Check a body. ``names``: every name a model answers to -> its profile, in order.

    Raises :class:`ProxyError`: 400 with the field at fault, 404 for an unknown model.
    """
    body = await parse(raw)
    profile = choose_profile(body, names)
    _check_prompt(kind, body)
    for name in ("n", "n_cmpl"):
        copies = _whole(body, name)
        if copies is not None and copies != 1:
            raise bad(name, f"{name}: expected 1 (several answers are not supported), got {copies}")
    stream = _switch(body, "stream", False)
    asked_progress = _switch(body, "return_progress", False)
    limits = {name: limit for name in _LIMITS if (limit := _whole(body, name)) is not None}
    fields = {k: v for k, v in body.items() if k not in ("id_slot", "slot_id")}
    fields.update(limits)
    return Prepared(
        kind=kind,
        path=path,
        profile=profile,
        fields=fields,
        stream=stream,
        max_tokens=None if not limits or min(limits.values()) < 0 else max(limits.values()),
        cache_prompt=_switch(body, "cache_prompt", True),
        injected_progress=not (stream and asked_progress),
        size_bytes=len(raw),
    )


def choose_profile(body: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """The profile that a body's ``model`` asks for; the only one where it names none."""
    model = body.get("model")
    profiles = list(dict.fromkeys(names.values()))
    if model is None or model == "":
        if len(profiles) == 1:
            return profiles[0]
        raise bad("model", f"model: expected one of {', '.join(profiles)}, got none")
    if not isinstance(model, str):
        raise bad("model", f"model: expected a string, got {_kind(model)}")
    if model not in names:
        message = f"model: {_show(model)} is not served, expected one of {', '.join(names)}"
        raise ProxyError(404, "model_not_found", message, param="model")
    return names[model]


def _check_prompt(kind: Kind, body: Mapping[str, Any]) -> None:
    if kind is Kind.INFILL:
        check_infill(body)
        return
    if kind is Kind.COMPLETION:
        if body.get("prompt") is None:
            raise bad("prompt", "prompt: expected a string or token ids, got none")
        return
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        got = "an empty list" if messages == [] else _kind(messages)
        raise bad("messages", f"messages: expected a list of messages, got {got}")
    for i, message in enumerate(messages):
        if (fault := _fault(message)) is not None:
            where = f"messages[{i}]{fault.field}"
            raise bad(where, f"{where}: expected {fault.expected}, got {_kind(fault.got)}")


class _Fault(NamedTuple):
    field: str  # of a message; empty: the message itself
    expected: str
    got: Any


def _fault(message: Any) -> _Fault | None:
    """What is wrong with a message; None: nothing."""
    if not isinstance(message, dict):
        return _Fault("", "an object", message)
    if not isinstance(message.get("role"), str):
        return _Fault(".role", "a string", message.get("role"))
    if not isinstance(message.get("content"), _CONTENT):
        return _Fault(".content", "a string or a list of parts", message["content"])
    return None


def _switch(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(name, f"{name}: expected true or false, got {_show(value)}")
    return value


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    """A whole number; 5.0 is one (JSON has no integers), true is none."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad(name, f"{name}: expected a whole number, got {_show(value)}")
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise bad(name, f"{name}: expected less than {_INT_LIMIT}, got {value:.3g}")
    return value


def _show(value: Any) -> str:
    """The value as the client wrote it, cut to a length that fits a line."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _kind(value: Any) -> str:
    """A word for the type, with the value where it is short."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else _show(value)


async def off_loop(work: Callable[[Any], Any], value: Any, size_bytes: int) -> Any:
    """``work(value)``, in a thread where the body it comes from is long."""
    return work(value) if size_bytes <= OFF_LOOP_BYTES else await asyncio.to_thread(work, value)

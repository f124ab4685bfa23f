"""A chat template rendered here, the way llama-server renders it.

What the server does around a template (``common/chat.cpp``) and where its template language differs
from jinja2 (``common/jinja``: white space, case and length are those of bytes) is done likewise,
for plain requests. Anything else, and anything whose shape was not seen to come out equal, is the
engine's: ``verification.py`` keeps a record of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_SPACE = " \t\n\v\f\r"  # the C library's isspace


def environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """``now``: the local time, for templates that print it."""
    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=("jinja2.ext.loopcontrols",)
    )
    made.filters.update(FILTERS)
    made.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: now().strftime(form)
    )
    return made


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strip(text: str, chars: str = _SPACE) -> str:
    return text.strip(chars)


def _lstrip(text: str, chars: str = _SPACE) -> str:
    return text.lstrip(chars)


def _rstrip(text: str, chars: str = _SPACE) -> str:
    return text.rstrip(chars)


def _split(text: str, delimiter: str = " ", most: int = -1) -> list[str]:
    return text.split(delimiter, most)


def _rsplit(text: str, delimiter: str = " ", most: int = -1) -> list[str]:
    return text.rsplit(delimiter, most)


def _ascii(change: Callable[[bytes], bytes]) -> Callable[[str], str]:
    return lambda text: change(text.encode()).decode()


_STRING_METHODS: dict[str, Callable[..., Any]] = {
    "strip": _strip,
    "lstrip": _lstrip,
    "rstrip": _rstrip,
    "split": _split,
    "rsplit": _rsplit,
    "upper": _ascii(bytes.upper),
    "lower": _ascii(bytes.lower),
    "title": _ascii(lambda text: re.sub(rb"\S+", lambda word: word[0].capitalize(), text)),
    "capitalize": _ascii(bytes.capitalize),
}


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _trim(value: Any) -> str:
    return _strip(str(value))


def _length(value: Any) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value)


FILTERS: dict[str, Callable[..., Any]] = {"tojson": _tojson, "trim": _trim, "length": _length}
FILTERS |= {"count": _length} | {n: _STRING_METHODS[n] for n in ("upper", "lower", "title")}


_DICT_ATTRIBUTES = frozenset(dir(dict))
_MISSING = object()


class Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        # The short way for what templates read most: a field of a message, there or not.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            found = obj.get(attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if found is _MISSING else found
        if isinstance(obj, str) and attribute in _STRING_METHODS:
            return partial(_STRING_METHODS[attribute], obj)
        # The sandbox asks a namespace a dozen times what it is; it holds what the template put in.
        if type(obj) is Namespace and not attribute.startswith("_") and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


_RENDERED = frozenset(
    (
        *("messages", "tools", "chat_template_kwargs", "reasoning_effort"),
        # These change no prompt that was seen; each of their values is compared once.
        *("tool_choice", "parallel_tool_calls", "reasoning_format", "parse_tool_calls"),
    )
)
_LARGEST_WHOLE = 2**53
_CLOCK_WORDS = ("strftime_now", "date_string", "datetime")


class NotRenderedError(Exception):
    """Not rendered here; the engine has to. The text says why."""


@dataclass(frozen=True, slots=True)
class Template:
    """What an engine says of its template (``/props``) and whether it puts BOS or EOS itself."""

    source: str
    tool_use: str | None
    bos: str
    eos: str
    caps: Mapping[str, bool]
    adds_bos: bool
    adds_eos: bool

    @property
    def tells_time(self) -> bool:
        """Whether a prompt may depend on when it is rendered; such a prompt is not kept."""
        sources = self.source + (self.tool_use or "")
        return any(word in sources for word in _CLOCK_WORDS)


def template_of(props: Any, adds_bos: bool, adds_eos: bool) -> Template | None:
    """From an engine's ``/props``; None: it does not tell its template."""
    if not isinstance(props, dict) or not isinstance(props.get("chat_template"), str):
        return None
    caps = props.get("chat_template_caps")
    tool_use = props.get("chat_template_tool_use")
    return Template(
        source=props["chat_template"],
        tool_use=tool_use if isinstance(tool_use, str) and tool_use else None,
        bos=str(props.get("bos_token") or ""),
        eos=str(props.get("eos_token") or ""),
        caps={k: bool(v) for k, v in caps.items()} if isinstance(caps, dict) else {},
        adds_bos=adds_bos,
        adds_eos=adds_eos,
    )


class Renderer:
    """Raises :class:`NotRenderedError` where the template is not one for jinja2."""

    def __init__(self, template: Template, now: Callable[[], datetime] = datetime.now) -> None:
        self._template = template
        self._now = now
        self._day: date | None = None
        self._written: dict[str, str] = {}
        made = environment(now)
        try:
            self._plain = _compiled(made, template.source)
            self._tool_use = _compiled(made, template.tool_use or template.source)
        except jinja2.TemplateError as error:
            raise NotRenderedError(f"the template: {error!s:.200}") from error

    def render(self, fields: Mapping[str, Any]) -> str:
        """The prompt of a chat request; raises :class:`NotRenderedError`."""
        if not may_render(fields):
            other = ", ".join(sorted(fields.keys() - _RENDERED)) or "the assistant's turn last"
            raise NotRenderedError(f"the request has {other}")
        messages = self._messages(fields["messages"])
        tools = [_tool(tool) for tool in fields.get("tools") or ()]
        kwargs = dict(fields.get("chat_template_kwargs") or {})
        effort = fields.get("reasoning_effort")
        if effort == "none":
            kwargs |= {"enable_thinking": False}
            kwargs.pop("reasoning_effort", None)
        elif effort:
            kwargs |= {"reasoning_effort": effort, "reasoning_strength": effort}
        values = self._values(messages, tools, kwargs)
        try:
            text = (self._tool_use if tools else self._plain).render(values)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise NotRenderedError(f"the template: {error!s:.200}") from error
        except (ArithmeticError, RecursionError, MemoryError) as error:
            raise NotRenderedError(f"the template: {type(error).__name__}") from error
        template = self._template
        if template.adds_bos and template.bos:
            text = text.removeprefix(template.bos)
        if template.adds_eos and template.eos:
            text = text.removesuffix(template.eos)
        return text

    def _values(
        self, messages: list[dict[str, Any]], tools: list[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        keep = kwargs.get("preserve_reasoning", True)
        values: dict[str, Any] = {}
        if isinstance(keep, bool):
            values |= {"preserve_reasoning": keep, "preserve_thinking": keep}
            values |= {"clear_thinking": not keep, "drop_thinking": not keep}
            values |= {"truncate_history_thinking": not keep}
        values |= {"messages": messages, "enable_thinking": True, "add_generation_prompt": True}
        values |= {"bos_token": self._template.bos, "eos_token": self._template.eos}
        if tools:
            values["tools"] = tools
        values |= self._dates()
        return {**values, **kwargs}

    def _dates(self) -> dict[str, str]:
        """The day as templates print it, written once a day."""
        now = self._now()
        if now.date() != self._day:
            self._day = now.date()
            self._written = {
                "datetime": now.strftime("%b %d %Y"),
                "date_string": now.strftime("%d %b %Y"),
            }
        return self._written

    def _messages(self, given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        caps = self._template.caps
        string = caps.get("supports_string_content", True)
        typed = caps.get("supports_typed_content", False)
        messages = [_message(message) for message in given]
        for message in messages:
            if message["role"] == "developer" and "<|channel|>" not in self._template.source:
                message["role"] = "system"
            content = message["content"]
            if typed and not string and isinstance(content, str):
                message["content"] = [{"type": "text", "text": content}]
            elif string and not typed and isinstance(content, list):
                message["content"] = "\n".join(part["text"] for part in content)
            if caps.get("supports_object_arguments"):
                for call in message.get("tool_calls", ()):
                    call["function"]["arguments"] = _parsed(call["function"]["arguments"])
        if not caps.get("supports_system_role", True) and messages[0]["role"] == "system":
            _system_into_next(messages)
        return messages


def _compiled(made: jinja2.Environment, source: str) -> jinja2.Template:
    """Its globals in a plain dict: each rendering copies them, and out of a chain of two dicts
    that takes a call for each."""
    template = made.from_string(source)
    template.globals = dict(template.globals)
    return template


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """A message as the server hands it on; fields that it does not know are left out."""
    message: dict[str, Any] = {"role": given["role"]}
    content = given.get("content")
    if isinstance(content, list):
        if not all(
            part.get("type") == "text" and isinstance(part["text"], str) for part in content
        ):
            raise NotRenderedError("a content part that is not text")
        content = [{"type": "text", "text": part["text"]} for part in content]
    message["content"] = content or ""
    for ours, theirs in (("reasoning_content",) * 2, ("name", "name"), ("tool_call_id",) * 2):
        value = given.get(theirs)
        if value is not None and not isinstance(value, str):
            raise NotRenderedError(f"{theirs} is not a string")
        if value:
            message[ours] = value
    if given.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in given["tool_calls"]]
    elif content is None and given["role"] != "assistant":
        raise NotRenderedError("a message without content")
    return message


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        function = given["function"]
        name, arguments, number = function["name"], function["arguments"], given.get("id")
    except (KeyError, TypeError) as error:
        raise NotRenderedError("a tool call of another form") from error
    if given.get("type") != "function" or not isinstance(arguments, str):
        raise NotRenderedError("a tool call of another form")
    if not isinstance(name, str) or not isinstance(number, str | None):
        raise NotRenderedError("a tool call of another form")
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {**call, "id": number} if number else call


def _tool(given: Any) -> dict[str, Any]:
    try:
        function = given["function"]
        if given["type"] != "function" or not isinstance(function["name"], str):
            raise NotRenderedError("a tool of another form")
        return {
            "type": "function",
            "function": {
                "name": function["name"],
                "description": function.get("description", ""),
                "parameters": function.get("parameters", {}),
            },
        }
    except (KeyError, TypeError) as error:
        raise NotRenderedError("a tool of another form") from error


def _system_into_next(messages: list[dict[str, Any]]) -> None:
    system = messages.pop(0)
    if messages:
        contents = (system["content"], messages[0]["content"])
        if not all(isinstance(content, str) for content in contents):
            raise NotRenderedError("system content in parts")
        messages[0]["content"] = "\n".join(contents)


def _parsed(arguments: str) -> Any:
    """Arguments as an object; only what both sides surely write alike."""

    def no_float(text: str) -> Any:
        raise NotRenderedError(f"arguments hold {text}")

    def whole(text: str) -> int:
        if abs(int(text)) > _LARGEST_WHOLE:
            raise NotRenderedError("arguments hold a large number")
        return int(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise NotRenderedError("arguments hold a name twice")
        return dict(pairs)

    try:
        return json.loads(
            arguments,
            parse_float=no_float,
            parse_int=whole,
            parse_constant=no_float,
            object_pairs_hook=unique,
        )
    except (ValueError, RecursionError) as error:
        raise NotRenderedError("arguments are not JSON") from error


def may_render(fields: Mapping[str, Any]) -> bool:
    """Whether a request is of a kind that is rendered here at all."""
    # An assistant's turn at the end is one to go on with: the server cuts that prompt open.
    return fields.keys() <= _RENDERED and fields["messages"][-1]["role"] != "assistant"

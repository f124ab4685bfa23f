"""Conversations on which local rendering is compared with the engine's: one of each shape."""

from __future__ import annotations

from typing import Any

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather, "today" <b>only</b> & it\'s\nshort; größer ☃',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "e.g. Zürich"},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "deep": {"type": "array", "items": {"type": "object", "properties": {}}},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_BARE = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
_EDGES = "  \n\u00a0 white \u3000space\t \n"


def _turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _call(number: str, arguments: str, name: str = "get_weather") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


_SYSTEM = _turn("system", "Be brief.\n\nRules:\n- one\n- two\n")
_HELLO = [_turn("user", "Hello ☃ <b>&amp;</b> 'x' \"y\""), _turn("assistant", "Hi there.")]
_ONE = [
    _call("abcdefghi", '{"city": "Zürich", "days": 3, "unit": null, "x": [true, {"y": "z\\n"}]}')
]
_TWO = [_call("aaaaaaaaa", '{"city":"Bern"}'), _call("bbbbbbbbb", "{}", "now")]
_USED = [
    _turn("user", "What is the weather?"),
    _turn("assistant", None, tool_calls=_ONE),
    _turn("tool", '{"t": 21.5, "sky": "clear"}', tool_call_id="abcdefghi"),
]
_PARTS = [{"type": "text", "text": " first "}, {"type": "text", "text": "second\n"}]
_THOUGHT = _turn("assistant", "Four.", reasoning_content="2 + 2\nis 4")

PROBE_CHATS: tuple[dict[str, Any], ...] = tuple(
    {"messages": messages, **more}
    for messages, more in (
        ([_turn("user", "Hello")], {}),
        ([_turn("user", _EDGES)], {}),
        ([_turn("user", "")], {}),
        ([_SYSTEM, _turn("user", "Hello")], {}),
        ([_turn("system", _EDGES), _turn("user", _EDGES)], {}),
        ([_SYSTEM, *_HELLO, _turn("user", "Go on.")], {}),
        ([*_HELLO, _turn("user", "Go on.")], {}),
        ([*_HELLO, _turn("user", _EDGES), _turn("assistant", _EDGES), _turn("user", "x")], {}),
        ([_turn("developer", "Be brief."), *_HELLO, _turn("user", "Go on.")], {}),
        ([_SYSTEM, _turn("user", _PARTS)], {}),
        ([_turn("system", _PARTS[:1]), _turn("user", _PARTS[:1])], {}),
        ([_SYSTEM, _turn("user", "a"), _turn("user", "b")], {}),
        ([_turn("user", "2 + 2?"), _THOUGHT, _turn("user", "Sure?")], {}),
        ([_turn("user", "q"), _turn("assistant", "<think>\nhm\n</think>\n\nA."), *_USED[:1]], {}),
        ([_turn("user", "Hello")], {"chat_template_kwargs": {"enable_thinking": False}}),
        ([_SYSTEM, *_HELLO, _turn("user", "x")], {"chat_template_kwargs": {"thinking": True}}),
        ([_turn("user", "Hello")], {"tools": [_WEATHER]}),
        ([_SYSTEM, _turn("user", "Hello")], {"tools": [_WEATHER, _BARE]}),
        ([_SYSTEM, _turn("user", "x")], {"tools": [_WEATHER], "tool_choice": "auto"}),
        ([_SYSTEM, *_USED], {"tools": [_WEATHER]}),
        (
            [_SYSTEM, *_USED, _turn("assistant", "Clear."), _turn("user", "x")],
            {"tools": [_WEATHER]},
        ),
        (
            [
                _SYSTEM,
                _turn("user", "Both?"),
                _turn("assistant", "I look.", tool_calls=_TWO, reasoning_content="two of them"),
                _turn("tool", "cold", tool_call_id="aaaaaaaaa"),
                _turn("tool", "12:00", tool_call_id="bbbbbbbbb"),
            ],
            {"tools": [_WEATHER, _BARE]},
        ),
    )
)
"""Bodies as ``/apply-template`` takes them. Some are refused by some templates: both ways count."""

"""Templates rendered here as the engine renders them; all that is not surely equal is refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from slotwise.proxy.tokens.template import (
    NotRenderedError,
    Renderer,
    Template,
    may_render,
    template_of,
)
from slotwise.proxy.tokens.verification import RenderedShapes, shape_of

NOW = datetime(2026, 11, 29, 23, 59)


def template(source: str, **more: Any) -> Template:
    fields: dict[str, Any] = {"tool_use": None, "bos": "<s>", "eos": "</s>", "caps": {}}
    fields |= {"adds_bos": False, "adds_eos": False}
    return Template(source, **{**fields, **more})


def render(source: str, *messages: Any, fields: dict[str, Any] | None = None, **more: Any) -> str:
    said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    renderer = Renderer(template(source, **more), now=lambda: NOW)
    return renderer.render(
        {"messages": said or [{"role": "user", "content": "x"}], **(fields or {})}
    )


SAID = "{{ messages[0].content%s }}"


@pytest.mark.parametrize(
    ("expression", "content", "expected"),
    [
        (SAID % ".strip()", " \n\u00a0a\u3000\t", "\u00a0a\u3000"),
        (SAID % "|trim", " \n\u2003a ", "\u2003a"),
        (SAID % ".lstrip('\\n')", "\n\n a", " a"),
        (SAID % ".split()", "a  b", "['a', '', 'b']"),
        (SAID % ".split('</t>')[-1]", "x</t>y", "y"),
        (SAID % ".upper()", "aé", "Aé"),
        (SAID % "|lower", "ÉA", "Éa"),
        (SAID % ".title()", "two wORDS", "Two Words"),
        (SAID % "|length", "é☃", "5"),
        ("{{ messages|length }}", "a", "1"),
        (
            "{{ messages[0]|tojson }}",
            "<é\n☃'\">\x01",
            '{"role": "user", "content": "<é\\n☃\'\\">\\u0001"}',
        ),
        ("{{ bos_token }}{% if add_generation_prompt %}G{% endif %}", "", "<s>G"),
        ("{{ strftime_now('%d %b %Y') }}|{{ date_string }}", "", "29 Nov 2026|29 Nov 2026"),
        ("a\n{% if true %}\n  b\n  {% endif %}\nc\n", "", "a\n  b\nc"),
        ("{{ missing }}{{ messages[0].missing is defined }}", "", "False"),
        ("{% for m in messages %}{% continue %}x{% endfor %}{{ enable_thinking }}", "", "True"),
    ],
)
def test_the_engines_template_language(expression: str, content: str, expected: str) -> None:
    assert render(expression, content) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ missing.field }}",
        "{{ 1 / 0 }}",
        "{% for i in range(99999999) %}x{% endfor %}",
        "{{ messages.__class__.__mro__ }}",
    ],
)
def test_a_template_that_fails_is_the_engines_to_judge(source: str) -> None:
    with pytest.raises(NotRenderedError, match="the template: "):
        render(source, "x")


def test_a_template_that_is_not_one_is_refused() -> None:
    with pytest.raises(NotRenderedError, match="the template: "):
        Renderer(template("{% generation %}"))


ALL = "{% for m in messages %}{{ m|tojson }}{% endfor %}{{ tools|tojson if tools }}"
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"b": 1, "a": [null]}'},
}


def test_messages_are_handed_on_as_the_server_does() -> None:
    developer = {"role": "developer", "content": "d", "refusal": None}
    assistant = {"role": "assistant", "content": None, "tool_calls": [CALL], "audio": None}
    tool = {"role": "tool", "content": "r", "tool_call_id": "1", "name": ""}
    assert render(ALL, developer, assistant, tool) == (
        '{"role": "system", "content": "d"}'
        '{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": '
        '{"name": "f", "arguments": "{\\"b\\": 1, \\"a\\": [null]}"}, "id": "1"}]}'
        '{"role": "tool", "content": "r", "tool_call_id": "1"}'
    )


def test_arguments_are_an_object_where_the_template_reads_them_so() -> None:
    assistant = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    caps = {"supports_object_arguments": True}
    assert '"arguments": {"b": 1, "a": [null]}' in render(ALL, assistant, "x", caps=caps)


@pytest.mark.parametrize(
    "arguments",
    ["{", '{"a": 1.5}', '{"a": 1e9}', '{"a": 1, "a": 2}', '{"a": 99999999999999999999}', "NaN"],
)
def test_arguments_that_might_be_written_otherwise_are_the_engines(arguments: str) -> None:
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    caps = {"supports_object_arguments": True}
    with pytest.raises(NotRenderedError, match="arguments"):
        render(ALL, {"role": "assistant", "content": "", "tool_calls": [call]}, "x", caps=caps)


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("string", "typed", "content", "expected"),
    [
        (True, False, PARTS, '"a\\nb"'),
        (True, True, PARTS, '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]'),
        (False, True, "a", '[{"type": "text", "text": "a"}]'),
        (True, True, "a", '"a"'),
    ],
)
def test_content_takes_the_form_that_the_template_can_read(
    string: bool, typed: bool, content: Any, expected: str
) -> None:
    caps = {"supports_string_content": string, "supports_typed_content": typed}
    message = {"role": "user", "content": content}
    assert render("{{ messages[0].content|tojson }}", message, caps=caps) == expected


def test_a_system_text_joins_the_first_turn_where_the_template_knows_no_system() -> None:
    system = {"role": "system", "content": "s"}
    caps = {"supports_system_role": False}
    assert (
        render("{{ messages|length }}{{ messages[0].content }}", system, "u", caps=caps) == "1s\nu"
    )


def test_what_the_engine_adds_itself_is_taken_off() -> None:
    assert render("<s>a</s>", adds_bos=True, adds_eos=True) == "a"
    assert render("<s>a</s>") == "<s>a</s>"


def test_options_reach_the_template() -> None:
    source = "{{ enable_thinking }} {{ x }} {{ reasoning_effort }} {{ preserve_thinking }}"
    fields: dict[str, Any] = {"chat_template_kwargs": {"x": 1}, "reasoning_effort": "low"}
    assert render(source, fields=fields) == "True 1 low True"
    assert render(source, fields={"reasoning_effort": "none"}) == "False   True"


def test_tools_take_a_template_of_their_own() -> None:
    tool = {"type": "function", "function": {"name": "f", "strict": True}, "more": 1}
    shown = render("plain", tool_use="{{ tools|tojson }}", fields={"tools": [tool]})
    assert shown == (
        '[{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]'
    )
    assert render("plain", tool_use="x") == "plain"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"grammar": "root ::= x"},
        {"messages": [{"role": "assistant", "content": "go on"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": "x", "name": 5}]},
        {"tools": [{"type": "retrieval"}]},
        {"tools": ["x"]},
    ],
)
def test_other_requests_are_the_engines(fields: dict[str, Any]) -> None:
    with pytest.raises(NotRenderedError):
        render("x", fields=fields)


def test_a_shape_is_all_but_the_texts() -> None:
    def shape(*contents: Any, **more: Any) -> bytes:
        roles = ("user", "assistant")
        said = [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]
        return shape_of({"messages": said, **more})

    assert shape("a", "b", "c") == shape("x", "yy", "z", "d", "e")
    differing = [shape("a"), shape(""), shape("a", "b", "c"), shape(None), shape(PARTS)]
    differing += [shape("a", tools=[1]), shape("a", tools=[{"b": 1, "a": 1}])]
    differing += [shape("a", tools=[{"a": 1, "b": 1}]), shape("a", parallel_tool_calls=True)]
    assert len(set(differing)) == len(differing)


def test_shapes_are_kept_within_bounds() -> None:
    shapes = RenderedShapes()
    for i in range(5000):
        shapes.put(i.to_bytes(2, "big"), i % 2 == 0)
    assert [shapes.proven(i.to_bytes(2, "big")) for i in (0, 4998, 4999)] == [None, True, False]


def test_an_engine_that_does_not_tell_its_template_has_none() -> None:
    assert template_of({}, False, False) is None
    assert template_of([], False, False) is None
    made = template_of({"chat_template": "{{ date_string }}", "bos_token": None}, True, False)
    assert made is not None
    assert (made.tells_time, made.bos, made.adds_bos) == (True, "", True)
    assert may_render({"messages": [{"role": "user", "content": "x"}]})

"""The opt-in normaliser: equal bodies out of bodies that differ only in what it levels."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.proxy.chat.normalize import Normalize, from_mapping, normalize
from tests.proxy import claude_shapes
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Wire, talk, tools

DEFAULT = Normalize()
CLOCK = Normalize(billing_header=False, clock=True)
SORTED = Normalize(billing_header=False, sort_tools=True)
SAID = talk("Fix the bug", "Which?", "This one, at 12:34:56")


def system_of(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, *SAID]}


def cut(text: str) -> str:
    body, _ = normalize(system_of(text), CLOCK)
    found = body["messages"][0]["content"]
    assert isinstance(found, str)
    return found


# ---------------------------------------------------------------- billing line: field report R03


def claude(cch: str) -> Wire:
    return claude_shapes.claude_code(SAID, cch=cch)


def translated(cch: str) -> Wire:
    return claude_shapes.claude_code_translated(SAID, cch=cch)


def translated_in_parts(cch: str) -> Wire:
    return claude_shapes.claude_code_translated(SAID, cch=cch, as_parts=True)


@pytest.mark.parametrize("shape", [claude, translated, translated_in_parts])
def test_bodies_that_differ_only_in_the_checksum_become_the_same_body(shape: Any) -> None:
    one, applied = normalize(shape("00af1").body, DEFAULT)
    two, _ = normalize(shape("9bc3e").body, DEFAULT)
    assert one == two
    assert applied == ("billing_header",)


def test_of_the_billing_line_only_the_checksum_changes_and_its_length_stays() -> None:
    body, _ = normalize(claude("9bc3e").body, DEFAULT)
    assert body["system"][0]["text"] == claude_shapes.billing("00000")
    assert body["system"][1] == claude("9bc3e").body["system"][1]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_message_that_quotes_a_billing_line_is_left_alone(role: str) -> None:
    body = {"messages": [{"role": role, "content": claude_shapes.billing("9bc3e")}]}
    assert normalize(body, DEFAULT) == (body, ())


def test_a_billing_line_that_is_not_the_first_system_text_is_left_alone() -> None:
    body = {
        "system": [
            {"type": "text", "text": t} for t in ("Be kind.", claude_shapes.billing("9bc3e"))
        ]
    }
    assert normalize(body, DEFAULT) == (body, ())
    late = {"messages": [*SAID, {"role": "system", "content": claude_shapes.billing("9bc3e")}]}
    assert normalize(late, DEFAULT) == (late, ())


def test_a_checksum_below_the_first_line_is_left_alone() -> None:
    body = system_of(f"{claude_shapes.billing('00000')}\nNotes: cch=12345")
    assert normalize(body, DEFAULT) == (body, ())


def test_a_body_without_such_a_line_comes_back_itself() -> None:
    body = shapes.opencode(SAID).body
    found, applied = normalize(body, DEFAULT)
    assert found is body
    assert applied == ()


# ---------------------------------------------------------------- tools: field report R15


def test_tools_in_another_order_become_the_same_body() -> None:
    one, applied = normalize(shapes.opencode(SAID, offered=("a", "b", "c")).body, SORTED)
    two, changed = normalize(shapes.opencode(SAID, offered=("c", "a", "b")).body, SORTED)
    assert one == two
    assert (applied, changed) == ((), ("sort_tools",))


def test_tools_of_one_name_have_one_order() -> None:
    a, b = tools("x")[0], tools("x")[0]
    b["function"]["description"] = "another"
    one, _ = normalize({"tools": [a, b]}, SORTED)
    two, _ = normalize({"tools": [b, a]}, SORTED)
    assert one == two


@pytest.mark.parametrize("given_tools", [None, "x", [1, {"name": "a"}], []])
def test_what_is_no_list_of_tools_stays_as_it_is(given_tools: Any) -> None:
    body = {"tools": given_tools}
    assert normalize(body, SORTED) == (body, ())


# ---------------------------------------------------------------- clock: field report R06


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 2026-02-03T12:34:56.789+01:00.", "It is 2026-02-03."),
        ("It is 2026-02-03T12:34Z.", "It is 2026-02-03."),
        ("It is 2026-02-03 12:34:56 UTC.", "It is 2026-02-03."),
        ("It is 2024-05-15 15:00:00 EST.", "It is 2024-05-15."),
        ("Tue Feb  3 12:34:56 CET 2026", "Tue Feb  3 2026"),
        ("Tue Feb 03 2026 12:34:56 GMT+0100 (CET)", "Tue Feb 03 2026 (CET)"),
        ("Date: February 3, 2026 at 3:04 PM", "Date: February 3, 2026"),
        ("Thursday, 5 March 2026 10:00", "Thursday, 5 March 2026"),
        ("Datum 03.02.2026, 14:05", "Datum 03.02.2026"),
        ("stamp 20260203T123456Z", "stamp 20260203"),
        ("The current time is 14:05", "The current time is --:--"),
        ("3:04:05 PM on Tuesday", "--:-- on Tuesday"),
        ("3:04 a.m. there", "--:-- there"),
        ("[12:34:56]", "[--:--]"),
    ],
)
def test_a_time_is_cut_to_the_day(text: str, expected: str) -> None:
    assert cut(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "John 3:16",
        "http://127.0.0.1:8080 and a.py:12:30",
        "a ratio of 16:9",
        "open 09:00-12:00",
        "2026-02-03",
        "b8:27:eb:12:34:56",
        "no time at all",
    ],
)
def test_what_is_no_time_stays(text: str) -> None:
    assert cut(text) == text


@given(
    st.times(),
    st.times(),
    st.sampled_from(
        [
            "Now: 2026-02-03T{:%H:%M:%S}Z",
            "Now: 2026-02-03 {:%H:%M}",
            "Now: Feb 3, 2026 {:%I:%M %p}",
            "The time is {:%H:%M}.",
            "The time is {:%H:%M:%S.%f}.",
            "The time is {:%I:%M:%S %p} CET, be kind.",
            "Tue Feb  3 {:%H:%M:%S} UTC 2026",
            "20260203T{:%H%M%S}Z",
        ]
    ),
)
def test_two_times_of_a_day_make_the_same_body(one: Any, two: Any, form: str) -> None:
    assert cut(form.format(one)) == cut(form.format(two))
    assert cut(cut(form.format(one))) == cut(form.format(one))


def test_user_and_assistant_text_keeps_its_times() -> None:
    body, applied = normalize(system_of("The time is 14:05."), CLOCK)
    assert body["messages"][1:] == SAID
    assert applied == ("clock",)


def test_system_text_behind_the_first_turn_keeps_its_times() -> None:
    body = {"messages": [*SAID, {"role": "system", "content": "It is 12:34:56."}]}
    assert normalize(body, CLOCK) == (body, ())


def test_a_system_text_full_of_times_takes_bounded_work() -> None:
    text = "12:34:56 " * 200_000
    assert cut(text).count("--:--") == 1000


# ---------------------------------------------------------------- all of it


def test_by_default_only_the_billing_line_is_levelled() -> None:
    wire = claude_shapes.claude_code_translated(SAID, prompt="The time is 12:34:56.")
    body, applied = normalize(wire.body, DEFAULT)
    assert applied == ("billing_header",)
    assert "12:34:56" in body["messages"][0]["content"]


def test_off_means_untouched() -> None:
    off = Normalize(billing_header=False)
    body = claude("9bc3e").body
    assert normalize(body, off)[0] is body


def test_all_parts_together_are_named_in_their_order() -> None:
    wire = claude_shapes.claude_code_translated(SAID, prompt="The time is 12:34:56.")
    wire.body["tools"].reverse()
    settings = Normalize(sort_tools=True, clock=True)
    assert normalize(wire.body, settings)[1] == ("billing_header", "sort_tools", "clock")


def test_the_body_that_came_is_not_changed_and_what_stays_is_shared() -> None:
    came = claude("9bc3e").body
    before = copy.deepcopy(came)
    body, _ = normalize(came, Normalize(sort_tools=True, clock=True))
    assert came == before
    assert body["messages"] is came["messages"]
    assert body["system"][1] is came["system"][1]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"system": 3, "messages": None, "tools": {}},
        {"system": [None, {"type": "text"}], "messages": [None]},
        {"messages": [{"role": "system", "content": [{"type": "image"}, 4]}]},
    ],
)
def test_any_shape_of_body_passes(body: dict[str, Any]) -> None:
    assert normalize(body, Normalize(sort_tools=True, clock=True)) == (body, ())


def test_settings_come_from_plain_data() -> None:
    assert from_mapping({}) == (DEFAULT, [])
    assert from_mapping({"clock": True, "billing_header": False}) == (CLOCK, [])


def test_every_faulty_setting_is_named_by_its_path() -> None:
    settings, faults = from_mapping({"clock": "day", "sort": True, "sort_tools": True})
    assert settings == Normalize(sort_tools=True)
    assert faults == [
        "normalize.clock: expected true or false, got 'day'",
        "normalize.sort: unknown key, expected one of billing_header, sort_tools, clock",
    ]

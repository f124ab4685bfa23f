"""What sort of request: the known clients' by shape and words, and a profile's own patterns."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slotwise.proxy.chat import kinds
from slotwise.proxy.chat.kinds import Kind, Patterns, from_mapping, kind_of
from tests.proxy import claude_shapes
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Wire, talk, used

KNOWN = Patterns()


def kind(wire: Wire, patterns: Patterns = KNOWN) -> Kind:
    return kind_of(wire.body, patterns, wire.path)


CHAT = talk("What is a monad?", "A monoid.", "In which category?")
WORK = [*talk("Fix the bug"), *used("read", "x = 1", path="a.py")]
COMPACTION = "Your task is to create a detailed summary of the conversation so far, paying close"


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (shapes.opencode(talk("Fix the bug")), "agent"),
        (shapes.opencode(WORK), "agent"),
        (shapes.opencode_title("Fix the bug"), "side"),
        (shapes.open_webui(CHAT), "chat"),
        (shapes.open_webui(talk("hi")), "chat"),
        (shapes.open_webui(talk("hi"), context="Notes."), "chat"),
        (shapes.open_webui_title(CHAT[:2]), "side"),
        (shapes.open_webui_tags(CHAT[:2]), "side"),
        (claude_shapes.claude_code(WORK), "agent"),
        (claude_shapes.claude_code_translated(WORK), "agent"),
        (claude_shapes.claude_code([*WORK, *talk("", "Done.", COMPACTION)[1:]]), "summary"),
        (shapes.aider([], "Add a flag", "a.py: def f()"), "chat"),
        (shapes.aider_commit("--- a.py\n+++ a.py\n" * 5000), "side"),
        (shapes.continue_title("A monad is..."), "side"),
        (shapes.continue_autocomplete("def f("), "raw"),
        (shapes.cline(WORK), "agent"),
        (shapes.codex(talk("Fix it")), "agent"),
        (claude_shapes.claude_code(WORK)._replace(path="/v1/messages/count_tokens"), "count"),
    ],
)
def test_the_kind_of_what_the_known_clients_send(wire: Wire, expected: Kind) -> None:
    assert kind(wire) == expected


@pytest.mark.parametrize("fields", [{"max_tokens": 20}, {"max_completion_tokens": 150}, {}])
def test_a_short_question_answered_whole_may_be_a_persons(fields: dict[str, Any]) -> None:
    """A voice assistant or an automation asks like this, and somebody waits for the answer."""
    system = {"role": "system", "content": "Answer with a single emoji."}
    body = {"messages": [system, *talk("Turn the light on")], "stream": False, **fields}
    assert kind_of(body, KNOWN) == "chat"


def test_a_user_who_quotes_an_instruction_later_in_a_chat_asks_for_no_side_job() -> None:
    said = talk("hi", "hello", shapes.OPEN_WEBUI_TITLE)
    assert kind(shapes.open_webui(said)) == "chat"


def test_a_conversation_that_began_with_an_instruction_is_one_once_it_goes_on() -> None:
    said = talk("Generate a title for this conversation: bees", "Bees", "Another one, please")
    assert kind(shapes.open_webui(said[:1])) == "side"
    assert kind(shapes.open_webui(said)) == "chat"


def test_words_beyond_the_head_are_not_looked_at() -> None:
    said = talk("x" * 400 + " You are a title generator.")
    assert kind(shapes.open_webui(said)) == "chat"


def test_a_profile_adds_patterns_of_its_own() -> None:
    patterns, faults = from_mapping({"side": ["^benenne das"], "summary": [r"fasse .* zusammen"]})
    assert faults == []
    assert kind(shapes.open_webui(talk("Benenne das Gespräch")), patterns) == "side"
    assert kind(shapes.open_webui(talk("a", "b", "Fasse alles zusammen")), patterns) == "summary"
    assert kind(shapes.opencode_title("Fix the bug"), patterns) == "side"


def test_every_faulty_pattern_is_named_by_its_path() -> None:
    given = {"side": ["fine", "(", 3], "summary": "text", "titles": []}
    patterns, faults = from_mapping(given, path="models.big.kinds")
    assert faults == [
        "models.big.kinds.side[1]: not a regular expression, missing ), unterminated subpattern "
        "at position 0: '('",
        "models.big.kinds.side[2]: expected a regular expression, got 3",
        "models.big.kinds.summary: expected a list of regular expressions, got 'text'",
        "models.big.kinds.titles: unknown key, expected one of side, summary",
    ]
    assert kind(shapes.open_webui(talk("fine")), patterns) == "side"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": "hi"},
        {"messages": [1, None]},
        {"messages": [{"role": None, "content": 3}], "tools": "x", "max_tokens": "y"},
        {"messages": [{"role": "user", "content": [None, {"type": "text", "text": 1}]}]},
        {"prompt": [1, 2, 3]},
    ],
)
def test_any_shape_of_body_has_a_kind(body: dict[str, Any]) -> None:
    assert kind_of(body, KNOWN) in ("chat", "raw", "agent")


def test_a_large_body_costs_no_more_than_its_heads() -> None:
    big = shapes.open_webui([*talk("word " * 2_000_000), *talk("x", "y" * 10_000_000)[1:]])
    began = time.perf_counter()
    assert kind(big) == "chat"
    assert time.perf_counter() - began < 0.05


@pytest.mark.parametrize("begin", [begin for begin, _ in kinds._SIDE])
def test_a_known_instruction_is_known_in_any_case(begin: str) -> None:
    behind = {"### Task:": "\nGenerate tags", "Given the following": ", please reply with a title"}
    text = begin + behind.get(begin, "") + " for the chat"
    for said in (text, text.upper(), text.lower()):
        messages = [{"role": "user", "content": f"Hello.\n{said}"}]
        assert kind_of({"messages": messages, "stream": True}, KNOWN) == "side"

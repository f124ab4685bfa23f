"""Reading a request: hints, raw prompts, odd and giant bodies, bounded memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slotwise.proxy.chat.sessions import UNKNOWN, TurnReader
from slotwise.proxy.chat.wire import hint_of
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Wire, talk
from tests.proxy.conversations import FIVE, Proxy, one, plain


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-session-affinity": "a", "x-session-id": "b"}, {}, ("affinity", "a")),
        ({"x-session-id": "b", "x-claude-code-session-id": "c"}, {}, ("affinity", "b")),
        ({"x-claude-code-session-id": "c"}, {}, ("claude", "c/")),
        (
            {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "d"},
            {},
            ("claude", "c/d"),
        ),
        ({}, {"metadata": {"user_id": "user_1_account_2_session_e"}}, ("claude", "e/")),
        ({}, {"metadata": {"user_id": "user_1"}, "prompt_cache_key": "f"}, ("cache key", "f")),
        ({"x-openwebui-chat-id": "h"}, {"promptCacheKey": "g"}, ("cache key", "g")),
        ({"x-openwebui-chat-id": "h", "session-id": "i"}, {}, ("open webui", "h")),
        ({"session-id": "i"}, {}, ("codex", "i")),
        ({"session-id": " "}, {"metadata": 3, "prompt_cache_key": 4}, None),
    ],
)
def test_the_first_hint_that_is_there_counts(
    headers: dict[str, str], body: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert hint_of(headers, body) == expected


def test_a_raw_prompt_is_known_by_its_hint_alone(proxy: Proxy) -> None:
    raw = shapes.continue_autocomplete("def f(")
    assert proxy(raw) is UNKNOWN
    a = raw._replace(headers={"x-session-id": "a"})
    b = raw._replace(headers={"x-session-id": "b"})
    ids = proxy.ids(a, b, a)
    assert ids[0] == ids[2] != ids[1] != ""
    assert proxy(a).basis == "hint"


def test_an_id_tells_nothing_of_the_text(proxy: Proxy) -> None:
    found = proxy(plain(FIVE)).id
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")
    salted = Proxy(salt=b"another process")
    assert salted(plain(FIVE)).id != found


DEEP: Any = "x"
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None, "tools": 3},
        {"messages": "hi", "system": [1, None]},
        {"messages": [None, 1, "x"]},
        {"messages": [{"role": 3, "content": {}}, {"content": [1, {"type": "text"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [1, {"function": None}]}]},
        {"messages": [{"role": "user", "content": "\ud800 lone"}]},
        {"messages": [{"role": "user", "content": [{"type": "x", "image_url": DEEP}]}]},
        {"messages": [{"role": "system", "content": "nothing else"}]},
        {"messages": [{"role": "user", "content": "<system-reminder>" * 20_000}]},
        {"tools": [{"type": "function"}, {"name": 3}], "metadata": {"user_id": 3}},
    ],
)
def test_any_shape_of_body_is_taken(proxy: Proxy, body: dict[str, Any]) -> None:
    wire = Wire({"x-session-id": "a"}, body)
    assert proxy(wire).id == proxy(wire).id


@pytest.mark.parametrize("where", ["text", "part", "image"])
def test_a_giant_message_is_read_to_its_end(proxy: Proxy, where: str) -> None:
    def message(end: str) -> Wire:
        giant = "é word " * 100_000 + end
        image = {"type": "image_url", "image_url": {"url": giant}}
        contents = {"text": giant, "part": [{"type": "text", "text": giant}, {}], "image": [image]}
        return plain([{"role": "user", "content": contents[where]}])

    assert one(proxy.ids(message("a"), message("a")))
    assert not one(proxy.ids(message("a"), message("b")))


def test_threads_may_read_at_once() -> None:
    reader = TurnReader(remembered=10)  # so small that it is forgotten all the time
    wires = [plain(talk(*(f"{c} {n}" for n in range(9)))) for c in range(40)]
    expected = [TurnReader().read({}, wire.body) for wire in wires]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda wire: reader.read({}, wire.body), wires * 20))
    assert found == expected * 20


def test_what_is_remembered_of_messages_is_bounded() -> None:
    reader = TurnReader(remembered=100)
    for n in range(1000):
        reader.read({}, {"messages": talk(f"question {n}")})
    assert 50 <= len(reader) <= 100

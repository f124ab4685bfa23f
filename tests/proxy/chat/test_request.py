"""Bodies: what is wrong with one is said in one line; what goes on is pinned and cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from slotwise.policies.types import SlotId
from slotwise.proxy.chat.request import GenerationRequest, Kind, prepare
from slotwise.proxy.errors import ProxyError

NAMES = {"main": "main", "gpt": "main"}
USER = {"role": "user", "content": "hi"}
STREAMED = {
    "stream": True,
    "return_progress": True,
    "stream_options": {"include_usage": True},
}


def prepared(
    body: Any, kind: Kind = Kind.CHAT, names: dict[str, str] | None = None
) -> GenerationRequest:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(prepare(kind, "/v1/x", raw, NAMES if names is None else names))


def sent(
    request: GenerationRequest, id_slot: int = 1, max_tokens: int | None = None
) -> dict[str, Any]:
    content = asyncio.run(request.upstream(SlotId("e", id_slot), max_tokens))
    body: dict[str, Any] = json.loads(content)
    return body


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "not JSON"),
        (b"{", None, "not JSON"),
        (b'{"a": "\xff"}', None, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", None, "at most 200 deep"),
        (b'{"a": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", None, "at most 200 deep"),
        (b"[1]", None, "expected a JSON object, got a list"),
        ({}, "messages", "expected a list of messages, got none"),
        ({"messages": "hi"}, "messages", 'got "hi"'),
        ({"messages": []}, "messages", "got an empty list"),
        ({"messages": ["hi"]}, "messages[0]", 'expected an object, got "hi"'),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role", "expected a string, got none"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "got 5"),
        ({"messages": [USER], "n": 2}, "n", "expected 1"),
        ({"messages": [USER], "n_cmpl": 3}, "n_cmpl", "expected 1"),
        ({"messages": [USER], "n": True}, "n", "expected a whole number, got true"),
        ({"messages": [USER], "max_tokens": "9"}, "max_tokens", 'got "9"'),
        ({"messages": [USER], "n_predict": 1.5}, "n_predict", "got 1.5"),
        ({"messages": [USER], "max_tokens": 10**30}, "max_tokens", "expected less than 2147483648"),
        ({"messages": [USER], "n_predict": -(10**12)}, "n_predict", "got -1e+12"),
        (b'{"messages": "\\ud800"}', None, "not JSON"),
        ({"messages": [USER], "stream": 1}, "stream", "expected true or false, got 1"),
        ({"messages": [USER], "cache_prompt": "y"}, "cache_prompt", "expected true or false"),
        ({"messages": [USER], "model": 7}, "model", "expected a string, got 7"),
    ],
)
def test_a_bad_chat_body_is_a_400_that_names_the_field(
    body: Any, param: str | None, says: str
) -> None:
    with pytest.raises(ProxyError) as caught:
        prepared(body)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_a_completion_needs_a_prompt() -> None:
    with pytest.raises(ProxyError, match="prompt: expected a string or token ids, got none"):
        prepared({"messages": [USER]}, Kind.COMPLETION)


def test_an_unknown_model_is_a_404_with_the_list() -> None:
    with pytest.raises(ProxyError, match='"other" is not served, expected one of main, gpt') as e:
        prepared({"messages": [USER], "model": "other"})
    assert e.value.status == 404


def test_an_alias_is_served_and_no_model_means_the_only_one() -> None:
    assert prepared({"messages": [USER], "model": "gpt"}).profile == "main"
    assert prepared({"messages": [USER]}).profile == "main"


def test_no_model_among_several_is_a_400_that_names_them() -> None:
    with pytest.raises(ProxyError, match="expected one of a, b, got none") as e:
        prepared({"messages": [USER]}, names={"a": "a", "b": "b"})
    assert e.value.status == 400


def test_the_clients_pin_never_goes_on_and_ours_is_a_whole_number() -> None:
    """Field report R39."""
    request = prepared({"messages": [USER], "id_slot": 3, "slot_id": "2", "temperature": 0.25})
    expected = {"messages": [USER], "temperature": 0.25, "id_slot": 1, **STREAMED}
    assert sent(request, 1) == expected
    assert type(sent(request, 1)["id_slot"]) is int
    assert "id_slot" not in sent(request, -1)


def test_the_engine_streams_what_the_client_wants_whole() -> None:
    """It goes on with a whole answer whose client left, and says nothing of its progress."""
    fields = {"messages": [USER], "stream": False, "stream_options": {"x": 1}}
    whole = prepared(fields | {"return_progress": True})
    assert not whole.stream
    assert whole.injected_progress
    assert sent(whole, -1) == {"messages": [USER], **STREAMED}
    raw = prepared({"prompt": "x"}, Kind.COMPLETION)
    assert sent(raw, -1) == {"prompt": "x", "stream": True, "return_progress": True}


def test_progress_is_asked_for_and_the_clients_own_wish_is_kept() -> None:
    streamed = prepared({"messages": [USER], "stream": True})
    assert streamed.injected_progress
    assert sent(streamed)["return_progress"] is True
    asked = prepared({"messages": [USER], "stream": True, "return_progress": True})
    assert not asked.injected_progress
    assert sent(asked)["return_progress"] is True


@pytest.mark.parametrize(
    ("fields", "asked", "room", "expected", "said"),
    [
        ({"max_tokens": 100}, 100, 40, {"max_tokens": 40}, "100 -> 40"),
        ({"max_completion_tokens": 100}, 100, 40, {"max_completion_tokens": 40}, "100 -> 40"),
        ({"max_tokens": 100}, 100, 100, {"max_tokens": 100}, None),
        ({"max_tokens": 100}, 100, None, {"max_tokens": 100}, None),
        (
            {"max_tokens": 30, "n_predict": 90},
            90,
            40,
            {"max_tokens": 30, "n_predict": 40},
            "90 -> 40",
        ),
        ({"max_tokens": -1}, None, 40, {"max_tokens": -1}, None),
        ({"max_tokens": None}, None, 40, {"max_tokens": None}, None),
        ({}, None, 40, {}, None),
        ({"max_tokens": 5.0}, 5, None, {"max_tokens": 5}, None),
    ],
)
def test_a_limit_is_cut_to_the_room_and_only_then(
    fields: dict[str, Any],
    asked: int | None,
    room: int | None,
    expected: dict[str, Any],
    said: str | None,
) -> None:
    request = prepared({"messages": [USER], **fields})
    assert request.max_tokens == asked
    assert request.cut(room) == said
    assert sent(request, -1, room) == {"messages": [USER], **STREAMED, **expected}


def test_what_the_proxy_does_not_read_goes_on_as_it_came() -> None:
    body = {"messages": [USER], "seed": 2**63, "stop": ["\n"], "x": {"é": [None, 1e-7]}}
    assert sent(prepared(body), -1) == body | STREAMED


def test_a_body_as_deep_as_allowed_can_be_written_again() -> None:
    raw = json.dumps({"messages": [USER]}).encode()[:-1]
    deep = raw + b', "tools": ' + b"[" * 199 + b"]" * 199 + b"}"
    assert sent(prepared(deep))["tools"]

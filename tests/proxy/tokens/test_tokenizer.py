"""Prompts as ids: exact, kept within bounds, and cheap on the next turn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from slotwise.policies.prefix import pack
from slotwise.proxy.chat.request import Kind, prepare
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import ProxyError, UpstreamError
from slotwise.proxy.tokens.tokenizer import Encoded, TokenCache, Tokenizer


class FakeEngine(EngineClient):
    """Renders a chat as ``role:content;`` and encodes a text as its code points."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.refuse_heads = False

    async def apply_template(self, body: dict[str, Any]) -> str:
        self.calls.append("template")
        self.bodies.append(body)
        if self.refuse_heads and body.get("add_generation_prompt") is False:
            raise UpstreamError(400, b"{}", "application/json")
        text = "".join(f"{m['role']}:{m['content']};" for m in body["messages"])
        return text + ("" if body.get("add_generation_prompt") is False else "assistant:")

    async def tokenize(
        self, content: Any, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        self.calls.append("tokenize")
        parts = [content] if isinstance(content, str) else content
        ids = [1] if add_special and parts and isinstance(parts[0], str) else []
        for part in parts:
            ids += [ord(c) for c in part] if isinstance(part, str) else [part]
        return ids


def encode(
    engine: FakeEngine, tokenizer: Tokenizer, kind: Kind = Kind.CHAT, **body: Any
) -> Encoded:
    async def run() -> Encoded:
        request = await prepare(kind, "/x", json.dumps(body).encode(), {"main": "main"})
        return await tokenizer.encode(engine, request)

    return asyncio.run(run())


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


FIRST = [turn("system", "s"), turn("user", "hello")]
SECOND = [*FIRST, turn("assistant", "yes"), turn("user", "more")]
HEAD = len("system:s;user:hello;") + 1


def test_a_chat_is_rendered_then_encoded_and_its_head_is_known() -> None:
    engine = FakeEngine()
    encoded = encode(engine, Tokenizer(), messages=FIRST)
    assert encoded.tokens == pack([1, *map(ord, "system:s;user:hello;assistant:")])
    assert (encoded.first_user_end, encoded.turns) == (HEAD, 1)


def test_a_later_turn_costs_one_rendering_and_a_repeated_one_none() -> None:
    engine, tokenizer = FakeEngine(), Tokenizer()
    encode(engine, tokenizer, messages=FIRST)
    engine.calls.clear()
    encoded = encode(engine, tokenizer, messages=SECOND)
    assert engine.calls == ["template", "tokenize"]
    assert (encoded.first_user_end, encoded.turns) == (HEAD, 2)
    engine.calls.clear()
    assert encode(engine, tokenizer, messages=SECOND, temperature=0.1) == encoded
    assert engine.calls == []


def test_only_what_shapes_the_prompt_is_rendered() -> None:
    engine = FakeEngine()
    encode(
        engine,
        Tokenizer(),
        messages=FIRST,
        tools=[],
        chat_template_kwargs={"a": 1},
        temperature=1,
        stream=True,
        model="main",
    )
    assert set(engine.bodies[0]) == {"messages", "tools", "chat_template_kwargs"}


def test_another_tool_is_another_prompt() -> None:
    engine, tokenizer = FakeEngine(), Tokenizer()
    encode(engine, tokenizer, messages=FIRST, tools=[{"name": "a"}])
    engine.calls.clear()
    encode(engine, tokenizer, messages=FIRST, tools=[{"name": "b"}])
    assert engine.calls == ["template", "tokenize"] * 2


def test_a_template_that_refuses_the_head_leaves_the_request_served() -> None:
    engine = FakeEngine()
    engine.refuse_heads = True
    assert encode(engine, Tokenizer(), messages=FIRST).first_user_end == 0


def test_a_chat_without_a_user_has_no_head() -> None:
    assert encode(FakeEngine(), Tokenizer(), messages=[turn("system", "s")]).first_user_end == 0


@pytest.mark.parametrize(
    ("prompt", "ids", "calls"),
    [
        ("ab", [1, 97, 98], ["tokenize"]),
        (["ab"], [1, 97, 98], ["tokenize"]),
        ([7, 8], [7, 8], []),
        ([[7, 8]], [7, 8], []),
        ([5], [5], []),
        (["a", 7], [1, 97, 7], ["tokenize"]),
        ([7, "a"], [7, 97], ["tokenize"]),
    ],
)
def test_raw_prompts_are_encoded_as_the_engine_does(
    prompt: Any, ids: list[int], calls: list[str]
) -> None:
    engine = FakeEngine()
    encoded = encode(engine, Tokenizer(), Kind.COMPLETION, prompt=prompt)
    assert encoded == Encoded(pack(ids), 0, 1)
    assert engine.calls == calls


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (["a", "b"], "a list of 2 prompts is not supported"),
        ([[1], [2]], "a list of 2 prompts is not supported"),
        ({"prompt_string": "x", "multimodal_data": ["b"]}, "multimodal_data, prompt_string"),
        ([{"prompt_string": "x"}], "prompt_string"),
        ([], "an empty list"),
        (5, "got int"),
        ([1, True], "expected a token id or text, got True"),
        ([1, -1], "got -1"),
        ([1, 2**31], "got 2147483648"),
        ([1, 2.5], "got 2.5"),
        ([1, None], "got None"),
    ],
)
def test_other_prompts_are_a_clear_400(prompt: Any, says: str) -> None:
    with pytest.raises(ProxyError) as caught:
        encode(FakeEngine(), Tokenizer(), Kind.COMPLETION, prompt=prompt)
    assert caught.value.status == 400
    assert says in caught.value.message


def test_the_cache_keeps_the_prompts_used_last_within_its_bytes() -> None:
    cache = TokenCache(max_bytes=10_000)
    prompts = {bytes([i]): Encoded(pack(range(i, i + 500)), 0, 1) for i in range(20)}
    for key, encoded in prompts.items():
        cache.put(key, encoded)
        cache.get(b"\0")
        assert cache.size_bytes <= cache.max_bytes
    assert cache.get(b"\0") is not None
    assert cache.get(b"\1") is None
    assert cache.get(bytes([19])) is not None
    cache.put(b"huge", Encoded(pack(range(5000)), 0, 1))
    assert cache.get(b"huge") is None
    assert len(cache) == 4

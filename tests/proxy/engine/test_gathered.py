"""A whole answer, put together from the engine's stream of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest

from slotwise.proxy.core.events import Failure, RequestFailed
from slotwise.proxy.engine.sse import Gathered
from tests.proxy.shell import CHAT, chat, proxy
from tests.support import StubServer, wait_until_async


def stream(*events: dict[str, Any], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + end


def gathered(data: bytes, size: int = 7, tokens: bool = False) -> dict[str, Any]:
    whole = Gathered(tokens)
    for at in range(0, len(data), size):
        whole.feed(data[at : at + size])
    assert whole.error is None
    answer: dict[str, Any] = json.loads(whole.answer())
    return answer


def delta(more: dict[str, Any], finish: str | None = None, **top: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": more, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [choice], **top}


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_texts_are_joined_and_the_last_word_on_all_else_counts(size: int) -> None:
    data = stream(
        delta({"role": "assistant", "content": None}, prompt_progress={"total": 9}),
        delta({"role": "assistant", "content": None}, created=1),
        delta({"reasoning_content": "hm"}),
        delta({"reasoning_content": "m"}, created=2),
        delta({"content": "Grüß"}),
        delta({"content": " Gott\n\ndata: x"}),
        delta({}, "stop", timings={"prompt_n": 3}),
        {
            "id": "c1",
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": {"total_tokens": 9},
        },
    )
    message = {"role": "assistant", "content": "Grüß Gott\n\ndata: x", "reasoning_content": "hmm"}
    assert gathered(b": a comment\n\n" + data, size) == {
        "id": "c1",
        "object": "chat.completion",
        "created": 2,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "timings": {"prompt_n": 3},
        "usage": {"total_tokens": 9},
    }


def test_tool_calls_are_put_together_by_their_index() -> None:
    def call(index: int, **parts: Any) -> dict[str, Any]:
        return delta({"tool_calls": [{"index": index, **parts}]})

    answer = gathered(
        stream(
            delta({"role": "assistant", "content": None}),
            call(0, id="a", type="function", function={"name": "time", "arguments": ""}),
            call(0, function={"arguments": '{"city":'}),
            call(1, id="b", type="function", function={"name": "date", "arguments": "{}"}),
            call(0, function={"arguments": '"Rome"}'}),
            delta({}, "tool_calls"),
        )
    )
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "time", "arguments": '{"city":"Rome"}'},
            },
            {"id": "b", "type": "function", "function": {"name": "date", "arguments": "{}"}},
        ],
    }


def test_an_empty_answer_is_an_empty_text() -> None:
    answer = gathered(stream(delta({"role": "assistant", "content": None}), delta({}, "length")))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("wanted", [True, False])
def test_llama_cpps_own_form(wanted: bool) -> None:
    def piece(text: str, token: int) -> dict[str, Any]:
        return {"content": text, "tokens": [token], "stop": False, "id_slot": -1}

    last = {"content": "", "tokens": [], "stop": True, "id_slot": 3, "tokens_predicted": 2}
    settings = {"generation_settings": {"stream": True, "n_predict": 2}}
    answer = gathered(stream(piece("a", 5), piece("b", 6), last | settings, end=b""), tokens=wanted)
    assert answer == {
        "content": "ab",
        "tokens": [5, 6] if wanted else [],
        "stop": True,
        "id_slot": 3,
        "tokens_predicted": 2,
        "generation_settings": {"stream": False, "n_predict": 2},
    }


@pytest.mark.parametrize("name", [b"data", b"error"])
def test_an_error_is_kept_as_the_engine_said_it(name: bytes) -> None:
    told = {"code": 500, "message": "no"}
    whole = Gathered(False)
    whole.feed(name + b": " + orjson.dumps({"error": told} if name == b"data" else told) + b"\n\n")
    assert whole.error == told


def test_a_whole_answer_given_up_ends_in_the_engine_at_its_next_token(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(decode_tps=50.0, answer_tokens=5000)
            asking = asyncio.create_task(p.client.post(CHAT, json=chat(max_tokens=5000)))
            await wait_until_async(lambda: bool(stub.busy()))
            asking.cancel()
            await wait_until_async(lambda: not stub.busy())
            await wait_until_async(lambda: bool(p.journal.events(RequestFailed)))
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.CLIENT_GONE
            await p.until_idle()

    asyncio.run(run())

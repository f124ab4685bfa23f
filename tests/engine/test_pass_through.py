"""The proxy before a real engine: bytes, tokens and pins as the engine itself has them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from slotwise.proxy.core.events import Mismatch, RequestFinished
from tests.engine.conftest import StartEngine
from tests.proxy.shell import one_ending_each, proxy

VOLATILE = re.compile(rb'"(?:id|created|[a-z_]+_ms|[a-z_]+_per_second)":(?:"[^"]*"|[0-9.e+-]+),?')
FLAGS = ("-np", "4", "-c", "32768", "--cache-ram", "0", "-b", "256", "--metrics")
WORDS = "alpha beta gamma " * 300


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


CHAT = {"messages": [turn("system", WORDS), turn("user", "hello <|im_start|> there")]}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**CHAT, "max_tokens": 4}),
    (
        "/v1/chat/completions",
        {**CHAT, "max_tokens": 4, "stream_options": {"include_usage": True}, "logprobs": True},
    ),
    ("/v1/completions", {"prompt": WORDS, "max_tokens": 4}),
    ("/completion", {"prompt": WORDS, "n_predict": 4, "timings_per_token": True}),
    ("/completion", {"prompt": [5, 6, WORDS, 7], "n_predict": 4, "return_progress": True}),
]


def settled(answer: httpx.Response) -> dict[str, Any]:
    """A whole answer without what differs from one to the next."""
    return {k: v for k, v in answer.json().items() if k not in ("id", "created", "timings")}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_bytes_and_token_counts_are_the_engines_own(
    start_engine: StartEngine, stream: bool
) -> None:
    engine = start_engine(*FLAGS)

    async def run() -> None:
        async with proxy(engine.url) as p:
            for path, fields in BODIES:
                body = {**fields, "temperature": 0, "cache_prompt": False, "stream": stream}
                if not stream:
                    body.pop("stream_options", None)
                ours = await p.client.post(path, json=body)
                id_slot = int(ours.headers["x-slotwise-slot"].split("/")[1])
                theirs = httpx.post(engine.url + path, json={**body, "id_slot": id_slot})
                assert ours.status_code == 200, ours.text
                if stream:
                    assert VOLATILE.sub(b"", ours.content) == VOLATILE.sub(b"", theirs.content)
                else:  # put together from a stream
                    assert settled(ours) == settled(theirs)
                finished = p.journal.events(RequestFinished)[-1]
                assert finished.prompt_tokens == int(ours.headers["x-slotwise-prompt-tokens"])
                assert finished.completion_tokens == 4
                assert finished.cached_tokens == 0
            assert p.journal.actions(Mismatch) == []
            one_ending_each(p.journal)

    asyncio.run(run())


def test_a_conversation_finds_all_of_its_past_on_its_slot(start_engine: StartEngine) -> None:
    engine = start_engine(*FLAGS)

    async def run() -> None:
        async with proxy(engine.url) as p:
            assert p.driver.engines.lives["e0"].probe is not None
            assert p.driver.engines.lives["e0"].probe.pins, p.driver.engines.lives["e0"].text
            messages = [turn("system", WORDS), turn("user", "one")]
            held = 0
            for n in range(3):
                answer = await p.client.post(
                    "/v1/chat/completions", json={"messages": messages, "max_tokens": 6}
                )
                timings = answer.json()["timings"]
                assert timings["cache_n"] == held
                assert int(answer.headers["x-slotwise-expected-cached"]) == held
                held = timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"] - 1
                text = answer.json()["choices"][0]["message"]["content"]
                messages += [turn("assistant", text), turn("user", f"more {n}")]
                title = {"prompt": f"title {n} " * 20, "n_predict": 2}
                await p.client.post("/completion", json=title)
            assert p.journal.actions(Mismatch) == []

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [turn("user", [{"type": "alien"}])]}),
        ("/v1/chat/completions", {"messages": [turn("user", "x")], "grammar": "root ::= ("}),
        ("/completion", {"prompt": "x", "n_predict": 1, "grammar": "root ::= ("}),
        ("/v1/chat/completions", {"messages": [turn("user", "x")], "tools": "no list"}),
    ],
)
def test_what_the_engine_refuses_keeps_its_status_and_words(
    start_engine: StartEngine, path: str, body: dict[str, Any]
) -> None:
    engine = start_engine(*FLAGS)

    async def run() -> None:
        async with proxy(engine.url) as p:
            for stream in (True, False):
                asked = {**body, "stream": stream}
                ours = await p.client.post(path, json=asked)
                theirs = httpx.post(engine.url + path, json=asked)
                assert theirs.status_code >= 400
                assert ours.status_code == theirs.status_code
                assert json.loads(ours.content) == json.loads(theirs.content)
            await p.until_idle()

    asyncio.run(run())

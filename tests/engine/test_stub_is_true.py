"""The stub engine answers in the shapes of the real one: what passes on the stub passes there."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import httpx
import orjson
import pytest

from tests.engine import engines
from tests.engine.conftest import StartEngine
from tests.support import StubServer

# What differs by nature: a model's own numbers, and settings that nobody reads from an answer.
_OPEN = ("generation_settings", "params", "meta", "models", "architecture", "next_token")
_MODEL_ONLY = {"model_ftype", "ui", "ui_settings", "chat_template_caps"}
_MODEL_ONLY |= {"cors_proxy_enabled"}

CHAT = {"messages": [{"role": "user", "content": "alpha beta"}], "max_tokens": 3}
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
IMAGE = {"messages": [{"role": "user", "content": [SEEN]}]}
TEXT = {"prompt": "alpha beta gamma", "max_tokens": 3, "n_predict": 3}
USAGE = {"stream_options": {"include_usage": True}}
POSTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", CHAT | {"stream": True}),
    ("/v1/chat/completions", CHAT | {"stream": True, "return_progress": True}),
    ("/v1/chat/completions", CHAT | {"stream": True} | USAGE),
    ("/v1/completions", TEXT),
    ("/v1/completions", TEXT | {"stream": True, "return_progress": True}),
    ("/v1/completions", TEXT | {"stream": True} | USAGE),
    ("/completion", TEXT),
    ("/completion", TEXT | {"stream": True, "return_progress": True}),
    ("/v1/chat/completions", {"messages": "x"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 9000}]}),
    ("/tokenize", {"content": "alpha beta"}),
    ("/tokenize", {"content": "alpha beta", "with_pieces": True}),
    ("/detokenize", {"tokens": [5]}),
    ("/apply-template", CHAT),
    ("/v1/chat/completions/input_tokens", CHAT),
    ("/v1/chat/completions/input_tokens", IMAGE),
    ("/apply-template", IMAGE),
    ("/v1/chat/completions", IMAGE),
    ("/slots/0?action=erase", {}),
    ("/no-such-path", {}),
]
GETS = ("/health", "/slots", "/props", "/v1/models")


def shape(value: Any) -> Any:
    """The fields of a JSON value, and the kinds of what is in them."""
    if isinstance(value, dict):
        return {k: "..." if k in _OPEN else shape(v) for k, v in value.items()}
    if isinstance(value, list):
        return [kind for kind, _ in groupby(shape(item) for item in value)]
    return "number" if type(value) in (int, float) else type(value).__name__


def answer(response: httpx.Response) -> Any:
    """Status, content type and shape; of a stream the shapes of its events, repeats left out."""
    head = (response.status_code, response.headers["content-type"].partition(";")[0])
    if head[1] != "text/event-stream":
        return head, shape(response.json())
    blocks = [block for block in response.text.split("\n\n") if block]
    texts = [block.removeprefix("data: ") for block in blocks]
    events = [text if text == "[DONE]" else shape(orjson.loads(text)) for text in texts]
    return head, [event for event, _ in groupby(events)]


@pytest.mark.slow
def test_the_stubs_answers_have_the_engines_shapes(start_engine: StartEngine) -> None:
    flags = ("-np", "2", "-c", "4096", "--no-kv-unified", "--cache-ram", "0", "--slots")
    real = start_engine(*flags)
    with StubServer(slots=2, ctx=4096) as stub:
        compare(real, stub)


def compare(real: engines.RunningEngine, stub: StubServer) -> None:
    for path, body in POSTS:
        asked = f"{path} {str(body)[:120]}"
        theirs = answer(real.post(path, body))
        ours = answer(httpx.post(stub.url + path, json=body, timeout=30))
        assert ours == theirs, asked
    for path in GETS:
        head, told = answer(real.get(path))
        if isinstance(told, dict):
            told = {key: value for key, value in told.items() if key not in _MODEL_ONLY}
        assert answer(httpx.get(stub.url + path)) == (head, told), path

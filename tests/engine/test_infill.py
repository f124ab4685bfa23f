"""The prompts of ``/infill`` are the engine's own, id by id, and keep their slots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotwise.launcher.model.gguf_header import read_vocabulary
from slotwise.policies.params import from_mapping
from slotwise.proxy.chat.request import Kind, prepare
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.serving.served import ServedProfile
from slotwise.proxy.tokens.encoders import Source
from slotwise.proxy.tokens.fim import InfillFlags
from slotwise.proxy.tokens.tokenizer import Tokenizer
from tests.engine import engines
from tests.engine.conftest import StartEngine
from tests.engine.engines import RunningEngine
from tests.engine.infilling import BY_KEY, infilling
from tests.engine.talk import (
    NO_RAM_CACHE,
    PINNABLE,
    TINY_RATES,
    cached_share,
    events,
    proxied,
    words,
)
from tests.running_proxy import RunningProxy, run_proxy
from tests.support import wait_until, wait_until_async

BATCH = 512
WINDOW = 2048
FLAGS = ("-t", "1", "-np", "2", "-c", str(2 * WINDOW), *PINNABLE, *NO_RAM_CACHE)
VARIANTS: dict[str, dict[str, bool]] = {
    "by text": {},
    "by key": {"by_key": True},
    "with BOS": {"bos": True},
}
FILE = {"filename": "a/b.py", "text": "import os\n\n\nclass A:\n    pass\n"}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {"input_prefix": "def f(x):\n    ", "input_suffix": "\n\nprint(f(1))\n"},
    "nothing": {"input_prefix": "", "input_suffix": ""},
    "prompt": {"input_prefix": "a = ", "input_suffix": ";", "prompt": "1 +<|im_end|> b"},
    "special texts": {
        "input_prefix": "x = '<|im_start|>' # <|fim_prefix|><A>",
        "input_suffix": "<|fim_middle|><C> é 你好 🙂",
        "input_extra": [{"text": "<|file_sep|>name<|im_end|>", "filename": "<|im_start|>"}],
    },
    "mixed": {"input_prefix": [5, "def ", 7, "<|im_end|>"], "input_suffix": ["a", " b", 9]},
    "files": {"input_prefix": "x", "input_suffix": "y", "input_extra": [FILE, {"text": "z\n"}]},
    "cut": {
        "input_prefix": words("before", 600),
        "input_suffix": words("behind", 300),
        "prompt": words("typed", 30),
    },
    "no room behind": {"input_prefix": "a", "input_suffix": "b c", "prompt": words("t", 200)},
    "many files": {
        "input_prefix": words("before", 100),
        "input_suffix": words("behind", 50),
        "input_extra": [{**FILE, "text": words(f"file{n}", 400)} for n in range(6)],
    },
}


Engine = tuple[str, Path, RunningEngine]


@pytest.fixture(scope="module", params=VARIANTS)
def fim_engine(
    request: pytest.FixtureRequest, tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """The variant, its model and a running engine."""
    folder = tmp_path_factory.mktemp("fim")
    path = infilling(tiny_gguf, folder / "model.gguf", **VARIANTS[request.param])
    engine = engines.start(engines.EMBEDDED, path, folder / "log", *FLAGS)
    yield request.param, path, engine
    engine.stop()


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["vocabulary known", "attached"])
def test_every_prompt_is_the_engines_own(fim_engine: Engine, known: bool) -> None:
    variant, path, engine = fim_engine
    if not known and variant == "by key":
        _served_though_the_tokens_cannot_be_told(engine)
        return
    vocabulary = partial(read_vocabulary, path) if known else None
    source = Source(vocabulary, infill=InfillFlags(n_batch=BATCH))

    async def work() -> dict[str, list[int]]:
        tokenizer, client = Tokenizer(sources={"main": source}), EngineClient(engine.url, None)
        try:
            knowledge = tokenizer.ready(client, "main")
            assert knowledge is not None
            await wait_until_async(lambda: knowledge.tokenizer.state != "proving", 60)
            assert knowledge.tokenizer.state == ("local" if known else "engine")
            found = {}
            for name, body in BODIES.items():
                asked = await prepare(
                    Kind.INFILL, "/infill", json.dumps(body).encode(), {"main": "main"}
                )
                found[name] = (await tokenizer.encode(client, asked)).tokens.ids()
            return found
        finally:
            await tokenizer.close()
            await client.close()

    for name, ids in asyncio.run(work()).items():
        common = {"id_slot": 0, "n_predict": 1, "cache_prompt": True}
        told = engine.post("/infill", {**BODIES[name], **common}).json()["timings"]
        assert told["prompt_n"] + told["cache_n"] == len(ids), name
        # All of them are found in the slot; the last one is always computed.
        again = engine.post("/completion", {"prompt": ids, **common}).json()["timings"]
        assert (again["cache_n"], again["prompt_n"]) == (len(ids) - 1, 1), name


def _served_though_the_tokens_cannot_be_told(engine: RunningEngine) -> None:
    with proxied(engine) as proxy:
        answer = proxy.client.post("/infill", json={**BODIES["plain"], "n_predict": 2})
        assert answer.status_code == 200
        timings = answer.json()["timings"]
        missed = timings["prompt_n"] + timings["cache_n"]
        assert missed - int(answer.headers["X-Slotwise-Prompt-Tokens"]) == len(BY_KEY)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_typing_on_stays_on_its_slot_and_is_counted_to_the_token(
    fim_engine: Engine, stream: bool
) -> None:
    _, path, engine = fim_engine
    params, faults = from_mapping(TINY_RATES)
    assert not faults
    source = Source(partial(read_vocabulary, path), infill=InfillFlags(n_batch=BATCH))
    profile = ServedProfile("p", params=params, tokenizer=source)
    with run_proxy(engine.url, profile=profile) as proxy:
        typed = words(f"code{stream}", 200)
        seen = []
        for text in (typed, typed + " and more of it"):
            body = {"input_prefix": text, "input_suffix": "end", "n_predict": 4, "stream": stream}
            seen.append(_infilled(proxy, body))
        (first, _), (second, headers) = seen
        assert headers["X-Slotwise-Slot"] == seen[0][1]["X-Slotwise-Slot"]
        assert headers["X-Slotwise-Rule"] == "home"
        assert int(headers["X-Slotwise-Expected-Cached"]) == second["cache_n"]
        assert second["cache_n"] > 0.9 * (first["cache_n"] + first["prompt_n"])
        id = headers["X-Slotwise-Request-Id"]
        wait_until(lambda: proxy.inside(lambda: proxy.driver.history.record(id)) is not None, 5)
        assert proxy.client.get(f"/slotwise/requests/{id}").json()["kind"] == "raw"


def _infilled(proxy: RunningProxy, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    answer = proxy.client.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    last = list(events(answer.iter_lines()))[-1] if body["stream"] else answer.json()
    timings = last["timings"]
    counted = int(answer.headers["X-Slotwise-Prompt-Tokens"])
    assert counted == timings["cache_n"] + timings["prompt_n"]
    return timings, answer.headers


def test_a_model_that_cannot_fill_in_says_so_itself_and_loses_nothing(
    start_engine: StartEngine,
) -> None:
    engine = start_engine("-np", "1", "-c", "4096", *PINNABLE, *NO_RAM_CACHE)
    body = {"input_prefix": "a", "input_suffix": "b"}
    with proxied(engine) as proxy:
        proxy.chat(words("talk", 300), max_tokens=2)
        theirs, ours = engine.post("/infill", body), proxy.client.post("/infill", json=body)
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
        assert ours.status_code == 501
        assert cached_share(proxy.chat(words("talk", 300), max_tokens=2)) > 0.9

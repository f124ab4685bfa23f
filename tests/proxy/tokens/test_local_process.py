"""The tokenizer's own process: what is done without it, and when it dies or was never there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from slotwise.launcher.model import tiny_model
from slotwise.proxy.tokens import encoders
from slotwise.proxy.tokens.encoders import SHORT_CHARS, HereEncoder, Source
from slotwise.proxy.tokens.local_encoder import LocalEncoder
from slotwise.proxy.tokens.tokenizer import Tokenizer
from tests.proxy.true_engine import TrueEngine, chat, encode, first_turn, proven, right, run, source


def kill_its_process(tokenizer: Tokenizer) -> None:
    process = tokenizer._locals["main"]._process._process
    assert process is not None
    process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "by"), [("text that is new " * SHORT_CHARS, "engine"), ("text ☃ that is new", "local")]
)
def test_a_tokenizer_whose_process_dies_is_replaced_by_the_engine_but_for_short_texts(
    tiny: Path, encoder: LocalEncoder, text: str, by: str
) -> None:
    """Short ones need no process where the vocabulary is small."""

    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        kill_its_process(tokenizer)
        messages = chat(text)
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert tokenizer.job_statuses()["main"][0].state == by

    run(work, source(tiny))


def test_a_large_vocabulary_is_built_in_the_process_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def parts(most: int) -> int:
        monkeypatch.setattr(encoders, "SMALL_VOCABULARY_TOKENS", most)
        local = encoders.LocalTokenizer("main", source(tiny))
        try:
            return len((await local.get())[0].parts)
        finally:
            await local.close()

    tokens = len(source(tiny).load_vocabulary().tokens)  # type: ignore[union-attr]
    assert asyncio.run(parts(tokens)) == 2
    assert asyncio.run(parts(tokens - 1)) == 1


def test_the_tokenizer_for_short_texts_is_proven_on_its_own(
    tiny: Path, encoder: LocalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_more(_: HereEncoder, segments: Sequence[str]) -> list[bytes]:
        return [packed + b"\5\0\0\0" for packed in encoder.encode(segments)]

    async def work(tokenizer: Tokenizer) -> None:
        assert (await proven(tokenizer, TrueEngine(encoder)))[0] == "engine"
        assert tokenizer.job_statuses()["main"][0].reason.startswith("token")

    monkeypatch.setattr(HereEncoder, "encode", one_more)
    run(work, source(tiny))


def broken() -> None:
    raise OSError("cannot be read")


@pytest.mark.slow
@pytest.mark.parametrize("given", ["nothing", "no vocabulary", "unreadable", "no file", "another"])
def test_without_a_tokenizer_of_the_model_the_engine_encodes(
    tiny: Path, encoder: LocalEncoder, tmp_path: Path, given: str
) -> None:
    other = json.loads(tiny_model.tokenizer_path(tiny).read_text())
    other["model"]["merges"] = other["model"]["merges"][:100]
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    sources = {
        "nothing": (Source(), "no vocabulary is known"),
        "no vocabulary": (
            Source(vocabulary=partial(dict.get, {}, "none")),
            "no vocabulary is known",
        ),
        "unreadable": (Source(vocabulary=broken), "the model's vocabulary: cannot be read"),
        "no file": (Source(tokenizer_json=tmp_path / "none.json"), "none.json is no tokenizer"),
        "another": (
            Source(tokenizer_json=tmp_path / "tokenizer.json"),
            "differs from the engine's",
        ),
    }
    made, says = sources[given]

    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        status = tokenizer.job_statuses()["main"][0]
        assert status.state == "engine"
        assert says in status.reason
        messages = chat("Hello", "yes", "more")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert encoded.first_user_end == await first_turn(engine, messages)

    run(work, made)

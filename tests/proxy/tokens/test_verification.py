"""What is done here is proven equal to the engine first; one difference, and the engine does it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from slotwise.policies.prefix import pack
from slotwise.proxy.tokens import verification
from slotwise.proxy.tokens.local_encoder import LocalEncoder
from slotwise.proxy.tokens.tokenizer import Tokenizer
from tests.proxy.true_engine import TrueEngine, chat, encode, first_turn, proven, right, run, source


def test_a_proven_engine_is_asked_no_more(tiny: Path, encoder: LocalEncoder) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        assert await proven(tokenizer, engine) == ("local", "local")
        engine.tokenized = engine.rendered = 0
        messages = chat("Hello ☃", "Yes.", "<|im_end|> in a text")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert (engine.tokenized, engine.rendered) == (0, 0)
        assert encoded.tokens == await right(engine, messages)
        assert encoded.first_user_end == await first_turn(engine, messages)
        assert [(s.name, s.message) for s in encoded.sections] == [
            ("user", 0), ("assistant", 1), ("user", 2), ("template", -1)
        ]  # fmt: skip
        assert encoded.sections[-1].end == len(encoded.tokens)

    run(work, source(tiny))


def test_while_the_proof_runs_the_engine_serves(tiny: Path, encoder: LocalEncoder) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        messages = chat("Hello")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert tokenizer.job_statuses()["main"][0].state == "proving"
        assert encoded.tokens == await right(engine, messages)

    run(work, source(tiny))


def test_one_difference_and_the_engine_encodes_what_is_new(
    tiny: Path, encoder: LocalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        engine.wrong_for = "naïve"  # in no text of the corpus but this one
        states = await proven(tokenizer, engine)
        status = tokenizer.job_statuses()["main"][0]
        assert states == ("engine", "local")
        assert "differs from the engine's" in status.reason
        messages = chat("so naïve", "Yes.", "go")
        assert (await encode(tokenizer, engine, messages=messages)).tokens == await right(
            engine, messages
        )

    monkeypatch.setattr(verification, "probe_texts", lambda _: ["a", "naïve", "b"])
    run(work, source(tiny))


def test_a_template_that_renders_otherwise_is_left_to_the_engine(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        engine.shouts = True
        assert await proven(tokenizer, engine) == ("local", "engine")
        messages = chat("Hello", "yes", "more")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert encoded.first_user_end == await first_turn(engine, messages)

    run(work, source(tiny))


def test_one_request_in_a_thousand_is_compared_again(
    tiny: Path, encoder: LocalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "RECHECK_EVERY", 3)

    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        engine.wrong_for = "odd"
        for n in range(3):
            assert tokenizer.job_statuses()["main"][0].state == "local"
            await encode(tokenizer, engine, messages=chat(f"odd {n}"))
        while tokenizer.job_statuses()["main"][0].state == "local":
            await asyncio.sleep(0.01)
        assert tokenizer.job_statuses()["main"][0].reason.startswith("in service, token")
        messages = chat("odd again")
        assert (await encode(tokenizer, engine, messages=messages)).tokens == await right(
            engine, messages
        )

    run(work, source(tiny))


def test_an_engine_that_goes_away_during_the_proof_leaves_it_to_the_next(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        engine.gone = True
        assert await proven(tokenizer, engine) == ("engine", "engine")
        assert "broke off: gone" in tokenizer.job_statuses()["main"][0].reason
        assert await proven(tokenizer, TrueEngine(encoder)) == ("local", "local")

    run(work, source(tiny))


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompt", ["", "a text ☃", ["ab", 5, "cd"], [5, "ab"], [1, 2], "<|im_start|>x\n", ["x"]]
)
def test_raw_prompts_are_encoded_as_the_engine_does(
    tiny: Path, encoder: LocalEncoder, prompt: Any
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        engine.tokenized = 0
        encoded = await encode(tokenizer, engine, prompt=prompt)
        assert engine.tokenized == 0
        assert encoded.tokens == pack(await engine.tokenize(prompt))

    run(work, source(tiny))


@pytest.mark.slow
def test_what_is_known_is_shown_with_its_bounds(tiny: Path, encoder: LocalEncoder) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        await encode(tokenizer, engine, messages=chat("Hello"))
        shown: Any = tokenizer.snapshot()
        assert shown["profiles"]["main"]["tokenizer"]["by"] == "local"
        assert shown["profiles"]["main"]["differences"] == 0
        for name in ("segments", "prompts", "conversations"):
            assert 0 <= shown[name]["bytes"] <= shown[name]["max_bytes"]
        assert json.dumps(shown)

    run(work, source(tiny))


@pytest.mark.slow
def test_a_body_of_many_megabytes_is_encoded_while_others_are_served(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        ticks = 0

        async def other() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        neighbour = asyncio.create_task(other())
        encoded = await encode(tokenizer, engine, prompt="def f(x): return x\n" * 50_000)
        neighbour.cancel()
        assert len(encoded.tokens) > 200_000
        assert ticks > 20

    run(work, source(tiny))

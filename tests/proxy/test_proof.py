"""What is done here is proven equal to the engine first; one difference, and the engine does it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher import gguf_header, tiny_model
from policies.prefix import pack
from proxy import knowledge, local_tokenizer
from proxy.encoders import Source
from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError
from proxy.local_encoder import LocalEncoder, from_vocabulary
from proxy.local_tokenizer import SHORT_CHARS, HereEncoder
from proxy.prepare import Kind, prepare
from proxy.render import Renderer, Template
from proxy.tokenize import Encoded, Tokenizer
from proxy.vocabulary import Vocabulary
from tests.proxy.test_local_encoder import ids_of

BOUND_S = 30.0
BOS = 7
OPENING = "<|im_start|>assistant\n"
RENDERER = Renderer(Template(tiny_model.CHAT_TEMPLATE, None, "", "", {}, True, False))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def encoder(tiny: Path) -> LocalEncoder:
    fields = gguf_header.read_vocabulary(tiny)
    assert fields is not None
    return from_vocabulary(Vocabulary(**fields))


class TrueEngine(EngineClient):
    """An engine with the tiny model's tokenizer and ChatML, and faults on request."""

    def __init__(self, encoder: LocalEncoder) -> None:
        self._encoder = encoder
        self.tokenized = self.rendered = 0
        self.wrong_for = ""  # a segment that holds this gets one more token
        self.shouts = False
        self.gone = False

    async def props(self) -> Any:
        return {"chat_template": tiny_model.CHAT_TEMPLATE, "bos_token": "", "eos_token": ""}

    async def apply_template(self, body: dict[str, Any]) -> str:
        self.rendered += 1
        fields = {name: value for name, value in body.items() if name != "add_generation_prompt"}
        text = RENDERER.render(fields)
        if self.shouts:
            text = text.replace("e", "E")
        return text.removesuffix(OPENING) if "add_generation_prompt" in body else text

    async def tokenize(
        self, content: Any, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        self.tokenized += 1
        if self.gone:
            raise EngineUnreachableError("gone")
        parts = [content] if isinstance(content, str) else content
        ids = [BOS] if isinstance(parts[0], str) else []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                continue
            for piece, _ in self._encoder.cuts.pieces(part):
                if isinstance(piece, int):
                    ids.append(piece)
                    continue
                ids += ids_of(self._encoder.encode([piece])[0])
                if self.wrong_for and self.wrong_for in piece:
                    ids.append(5)
        return ids


def source(tiny: Path) -> Source:
    return Source(vocabulary=partial(gguf_header.read_vocabulary, tiny))


def run(work: Callable[[Tokenizer], Awaitable[None]], given: Source) -> None:
    async def bounded() -> None:
        tokenizer = Tokenizer(sources={"main": given})
        try:
            async with asyncio.timeout(BOUND_S):
                await work(tokenizer)
        finally:
            await tokenizer.close()

    asyncio.run(bounded())


async def proven(tokenizer: Tokenizer, engine: EngineClient) -> tuple[str, str]:
    """The states of tokenizer and template, once they are known."""
    tokenizer.ready(engine, "main")
    while True:
        states = tuple(standing.state for standing in tokenizer.standings()["main"])
        if "proving" not in states:
            return states[0], states[1]
        await asyncio.sleep(0.01)


async def encode(tokenizer: Tokenizer, engine: EngineClient, **body: Any) -> Encoded:
    kind = Kind.CHAT if "messages" in body else Kind.COMPLETION
    request = await prepare(kind, "/x", json.dumps(body).encode(), {"main": "main"})
    return await tokenizer.encode(engine, request)


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(texts)]


async def right(engine: TrueEngine, messages: list[dict[str, str]]) -> Any:
    return pack(await engine.tokenize(await engine.apply_template({"messages": messages})))


async def first_turn(engine: TrueEngine, messages: list[dict[str, str]]) -> int:
    """Tokens up to the end of the first user turn: the head of the conversation, rendered alone."""
    head = {"messages": messages[:1], "add_generation_prompt": False}
    return len(await engine.tokenize(await engine.apply_template(head)))


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
        assert tokenizer.standings()["main"][0].state == "proving"
        assert encoded.tokens == await right(engine, messages)

    run(work, source(tiny))


def test_one_difference_and_the_engine_encodes_what_is_new(
    tiny: Path, encoder: LocalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        engine.wrong_for = "naïve"  # in no text of the corpus but this one
        states = await proven(tokenizer, engine)
        standing = tokenizer.standings()["main"][0]
        assert states == ("engine", "local")
        assert "differs from the engine's" in standing.reason
        messages = chat("so naïve", "Yes.", "go")
        assert (await encode(tokenizer, engine, messages=messages)).tokens == await right(
            engine, messages
        )

    monkeypatch.setattr(knowledge, "probe_texts", lambda _: ["a", "naïve", "b"])
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
    monkeypatch.setattr(knowledge, "RECHECK_EVERY", 3)

    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        engine.wrong_for = "odd"
        for n in range(3):
            assert tokenizer.standings()["main"][0].state == "local"
            await encode(tokenizer, engine, messages=chat(f"odd {n}"))
        while tokenizer.standings()["main"][0].state == "local":
            await asyncio.sleep(0.01)
        assert tokenizer.standings()["main"][0].reason.startswith("in service, token")
        messages = chat("odd again")
        assert (await encode(tokenizer, engine, messages=messages)).tokens == await right(
            engine, messages
        )

    run(work, source(tiny))


def kill_its_process(tokenizer: Tokenizer) -> None:
    process = tokenizer._locals["main"]._process._process
    assert process is not None
    process.kill()


def test_a_tokenizer_whose_process_dies_is_replaced_by_the_engine(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        kill_its_process(tokenizer)
        messages = chat("text that is new " * SHORT_CHARS)
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert tokenizer.standings()["main"][0].state == "engine"

    run(work, source(tiny))


def test_short_texts_need_no_process_where_the_vocabulary_is_small(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        await proven(tokenizer, engine)
        kill_its_process(tokenizer)
        messages = chat("text ☃ that is new")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert tokenizer.standings()["main"][0].state == "local"

    run(work, source(tiny))


def test_a_large_vocabulary_is_built_in_the_process_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def parts(most: int) -> int:
        monkeypatch.setattr(local_tokenizer, "SMALL_VOCABULARY_TOKENS", most)
        local = local_tokenizer.Local("main", source(tiny))
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
        assert tokenizer.standings()["main"][0].reason.startswith("token")

    monkeypatch.setattr(HereEncoder, "encode", one_more)
    run(work, source(tiny))


def broken() -> None:
    raise OSError("cannot be read")


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
        standing = tokenizer.standings()["main"][0]
        assert standing.state == "engine"
        assert says in standing.reason
        messages = chat("Hello", "yes", "more")
        encoded = await encode(tokenizer, engine, messages=messages)
        assert encoded.tokens == await right(engine, messages)
        assert encoded.first_user_end == await first_turn(engine, messages)

    run(work, made)


def test_an_engine_that_goes_away_during_the_proof_leaves_it_to_the_next(
    tiny: Path, encoder: LocalEncoder
) -> None:
    async def work(tokenizer: Tokenizer) -> None:
        engine = TrueEngine(encoder)
        engine.gone = True
        assert await proven(tokenizer, engine) == ("engine", "engine")
        assert "broke off: gone" in tokenizer.standings()["main"][0].reason
        assert await proven(tokenizer, TrueEngine(encoder)) == ("local", "local")

    run(work, source(tiny))


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

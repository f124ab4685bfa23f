"""The tiny model's own tokenizer and template as an engine, with faults on request."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from slotwise.launcher.model import gguf_header, tiny_model
from slotwise.policies.prefix import pack
from slotwise.proxy.chat.request import Kind, prepare
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError
from slotwise.proxy.tokens.encoders import Source
from slotwise.proxy.tokens.local_encoder import LocalEncoder
from slotwise.proxy.tokens.template import Renderer, Template
from slotwise.proxy.tokens.tokenizer import Encoded, Tokenizer

BOUND_S = 30.0
BOS = 7
OPENING = "<|im_start|>assistant\n"
RENDERER = Renderer(Template(tiny_model.CHAT_TEMPLATE, None, "", "", {}, True, False))


def ids_of(packed: bytes) -> list[int]:
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


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
            for piece, _ in self._encoder.segmenter.pieces(part):
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
        states = tuple(status.state for status in tokenizer.job_statuses()["main"])
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

"""The exact prompt of an ``/infill`` request.

What it is made of is in ``fim.py``; here the parts are tokenized and the model is looked at.
In the code around the cursor and in other files a special token's text is plain text: such a part
is tokenized by the engine, every other one as any text is.

Where the model's vocabulary is not known (a server that somebody else started) its tokens for
filling in are looked for by their usual texts, and the flags ``-b``, ``-n`` and ``--spm-infill``
are taken to be the engine's defaults. A prompt that is then counted otherwise than the engine does
is still served. A model without such tokens refuses the request itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from slotwise.policies.prefix import Tokens, pack
from slotwise.proxy.chat.request import GenerationRequest
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import UpstreamError
from slotwise.proxy.tokens.encoders import EncoderGoneError, Source
from slotwise.proxy.tokens.fim import FIM_TEXTS, FimTokens, Pieces, compose, files_content
from slotwise.proxy.tokens.local_encoder import UnsupportedError
from slotwise.proxy.tokens.prompt_encoder import OFF_LOOP_CHARS, PromptEncoder
from slotwise.proxy.tokens.segments import Segmenter
from slotwise.proxy.tokens.verification import VerifiedEngine, edges_of, packed, text_tokens

Content = str | list[str | int]


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of the model that an engine runs."""

    fim: FimTokens
    bos: bytes  # packed; empty: the engine adds none
    window: int | None  # tokens of a slot
    controls: Segmenter | None  # the tokens that must not be found in code; None: not known


class Infill:
    """For all profiles. ``sources``: what is known of each one's tokenizer."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._models: WeakKeyDictionary[EngineClient, _Model] = WeakKeyDictionary()

    async def encode(
        self, engine: EngineClient, known: VerifiedEngine | None, request: GenerationRequest
    ) -> Tokens:
        """Raises what the engine's calls raise."""
        source = self._sources.get(request.profile, Source())
        model = self._models.get(engine)
        if model is None:
            model = self._models[engine] = await _model_of(engine, source)
        fields = request.fields
        files = files_content(model.fim, fields.get("input_extra") or ())
        prompt = await text_tokens(engine, known, fields.get("prompt") or "", whole=False)
        pieces = Pieces(
            prefix=await _code(engine, known, model, fields["input_prefix"]),
            suffix=await _code(engine, known, model, fields["input_suffix"]),
            prompt=prompt.packed,
            files=await _code(engine, known, model, files),
        )
        return Tokens(compose(model.fim, source.infill, model.window, model.bos, pieces))


async def _code(
    engine: EngineClient, known: VerifiedEngine | None, model: _Model, content: Content
) -> bytes:
    """Packed ids of texts in which no special token is parsed, and of ids as they are."""
    prompts = known.prompts if known else None
    parts = [content] if isinstance(content, str) else content
    if known is not None and prompts is not None:
        segmenter = model.controls or prompts.segmenter
        if not any([await _holds(segmenter, part) for part in parts if isinstance(part, str)]):
            try:
                return await _locally(prompts, parts)
            except EncoderGoneError as error:
                known.lost(error)
    ids = await engine.tokenize(content, add_special=False, parse_special=False)
    return (await packed(ids)).packed


async def _locally(prompts: PromptEncoder, parts: list[str] | list[str | int]) -> bytes:
    found = [
        (await prompts.encode(part, whole=False)).tokens if isinstance(part, str) else pack([part])
        for part in parts
    ]
    return b"".join(tokens.packed for tokens in found)


async def _holds(segmenter: Segmenter, text: str) -> bool:
    if len(text) <= OFF_LOOP_CHARS:
        return segmenter.found_in(text)
    return await asyncio.to_thread(segmenter.found_in, text)


async def _model_of(engine: EngineClient, source: Source) -> _Model:
    try:
        vocabulary = await asyncio.to_thread(source.load_vocabulary)
    except UnsupportedError:
        vocabulary = None
    edges = await edges_of(engine)
    return _Model(
        fim=vocabulary.fim_tokens() if vocabulary else await _asked(engine),
        bos=edges.before if edges else b"",
        window=await _window(engine),
        controls=await asyncio.to_thread(Segmenter, vocabulary.controls()) if vocabulary else None,
    )


async def _asked(engine: EngineClient) -> FimTokens:
    """By their usual texts: the one that is a single token."""
    found: dict[str, int] = {}
    for name, texts in FIM_TEXTS.items():
        for text in texts:
            ids = await engine.tokenize(text, add_special=False)
            if len(ids) == 1:
                found[name] = ids[0]
                break
    return FimTokens(**found)


async def _window(engine: EngineClient) -> int | None:
    try:
        props: Any = await engine.props()
        return int(props["default_generation_settings"]["n_ctx"])
    except (UpstreamError, LookupError, TypeError, ValueError):
        return None

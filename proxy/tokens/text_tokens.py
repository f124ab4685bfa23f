"""One text as tokens: encoded here where that was proven equal, else by the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from slotwise.policies.prefix import Tokens, pack
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.tokens.encoders import EncoderGoneError
from slotwise.proxy.tokens.knowledge import Knowledge
from slotwise.proxy.tokens.known_prompts import Mapped

_MANY_IDS = 20_000  # packing more than this would hold up the loop for milliseconds


async def mapped_text(
    engine: EngineClient, known: Knowledge | None, text: str, *, whole: bool = True
) -> Mapped:
    """``whole``: a prompt, with what the engine adds at its edges; else a part of one.

    Raises what the engine's calls raise.
    """
    if known is not None and known.prompts is not None:
        try:
            return await known.prompts.encode(text, whole=whole)
        except EncoderGoneError as error:
            known.lost(error)
    # In a list that begins with an id the engine adds nothing.
    content: str | list[str | int] = text if whole else [0, text]
    ids = await engine.tokenize(content)
    tokens = await packed(ids if whole else ids[1:])
    return Mapped(text, [0, len(text)], [0, len(tokens)], [], tokens)


async def text_tokens(
    engine: EngineClient, known: Knowledge | None, text: str, *, whole: bool = True
) -> Tokens:
    return (await mapped_text(engine, known, text, whole=whole)).tokens


async def packed(ids: Sequence[int]) -> Tokens:
    """The ids as tokens; many of them beside the loop."""
    return pack(ids) if len(ids) <= _MANY_IDS else await asyncio.to_thread(pack, ids)

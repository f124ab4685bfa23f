"""The sections of an encoded prompt as token positions, from where its messages stand in it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from slotwise.policies.prefix import Tokens
from slotwise.policies.types import Section
from slotwise.proxy.chat.prepare import OFF_LOOP_BYTES
from slotwise.proxy.chat.sections import Layout, Specials, layout, markers
from slotwise.proxy.tokens.known_prompts import Mapped
from slotwise.proxy.tokens.prompt_encoder import PromptEncoder


async def sections_of(
    prompts: PromptEncoder, mapped: Mapped, shape: Mapping[str, Any]
) -> tuple[tuple[Section, ...], int | None]:
    """The sections of a prompt in tokens, and the end of its first user turn, where certain."""
    spans = [(mapped.ends[i - 1], mapped.ends[i]) for i in mapped.cuts]
    names = [name for tool in shape.get("tools") or () if (name := _name_of(tool))]
    messages: Sequence[Mapping[str, Any]] = shape["messages"]

    def find() -> Layout:
        known = spans if len(spans) >= len(messages) else markers(mapped.text)
        return layout(mapped.text, Specials(known), messages, names)

    found = find() if len(mapped.text) <= OFF_LOOP_BYTES else await asyncio.to_thread(find)
    return await _in_tokens(prompts, mapped, found)


async def _in_tokens(
    prompts: PromptEncoder, mapped: Mapped, found: Layout
) -> tuple[tuple[Section, ...], int | None]:
    places = [part.end for part in found.parts]
    if found.first_user_end is not None:
        places.append(found.first_user_end)
    positions = await prompts.positions(mapped, places)
    sections: list[Section] = []
    last = 0
    for part, end in zip(found.parts, positions, strict=False):
        if end > last:
            sections.append(Section(part.name, part.message, end))
            last = end
    return tuple(sections), None if found.first_user_end is None else positions[-1]


def one_section(tokens: Tokens) -> tuple[Section, ...]:
    return (Section("template", -1, len(tokens)),) if len(tokens) else ()


def _name_of(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name", "")) if isinstance(function, dict) else ""

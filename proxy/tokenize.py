"""A request's prompt as token ids, exactly as the engine will see them.

The engine renders and encodes: ``/apply-template`` of the fields that shape the prompt, then
``/tokenize`` with special tokens added and parsed, which is what it does itself before inference.
Whole prompts are kept by digest, within a bound in bytes. The head of a conversation (all up to
its first user message) is kept the same way, so that a later turn pays for no extra call.

Not exact: prompts with images or audio. Their tokens before the first such part are right; the
rest counts the template's marker only.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

from policies.prefix import EMPTY, Tokens, lcp, pack
from proxy.engine import EngineClient
from proxy.errors import UpstreamError, bad
from proxy.prepare import OFF_LOOP_BYTES, Kind, Prepared

DEFAULT_CACHE_BYTES = 64 * 1024 * 1024

_RENDERING = frozenset(
    (
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "json_schema",
        "grammar",
        "chat_template_kwargs",
        "reasoning_effort",
        "reasoning_format",
        "add_generation_prompt",
        "continue_final_message",
        "enable_thinking",
        "parse_tool_calls",
        "functions",
        "function_call",
    )
)
"""The fields that the engine's chat parser reads to make the prompt."""

_ENTRY_BYTES = 400  # the key, the objects and the dictionary's own share
_ID_LIMIT = 2**31
_MANY_IDS = 20_000  # packing more than this would hold up the loop for milliseconds


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the scheduler takes it; see ``policies.types.Request``."""

    tokens: Tokens
    first_user_end: int
    turns: int


class TokenCache:
    """The prompts used last, by digest, bounded in bytes."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[bytes, Tokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Tokens | None:
        tokens = self._entries.get(key)
        if tokens is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return tokens

    def put(self, key: bytes, tokens: Tokens) -> None:
        if key in self._entries or _cost_bytes(tokens) > self.max_bytes:
            return
        self._entries[key] = tokens
        self.size_bytes += _cost_bytes(tokens)
        while self.size_bytes > self.max_bytes:
            self.size_bytes -= _cost_bytes(self._entries.popitem(last=False)[1])


class Tokenizer:
    """Encodes requests with the engine's help. One for all profiles: the keys keep them apart."""

    def __init__(self, cache: TokenCache | None = None) -> None:
        self.cache = cache or TokenCache()

    async def encode(self, engine: EngineClient, request: Prepared) -> Encoded:
        """The exact prompt of a request.

        Raises ``ProxyError`` for a prompt of a wrong kind, ``UpstreamError`` where the engine
        refuses it (its template's own words), ``EngineUnreachableError``.
        """
        if request.kind is Kind.COMPLETION:
            return Encoded(await self._raw(engine, request), first_user_end=0, turns=1)
        shape = {name: value for name, value in request.fields.items() if name in _RENDERING}
        tokens = await self._rendered(engine, request, shape)
        head = await self._head(engine, request, shape)
        messages = request.fields["messages"]
        return Encoded(
            tokens=tokens,
            first_user_end=lcp(tokens, head),
            turns=1 + sum(message["role"] == "assistant" for message in messages),
        )

    async def _rendered(
        self, engine: EngineClient, request: Prepared, shape: dict[str, Any]
    ) -> Tokens:
        key = await _digest(request.profile, shape, request.size_bytes)
        tokens = self.cache.get(key)
        if tokens is None:
            prompt = await engine.apply_template(shape)
            tokens = await _packed(await engine.tokenize(prompt))
            self.cache.put(key, tokens)
        return tokens

    async def _head(self, engine: EngineClient, request: Prepared, shape: dict[str, Any]) -> Tokens:
        """The conversation up to and including its first user message, rendered on its own."""
        messages = shape["messages"]
        first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
        if first is None:
            return EMPTY
        head = {**shape, "messages": messages[: first + 1], "add_generation_prompt": False}
        head.pop("continue_final_message", None)
        try:
            return await self._rendered(engine, request, head)
        except UpstreamError:
            # Some templates refuse a head on its own; the request itself was rendered.
            return EMPTY

    async def _raw(self, engine: EngineClient, request: Prepared) -> Tokens:
        content = _raw_prompt(request.fields["prompt"])
        if isinstance(content, list) and not any(isinstance(part, str) for part in content):
            # Ids are taken as they are, as the engine takes them: no special token is added.
            return await _packed(content)
        key = await _digest(request.profile, {"prompt": content}, request.size_bytes)
        tokens = self.cache.get(key)
        if tokens is None:
            tokens = await _packed(await engine.tokenize(content))
            self.cache.put(key, tokens)
        return tokens


def _raw_prompt(prompt: Any) -> str | list[str | int]:
    """One prompt: a text, ids, or a mix of both; anything else is a clear 400."""
    if isinstance(prompt, list) and len(prompt) == 1 and not _is_id(prompt[0]):
        prompt = prompt[0]  # a list of one prompt is that prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        names = ", ".join(sorted(str(name) for name in prompt)) or "no fields"
        raise bad(
            "prompt",
            f"prompt: an object ({names}) is not supported through slotwise, "
            "expected a string, token ids, or a mixed list of both",
        )
    if not isinstance(prompt, list) or not prompt:
        got = "an empty list" if prompt == [] else type(prompt).__name__
        raise bad("prompt", f"prompt: expected a string or a list of token ids, got {got}")
    if any(isinstance(part, list | Mapping) for part in prompt) or all(
        isinstance(part, str) for part in prompt
    ):
        raise bad(
            "prompt",
            f"prompt: a list of {len(prompt)} prompts is not supported through slotwise, "
            "send one request for each",
        )
    for i, part in enumerate(prompt):
        if not isinstance(part, str) and not _is_id(part):
            raise bad(f"prompt[{i}]", f"prompt[{i}]: expected a token id or text, got {part!r:.60}")
    return prompt


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _ID_LIMIT


async def _packed(ids: list[Any]) -> Tokens:
    return pack(ids) if len(ids) <= _MANY_IDS else await asyncio.to_thread(pack, ids)


async def _digest(profile: str, shape: Mapping[str, Any], size_bytes: int) -> bytes:
    def digest() -> bytes:
        return blake2b(profile.encode() + b"\0" + orjson.dumps(shape), digest_size=16).digest()

    return digest() if size_bytes <= OFF_LOOP_BYTES else await asyncio.to_thread(digest)


def _cost_bytes(tokens: Tokens) -> int:
    """What an entry holds: 4 bytes an id, and a digest object for each block of 256."""
    packed = len(tokens.packed)
    return packed + packed // 1024 * 57 + _ENTRY_BYTES

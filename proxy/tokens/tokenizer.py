"""A request's prompt as token ids, exactly as the engine will see them.

What the engine does before inference is rendering (``/apply-template``) and encoding with special
tokens added and parsed (``/tokenize``). Both are done here where that was proven equal
(``verification.py``), in time that depends on the new text alone; else the engine is asked.

Where the text of each message ends is found in the rendered text (:mod:`proxy.chat.sections`); only
where that leaves the end of the first user turn open, the head of the conversation is rendered once
more. Prompts that the engine rendered are kept by digest, within a bound in bytes, unless the
template tells the time.

Images and audio are counted by the engine and stand in a prompt as ids of their own
(``media.py``); the prompts of ``/infill`` are put together in ``infill.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import orjson

from slotwise.policies.prefix import EMPTY, Tokens, lcp, pack
from slotwise.policies.types import Section
from slotwise.proxy.chat.request import (
    OFF_LOOP_BYTES,
    GenerationRequest,
    Kind,
    off_loop,
    raw_prompt,
)
from slotwise.proxy.chat.sections import Layout, Specials, layout, markers
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import UpstreamError
from slotwise.proxy.tokens.encoders import EncoderGoneError, LocalTokenizer, Source
from slotwise.proxy.tokens.infill import Infill
from slotwise.proxy.tokens.media import MediaPrompts, Medium, without_media
from slotwise.proxy.tokens.prompt_encoder import (
    KnownPrompts,
    PromptEncoder,
    RecentlyUsed,
    SegmentCache,
    TokenizedText,
)
from slotwise.proxy.tokens.verification import (
    RenderingPlan,
    VerificationStatus,
    VerifiedEngine,
    packed,
    text_tokens,
    tokenized_text,
)


async def sections_of(
    prompts: PromptEncoder, tokenized: TokenizedText, shape: Mapping[str, Any]
) -> tuple[tuple[Section, ...], int | None]:
    """The sections of a prompt in tokens, and the end of its first user turn, where certain."""
    spans = [(tokenized.ends[i - 1], tokenized.ends[i]) for i in tokenized.cuts]
    names = [name for tool in shape.get("tools") or () if (name := _name_of(tool))]
    messages: Sequence[Mapping[str, Any]] = shape["messages"]

    def find() -> Layout:
        known = spans if len(spans) >= len(messages) else markers(tokenized.text)
        return layout(tokenized.text, Specials(known), messages, names)

    found = find() if len(tokenized.text) <= OFF_LOOP_BYTES else await asyncio.to_thread(find)
    return await _in_tokens(prompts, tokenized, found)


async def _in_tokens(
    prompts: PromptEncoder, tokenized: TokenizedText, found: Layout
) -> tuple[tuple[Section, ...], int | None]:
    places = [part.end for part in found.parts]
    if found.first_user_end is not None:
        places.append(found.first_user_end)
    positions = await prompts.positions(tokenized, places)
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


DEFAULT_CACHE_BYTES = 32 * 1024 * 1024
_ENTRY_BYTES = 400  # the key, the objects and the dictionary's own share


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the scheduler takes it; see ``slotwise.policies.types.Request``."""

    tokens: Tokens
    first_user_end: int
    turns: int
    sections: tuple[Section, ...] = ()


class TokenCache(RecentlyUsed[Encoded]):
    """The prompts used last that the engine rendered, by digest, bounded in bytes."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        super().__init__(max_bytes, _cost_bytes)


def _cost_bytes(encoded: Encoded) -> int:
    """What an entry holds: 4 bytes an id, a digest object for each block of 256, sections."""
    packed = len(encoded.tokens.packed)
    return packed + packed // 1024 * 57 + 100 * len(encoded.sections) + _ENTRY_BYTES


__all__ = ("Encoded", "TokenCache", "Tokenizer")

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

_CLOSE_S = 2.0


class Tokenizer:
    """Encodes requests for all profiles. ``sources``: what is known of each one's tokenizer."""

    def __init__(
        self, cache: TokenCache | None = None, sources: Mapping[str, Source] | None = None
    ) -> None:
        self.cache = cache or TokenCache()
        self.segments = SegmentCache()
        self.known_prompts = KnownPrompts()
        sources = sources or {}
        self._sources = dict(sources)
        self._infill = Infill(self._sources)
        self._media = MediaPrompts()
        self._locals = {name: LocalTokenizer(name, source) for name, source in sources.items()}
        self._known: WeakKeyDictionary[EngineClient, VerifiedEngine] = WeakKeyDictionary()
        self._latest: dict[str, VerifiedEngine] = {}  # by profile: what is shown
        self._tasks: set[asyncio.Task[None]] = set()
        self._made = 0

    def ready(self, engine: EngineClient, profile: str) -> VerifiedEngine | None:
        """An engine serves: start to compare with it, once; None: there is nothing to compare."""
        known = self._known.get(engine)
        if known is None and profile in self._sources:
            self._made += 1
            known = VerifiedEngine(
                profile,
                self._sources[profile],
                self._locals[profile],
                self.segments,
                self.known_prompts,
                self._made,
            )
            self._known[engine] = self._latest[profile] = known
            self._start(known.prove(engine))
        elif known is not None and known.again():
            self._start(known.prove(engine))
        return known

    def job_statuses(self) -> dict[str, tuple[VerificationStatus, VerificationStatus]]:
        """By profile: who encodes and who renders for the engine that came last."""
        return {name: (known.tokenizer, known.rendering) for name, known in self._latest.items()}

    def snapshot(self) -> dict[str, object]:
        """Plain data for ``/slotwise/status``: who does what and why, and what is kept (bytes)."""
        return {
            "profiles": {
                name: {
                    "tokenizer": {"by": known.tokenizer.state, "why": known.tokenizer.reason},
                    "template": {"by": known.rendering.state, "why": known.rendering.reason},
                    "compared": known.checked,
                    "differences": known.differences,
                }
                for name, known in self._latest.items()
            },
            "segments": _usage(self.segments, self.segments.hits, self.segments.misses),
            "prompts": _usage(self.cache, self.cache.hits, self.cache.misses),
            "conversations": _usage(self.known_prompts),
        }

    async def close(self) -> None:
        """End the comparisons and the tokenizers' processes."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for local in self._locals.values():
            await local.close()

    async def encode(self, engine: EngineClient, request: GenerationRequest) -> Encoded:
        """The exact prompt of a request.

        Raises ``ProxyError`` for a prompt of a wrong kind, ``UpstreamError`` where the engine
        refuses it (its template's own words), ``EngineUnreachableError``.
        """
        known = self.ready(engine, request.profile)
        if request.kind is Kind.COMPLETION:
            tokens = await self._raw(engine, known, request)
            return Encoded(tokens, first_user_end=0, turns=1)
        if request.kind is Kind.INFILL:
            tokens = await self._infill.encode(engine, known, request)
            return Encoded(tokens, first_user_end=0, turns=1)
        shape = {name: value for name, value in request.fields.items() if name in _RENDERING}
        shape, media = await off_loop(without_media, shape, request.size_bytes)
        plan = known.plan(shape) if known and not media else None
        # Rendered here a prompt comes faster than its digest; and tomorrow the date is another.
        kept = not (plan and plan.here) and not (known and known.tells_time())
        key = await _digest(request, shape, media) if kept else b""
        encoded = self.cache.get(key) if key else None
        if encoded is None:
            encoded = await self._chat(engine, known, plan, request, shape, media)
            if key:
                self.cache.put(key, encoded)
        return encoded

    async def _chat(
        self,
        engine: EngineClient,
        known: VerifiedEngine | None,
        plan: RenderingPlan | None,
        request: GenerationRequest,
        shape: dict[str, Any],
        media: Sequence[Medium],
    ) -> Encoded:
        if known is not None and plan is not None:
            text = await known.text(engine, shape, plan, request.size_bytes)
        else:
            text = await engine.apply_template(shape)
        messages: list[Any] = shape["messages"]
        turns = 1 + sum(message["role"] == "assistant" for message in messages)
        tokenized = await self._tokenized(engine, known, request, text, media)
        sections, first_user_end = one_section(tokenized.tokens), None
        prompts = known.prompts if known else None
        if known is not None and prompts is not None:
            try:
                sections, first_user_end = await sections_of(prompts, tokenized, shape)
            except EncoderGoneError as error:
                known.lost(error)
        if first_user_end is None:
            head = await self._head(engine, known, request, shape, media)
            first_user_end = lcp(tokenized.tokens, head)
        if known is not None and not media and known.due():
            self._start(known.recheck(engine, text, shape))
        return Encoded(tokenized.tokens, first_user_end, turns, sections)

    async def _tokenized(
        self,
        engine: EngineClient,
        known: VerifiedEngine | None,
        request: GenerationRequest,
        text: str,
        media: Sequence[Medium],
    ) -> TokenizedText:
        if media:
            return await self._media.encode(engine, known, request.profile, text, media)
        return await tokenized_text(engine, known, text)

    async def _head(
        self,
        engine: EngineClient,
        known: VerifiedEngine | None,
        request: GenerationRequest,
        shape: dict[str, Any],
        media: Sequence[Medium],
    ) -> Tokens:
        """The conversation up to and including its first user message, rendered on its own."""
        messages = shape["messages"]
        first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
        if first is None:
            return EMPTY
        head = {**shape, "messages": messages[: first + 1], "add_generation_prompt": False}
        head.pop("continue_final_message", None)
        media = [medium for medium in media if medium.message <= first]
        clock = known is not None and known.tells_time()
        key = b"" if clock else await _digest(request, head, media)
        kept = self.cache.get(key) if key else None
        if kept is not None:
            return kept.tokens
        try:
            text = await engine.apply_template(head)
        except UpstreamError:
            # Some templates refuse a head on its own; the request itself was rendered.
            return EMPTY
        tokens = (await self._tokenized(engine, known, request, text, media)).tokens
        if key:
            self.cache.put(key, Encoded(tokens, 0, 1))
        return tokens

    async def _raw(
        self, engine: EngineClient, known: VerifiedEngine | None, request: GenerationRequest
    ) -> Tokens:
        content = raw_prompt(request.fields["prompt"])
        if isinstance(content, list) and not any(isinstance(part, str) for part in content):
            # Ids are taken as they are, as the engine takes them: no special token is added.
            return await packed([part for part in content if isinstance(part, int)])
        if known is None or known.prompts is None:
            return await self._raw_by_engine(engine, request, content)
        if isinstance(content, str):
            tokens = await text_tokens(engine, known, content)
            if known.due():
                self._start(known.recheck(engine, content, None))
            return tokens
        parts = [
            await text_tokens(engine, known, part, whole=i == 0)
            if isinstance(part, str)
            else pack([part])
            for i, part in enumerate(content)
        ]
        return Tokens(b"".join(part.packed for part in parts))

    async def _raw_by_engine(
        self, engine: EngineClient, request: GenerationRequest, content: str | list[str | int]
    ) -> Tokens:
        key = await _digest(request, {"prompt": content})
        kept = self.cache.get(key)
        if kept is not None:
            return kept.tokens
        tokens = await packed(await engine.tokenize(content))
        self.cache.put(key, Encoded(tokens, 0, 1))
        return tokens

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _usage(cache: Any, hits: int | None = None, misses: int | None = None) -> dict[str, int]:
    used = {"entries": len(cache), "bytes": cache.size_bytes, "max_bytes": cache.max_bytes}
    return used if hits is None or misses is None else {**used, "hits": hits, "misses": misses}


async def _digest(
    request: GenerationRequest, shape: Mapping[str, Any], media: Sequence[Medium] = ()
) -> bytes:
    # The date: a template that nothing is known of may print it.
    salt = f"{request.profile}\0{date.today()}\0".encode()
    salt += b"".join(medium.digest for medium in media) + b"\0"

    def digest(content: Mapping[str, Any]) -> bytes:
        return blake2b(salt + orjson.dumps(content), digest_size=16).digest()

    found: bytes = await off_loop(digest, shape, request.size_bytes)
    return found

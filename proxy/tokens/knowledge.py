"""What is proven of one engine: whether its prompts may be rendered and encoded here.

Until the proof is done, and wherever it fails, the engine renders and encodes. It always states
which of both it is, and why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from slotwise.proxy.chat.prepare import OFF_LOOP_BYTES
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.tokens.encoders import Encoder, EncoderGoneError, EngineEncoder, Source
from slotwise.proxy.tokens.known_prompts import SegmentCache, Trails
from slotwise.proxy.tokens.local_encoder import UnsupportedError
from slotwise.proxy.tokens.local_tokenizer import Local
from slotwise.proxy.tokens.probe_chats import PROBE_CHATS
from slotwise.proxy.tokens.prompt_encoder import Edges, PromptEncoder
from slotwise.proxy.tokens.proof import (
    RECHECK_EVERY,
    compare,
    edges_of,
    first_difference,
    probe_texts,
)
from slotwise.proxy.tokens.render import (
    NotRenderedError,
    Renderer,
    Template,
    may_render,
    template_of,
)
from slotwise.proxy.tokens.rendered_alike import Shapes, shape_of
from slotwise.proxy.tokens.segments import Cuts

log = logging.getLogger(__name__)

PROOF_TRIES = 3  # more, where the engine was gone or busy

State = Literal["local", "engine", "proving"]


@dataclass(frozen=True, slots=True)
class Standing:
    """Who does a job for a profile, and why."""

    job: Literal["tokenizer", "template"]
    state: State
    reason: str


class Plan(NamedTuple):
    """``here``: rendered by the proxy; None: not known yet, so both render and are compared."""

    shape: bytes
    here: bool | None


class Knowledge:
    """One engine of a profile. ``number``: keeps its entries in the shared caches apart."""

    def __init__(
        self,
        profile: str,
        source: Source,
        local: Local,
        segments: SegmentCache,
        trails: Trails,
        number: int,
    ) -> None:
        self.profile = profile
        self.tokenizer = Standing("tokenizer", "proving", "not compared yet")
        self.rendering = Standing("template", "proving", "not compared yet")
        self.prompts: PromptEncoder | None = None
        self.checked = 0  # texts compared
        self.differences = 0
        self.template: Template | None = None
        self._source = source
        self._local = local
        self._segments = segments
        self._trails = trails
        self._salt = number.to_bytes(8, "little")
        self._renderer: Renderer | None = None
        self._shapes = Shapes()
        self._encoded = 0
        self._tries_left = PROOF_TRIES
        self._broken = False

    # ------------------------------------------------------------ the proof

    async def prove(self, engine: EngineClient) -> None:
        """Compare on the corpora; never raises, the standings tell."""
        self._broken = False
        try:
            edges = await edges_of(engine)
            await self._prove_tokenizer(engine, edges)
            await self._prove_template(engine, edges)
        except (EngineUnreachableError, UpstreamError) as error:
            self._broken_off(f"the comparison broke off: {error!s:.200}")
        except Exception:
            log.exception("profile %s: comparing with the engine", self.profile)
            self._broken_off("the comparison broke off by a fault of slotwise, see the log")

    def again(self) -> bool:
        """Whether the comparison broke off and should be tried once more; counts the tries."""
        if not self._broken or self._tries_left <= 0:
            return False
        self._broken = False
        self._tries_left -= 1
        return True

    def _broken_off(self, why: str) -> None:
        self._broken = True
        for standing in (self.tokenizer, self.rendering):
            if standing.state == "proving":
                self._set(Standing(standing.job, "engine", why))

    async def _prove_tokenizer(self, engine: EngineClient, edges: Edges | None) -> None:
        if edges is None:
            untold = "what the engine adds to a prompt cannot be told"
            return self._set(Standing("tokenizer", "engine", untold))
        why: str | None
        try:
            encoder, cuts = await self._local.get()
            prompts = self._encoder_of(encoder, cuts, edges, self._local.salt)
            why = None
            for part in encoder.parts:
                why = why or await self._differs(engine, part, cuts, edges)
        except (UnsupportedError, EncoderGoneError) as error:
            why = str(error)
        else:
            if why is None:
                self.prompts = prompts
                equal = f"equal on {self.checked} texts"
                return self._set(Standing("tokenizer", "local", equal))
        why = await self._by_segments(engine, edges, why)
        return self._set(Standing("tokenizer", "engine", why))

    async def _by_segments(self, engine: EngineClient, edges: Edges, why: str) -> str:
        """The engine encodes, but only what is new, where the special tokens are known."""
        try:
            vocabulary = await asyncio.to_thread(self._source.load_vocabulary)
        except UnsupportedError:
            vocabulary = None
        if vocabulary is None or vocabulary.strips():
            return why
        cuts = await asyncio.to_thread(Cuts, vocabulary.specials())
        if not cuts.certain or not any(text != "<unk>" for text in cuts.clean):
            return why
        encoder = EngineEncoder(engine, cuts)
        prompts = self._encoder_of(encoder, cuts, edges, self._salt)
        if await self._differs(engine, encoder, cuts, edges) is not None:
            return why
        self.prompts = prompts
        return f"{why}; new segments only"

    def _encoder_of(self, encoder: Encoder, cuts: Cuts, edges: Edges, salt: bytes) -> PromptEncoder:
        return PromptEncoder(encoder, cuts, edges, salt, self._segments, self._trails)

    async def _differs(
        self,
        engine: EngineClient,
        encoder: Encoder,
        cuts: Cuts,
        edges: Edges,
    ) -> str | None:
        """Why not, in words; None: equal on every text."""
        trial = PromptEncoder(
            encoder, cuts, edges, b"trial", SegmentCache(0), Trails(0)
        )  # nothing of the corpus is kept
        texts = await asyncio.to_thread(probe_texts, [*cuts.clean, *(t for t, _ in cuts.tangled)])
        found = await first_difference(trial, engine, texts)
        self.checked += len(texts)
        self.differences += found is not None
        return None if found is None else str(found)

    async def _prove_template(self, engine: EngineClient, edges: Edges | None) -> None:
        props = await engine.props()
        self.template = template_of(
            props,
            edges is not None and bool(edges.before),
            edges is not None and bool(edges.behind),
        )
        if self.template is None:
            return self._set(Standing("template", "engine", "the engine does not tell it"))
        try:
            self._renderer = await asyncio.to_thread(Renderer, self.template)
        except NotRenderedError as error:
            return self._set(Standing("template", "engine", str(error)))
        equal = 0
        for chat in PROBE_CHATS:
            mine = self._rendered(chat)
            try:
                theirs: str | None = await engine.apply_template(chat)
            except UpstreamError:
                theirs = None  # the template refuses this one
            if mine is not None and mine != theirs:
                self._renderer = None
                why = "a conversation renders otherwise than in the engine"
                return self._set(Standing("template", "engine", why))
            if mine is not None:
                equal += 1
                self._shapes.put(shape_of(chat), True)
        if not equal:
            self._renderer = None
            return self._set(Standing("template", "engine", "it renders in the engine only"))
        return self._set(Standing("template", "local", f"equal on {equal} conversations"))

    def _set(self, standing: Standing) -> None:
        log.info(
            "profile %s: %s %s (%s)", self.profile, standing.job, standing.state, standing.reason
        )
        if standing.job == "tokenizer":
            self.tokenizer = standing
        else:
            self.rendering = standing

    # ------------------------------------------------------------ in service

    def plan(self, fields: Mapping[str, Any]) -> Plan:
        """Who renders a request, by what was seen of its shape."""
        if self._renderer is None or not may_render(fields):
            return Plan(b"", False)
        shape = shape_of(fields)
        return Plan(shape, self._shapes.proven(shape))

    async def text(
        self, engine: EngineClient, fields: dict[str, Any], plan: Plan, size_bytes: int = 0
    ) -> str:
        """The prompt's text. The first of each shape is rendered by both, and compared."""
        if plan.here:
            if size_bytes > OFF_LOOP_BYTES:
                mine = await asyncio.to_thread(self._rendered, fields)
            else:
                mine = self._rendered(fields)
            if mine is not None:
                return mine
        text = await engine.apply_template(fields)
        if plan.here is None:
            mine = self._rendered(fields)
            self.checked += 1
            self._shapes.put(plan.shape, mine == text)
            if mine is not None and mine != text:
                self.differences += 1
                log.info("profile %s: a kind of request renders in the engine only", self.profile)
        return text

    def _rendered(self, fields: Mapping[str, Any]) -> str | None:
        try:
            return self._renderer.render(fields) if self._renderer else None
        except NotRenderedError:
            return None

    def due(self) -> bool:
        """Count one prompt; whether it is one of those that are compared again."""
        self._encoded += 1
        return self._encoded % RECHECK_EVERY == 0

    async def recheck(self, engine: EngineClient, text: str, fields: dict[str, Any] | None) -> None:
        """Compare one prompt in service; a difference ends what is done here. Never raises."""
        try:
            prompts = self.prompts
            if fields is not None and self.plan(fields).here and not self.tells_time():
                self.checked += 1
                if await engine.apply_template(fields) != text:
                    self._renderer = None
                    self._demote("template", "a conversation in service rendered otherwise")
            if prompts is None:
                return
            self.checked += 1
            found = await compare((await prompts.encode(text)).tokens, engine, text)
            if found is not None and self.prompts is prompts:
                self.prompts = None
                self._demote("tokenizer", f"in service, {found}")
        except (EngineUnreachableError, UpstreamError, EncoderGoneError) as error:
            log.info("profile %s: a comparison broke off: %s", self.profile, error)

    def lost(self, error: EncoderGoneError) -> None:
        """The local tokenizer is gone: the engine's is used from now on."""
        if self.prompts is not None:
            self.prompts = None
            self._set(Standing("tokenizer", "engine", str(error)))

    def tells_time(self) -> bool:
        """Whether a prompt may depend on when it is rendered; such a prompt is not kept."""
        return self.template is None or self.template.tells_time

    def _demote(self, job: Literal["tokenizer", "template"], why: str) -> None:
        self.differences += 1
        log.warning("profile %s: %s differs from the engine's: %s", self.profile, job, why)
        self._set(Standing(job, "engine", why))

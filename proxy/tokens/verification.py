"""What is proven of one engine: whether its prompts may be rendered and encoded here.

Until the proof is done, and wherever it fails, the engine renders and encodes. It always states
which of both it is, and why.
"""

from __future__ import annotations

import asyncio
import logging
import unicodedata
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import orjson

from slotwise.policies.prefix import Tokens, lcp, pack
from slotwise.proxy.chat.request import OFF_LOOP_BYTES
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.tokens.encoders import (
    Encoder,
    EncoderGoneError,
    EngineEncoder,
    LocalTokenizer,
    Source,
)
from slotwise.proxy.tokens.local_encoder import UnsupportedError
from slotwise.proxy.tokens.probes import PROBE_CHATS
from slotwise.proxy.tokens.prompt_encoder import (
    Edges,
    KnownPrompts,
    PromptEncoder,
    SegmentCache,
    TokenizedText,
)
from slotwise.proxy.tokens.segments import Segmenter
from slotwise.proxy.tokens.template import (
    NotRenderedError,
    Renderer,
    Template,
    may_render,
    template_of,
)

_MANY_IDS = 20_000  # packing more than this would hold up the loop for milliseconds


async def tokenized_text(
    engine: EngineClient, known: VerifiedEngine | None, text: str, *, whole: bool = True
) -> TokenizedText:
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
    return TokenizedText(text, [0, len(text)], [0, len(tokens)], [], tokens)


async def text_tokens(
    engine: EngineClient, known: VerifiedEngine | None, text: str, *, whole: bool = True
) -> Tokens:
    return (await tokenized_text(engine, known, text, whole=whole)).tokens


async def packed(ids: Sequence[int]) -> Tokens:
    """The ids as tokens; many of them beside the loop."""
    return pack(ids) if len(ids) <= _MANY_IDS else await asyncio.to_thread(pack, ids)


_KEPT_SHAPES = 2000


class RenderedShapes:
    """Which shapes of requests were seen to render alike here and in the engine; bounded."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, bool] = OrderedDict()

    def proven(self, shape: bytes) -> bool | None:
        """None: not compared yet."""
        equal = self._seen.get(shape)
        if equal is not None:
            self._seen.move_to_end(shape)
        return equal

    def put(self, shape: bytes, equal: bool) -> None:
        self._seen[shape] = equal
        while len(self._seen) > _KEPT_SHAPES:
            self._seen.popitem(last=False)


def shape_of(fields: Mapping[str, Any]) -> bytes:
    """All of a request that may take another path through a template, but not its texts.

    Tools and options count by value: they stay the same over a conversation.
    """
    messages = fields["messages"]
    kinds = set(map(_kind, messages))
    roles = ["", *(message["role"] for message in messages), ""]
    follows = set(pairwise(roles))
    others = {name: value for name, value in fields.items() if name != "messages"}
    key = (sorted(kinds), sorted(follows), orjson.dumps(others))
    return blake2b(repr(key).encode(), digest_size=16).digest()


def _kind(message: Mapping[str, Any]) -> tuple[object, ...]:
    content = message.get("content")
    calls = message.get("tool_calls")
    return (
        message["role"],
        type(content).__name__,
        bool(content),
        isinstance(content, list) and len(content) > 1,
        bool(message.get("reasoning_content")),
        bool(message.get("name")),
        bool(message.get("tool_call_id")),
        min(len(calls), 2) if isinstance(calls, list) else 0,
    )


RECHECK_EVERY = 1000  # requests
_SPECIALS_A_TEXT = 300
_SHOWN = 40  # characters of a text that differs

_LANGUAGES = (
    "The quick brown fox jumps over the lazy dog; don't, we'll, I'M, you'Re, it's 'tis.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. ÄÖÜß",
    "Voix ambiguë d'un cœur qui, au zéphyr, préfère les jattes de kiwis. « Où ? »",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. ЪЫ",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ΆΈΉ",
    "敏捷的棕色狐狸跳过了懒狗。你好,世界!一二三",
    "いろはにほへと ちりぬるを。カタカナ・ﾊﾝｶｸ ゠",  # noqa: RUF001
    "키스의 고유조건은 입술끼리 만나야 한다. ㄱㄴㄷ",
    "نص حكيم له سر قاطع وذو شأن عظيم ١٢٣ ؟",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "ऋषियों को सताने वाले दुष्ट राक्षसों १२३ क्षत्रज्ञ",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓ กำ",
    "বাংলা ভাষা ১২৩ தமிழ் ௧௨௩ తెలుగు ಕನ್ನಡ മലയാളം සිංහල",
    "ქართული Հայերեն አማርኛ ខ្មែរ မြန်မာ ᠮᠣᠩᠭᠣᠯ བོད་ཡིག",
    "Tiếng Việt: Ă ắ ằ ẵ ặ ẩ; İstanbul'da ışık, Ğ ğ; Łódź żółć",  # noqa: RUF001
)
_MARKS = (
    "e\u0301 e\u0301\u0302 \u0301abc a\u0301\u0301\u0301 n\u0303 \u0915\u094d\u0937 \u0301",
    "\u0301", "\u200d", "\ufe0f", "\u20e3", "a\u200bb\u200cc\u2060d\u00ade\ufeff",
    "I\u0307 \u1e9b\u0323 \ufb01 \ufb03 \u212b \u2126 \u00c5 A\u030a",
)  # fmt: skip
_EMOJI = (
    "🙂👍🏽👨‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵❤️🫠🫨 1️⃣ #️⃣ ☃️⛄ 🧑‍🚀",
    "🙂🙂🙂 a🙂b 🙂\n🙂\t🙂",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒜𝓃𝒹 𝟙𝟚𝟛 𐍈 𒀀 𓀀 🀄 🂡 𠀀𠀁 ｆｕｌｌ ①②③ ½ ² ⅷ Ⅷ",  # noqa: RUF001
)
_DIGITS = (
    "0 1 12 123 1234 12345 123456 1234567 12345678 3.14159 1,000,000 0x1F 1e-9 -42 +7 007",
    "1a2b3c 12ab34 v1.2.3-rc4 2024-02-29T23:59:60Z 192.168.0.1 ٣٤٥ ५६७ ⅓ ①",
)
_CODE = (
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # ok\n\n\nclass A:\n\tpass\r\n\r\n",
    "for (int i = 0; i < n; ++i) { a[i] *= b->c; } // ->=>=== !== <<= >>= && || ??",
    '{"a": [1, 2.5, null, true], "b\\n": "\\u00e9\\"", "c": {}}',
    "<html><body class='x'>&nbsp;<a href=\"#\">x</a></body></html><!-- -- --><br/><table><h1>",
    "$ rm -rf /tmp/x && echo \"$HOME\" | sed 's/[^a-z]*//g' > out.txt 2>&1; `ls` $(pwd)",
    "SELECT * FROM t WHERE a = 'b''c' AND d <> 1;--\n\\frac{a}{b} \\\\ $$x^2$$ ~~s~~ **b** __i__",
    "camelCaseSnake_case SCREAMING_CASE kebab-case path/to/file.ext C:\\dir\\file @user #tag",
    "'S 'T 'RE 'VE 'M 'LL 'D 'sS 's't ''s '1 ’s don’t",  # noqa: RUF001
)
_SPACES = (
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r", "\r\n", "\r\n\r\n", " \n",
    "\n ", " \n \n  \n", "a ", " a", "  a", "a  b", "a   b", "a\n\nb", "a \n b", "a\t\tb\t",
    "a\u00a0b", "\u00a0a", "a\u2003b\u3000c", "\u3000\u3000a", "a\u2028b\u2029c\x85d", "\x0b\x0c",
    "\n" * 31, "\n" * 33, "\n" * 70, " " * 15, " " * 17, " " * 40, " " * 300, "\t" * 33,
    "a" + " " * 31 + "b" + "\n" * 32 + "c" + "\t" * 9 + "d", " \t \n\t \r\n\t x", "x\n" * 50,
    "▁", "▁▁", "a▁b ▁ c▁▁▁d", " ▁ ",
)  # fmt: skip
_ODD = (
    "".join(map(chr, range(0, 32))),
    "".join(map(chr, range(127, 256))),
    "\x00", "a\x00b", "\ufffd", "\ufffe\uffff", "\ue000\uf8ff", "\U0010ffff", "\U000e0001",
    "<0x0A>", "<0x41><0xE2>", "<unk>", "[UNK]", "<s></s>", "<|", "|>", "<|im_start", "im_end|>",
    "<|im_start|", "<<|im_start|>>", "[INST] [/INST] [/ INST]", "<bos", "<start_of_turn",
    "a" * 300, "ab" * 200, "é" * 100, "你" * 100, "🙂" * 60, "-" * 120, "=" * 81, "0" * 64,
    "_" * 50,
    "aaaa bbbb aaaa" * 20, "Aa" * 40, ".,;:!?" * 12, "()[]{}" * 12, "/\\|" * 15, "\"'`" * 15,
)  # fmt: skip
_CORPUS = (*_LANGUAGES, *_MARKS, *_EMOJI, *_DIGITS, *_CODE, *_SPACES, *_ODD)


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A text on which both do not agree."""

    text: str
    at: int  # token position of the first difference

    def __str__(self) -> str:
        return f"token {self.at} of {self.text[:_SHOWN]!a} differs from the engine's"


def probe_texts(specials: Iterable[str]) -> list[str]:
    """Scripts, marks, emoji, digits, code, white space, odd characters, every special token."""
    texts = [*_CORPUS, "\n".join(_LANGUAGES), " ".join(_CODE), "".join(_MARKS), "".join(_EMOJI)]
    texts += _planes()
    names = sorted(specials)
    for n in range(0, len(names), _SPECIALS_A_TEXT):
        some = names[n : n + _SPECIALS_A_TEXT]
        texts.append("".join(some))
        texts.append("".join(f"a{name}b {name} \n{name}\n {name[:-1]}" for name in some))
    for name in names[:50]:
        texts += [name, f" {name}", f"{name} ", f"{name}\n\n{name}", f"x{name}\u0301{name} y"]
        texts += [f"{name}{name}{name}", f"{name[:-1]}{name}{name[1:]}", f"\n{name}\n\n\n{name}\t"]
    return texts


def _planes() -> list[str]:
    """Every 5th assigned character, beside a letter, a space and itself."""
    chars = [
        chr(point)
        for point in range(0x20, 0x20000, 5)
        if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co")
    ]
    chunk = 1500
    return [
        "".join(f"a{char} {char}{char}" for char in chars[n : n + chunk])
        for n in range(0, len(chars), chunk)
    ]


async def edges_of(engine: EngineClient) -> Edges | None:
    """What the engine adds to every prompt; None: it cannot be told apart.

    In a list that begins with an id, the engine adds nothing.
    """
    empty, whole = await engine.tokenize(""), await engine.tokenize("a")
    first = whole[0] if whole else 0
    inner = (await engine.tokenize([first, "a"]))[1:]
    for n in range(len(empty) + 1):
        if whole == [*empty[:n], *inner, *empty[n:]]:
            return Edges(_packed(empty[:n]), _packed(empty[n:]))
    return None


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


async def first_difference(
    encoder: PromptEncoder, engine: EngineClient, texts: Iterable[str]
) -> TokenDifference | None:
    """Compare on each text; raises what the engine's calls raise."""
    for text in texts:
        found = await compare((await encoder.encode(text)).tokens, engine, text)
        if found is not None:
            return found
    return None


async def compare(tokens: Tokens, engine: EngineClient, text: str) -> TokenDifference | None:
    """Compare the tokens of a text with the engine's own."""
    right = pack(await engine.tokenize(text))
    return None if tokens == right else TokenDifference(text, lcp(tokens, right))


log = logging.getLogger(__name__)

PROOF_TRIES = 3  # more, where the engine was gone or busy

State = Literal["local", "engine", "proving"]


@dataclass(frozen=True, slots=True)
class VerificationStatus:
    """Who does a job for a profile, and why."""

    job: Literal["tokenizer", "template"]
    state: State
    reason: str


class RenderingPlan(NamedTuple):
    """``here``: rendered by the proxy; None: not known yet, so both render and are compared."""

    shape: bytes
    here: bool | None


class VerifiedEngine:
    """One engine of a profile. ``number``: keeps its entries in the shared caches apart."""

    def __init__(
        self,
        profile: str,
        source: Source,
        local: LocalTokenizer,
        segments: SegmentCache,
        known_prompts: KnownPrompts,
        number: int,
    ) -> None:
        self.profile = profile
        self.tokenizer = VerificationStatus("tokenizer", "proving", "not compared yet")
        self.rendering = VerificationStatus("template", "proving", "not compared yet")
        self.prompts: PromptEncoder | None = None
        self.checked = 0  # texts compared
        self.differences = 0
        self.template: Template | None = None
        self._source = source
        self._local = local
        self._segments = segments
        self._known_prompts = known_prompts
        self._salt = number.to_bytes(8, "little")
        self._renderer: Renderer | None = None
        self._shapes = RenderedShapes()
        self._encoded = 0
        self._tries_left = PROOF_TRIES
        self._broken = False

    # ------------------------------------------------------------ the proof

    async def prove(self, engine: EngineClient) -> None:
        """Compare on the corpora; never raises, the statuses say how it went."""
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
        for status in (self.tokenizer, self.rendering):
            if status.state == "proving":
                self._set(VerificationStatus(status.job, "engine", why))

    async def _prove_tokenizer(self, engine: EngineClient, edges: Edges | None) -> None:
        if edges is None:
            untold = "what the engine adds to a prompt cannot be told"
            return self._set(VerificationStatus("tokenizer", "engine", untold))
        why: str | None
        try:
            encoder, segmenter = await self._local.get()
            prompts = self._encoder_of(encoder, segmenter, edges, self._local.salt)
            why = None
            for part in encoder.parts:
                why = why or await self._differs(engine, part, segmenter, edges)
        except (UnsupportedError, EncoderGoneError) as error:
            why = str(error)
        else:
            if why is None:
                self.prompts = prompts
                equal = f"equal on {self.checked} texts"
                return self._set(VerificationStatus("tokenizer", "local", equal))
        why = await self._by_segments(engine, edges, why)
        return self._set(VerificationStatus("tokenizer", "engine", why))

    async def _by_segments(self, engine: EngineClient, edges: Edges, why: str) -> str:
        """The engine encodes, but only what is new, where the special tokens are known."""
        try:
            vocabulary = await asyncio.to_thread(self._source.load_vocabulary)
        except UnsupportedError:
            vocabulary = None
        if vocabulary is None or vocabulary.strips():
            return why
        segmenter = await asyncio.to_thread(Segmenter, vocabulary.specials())
        if not segmenter.certain or not any(text != "<unk>" for text in segmenter.clean):
            return why
        encoder = EngineEncoder(engine, segmenter)
        prompts = self._encoder_of(encoder, segmenter, edges, self._salt)
        if await self._differs(engine, encoder, segmenter, edges) is not None:
            return why
        self.prompts = prompts
        return f"{why}; new segments only"

    def _encoder_of(
        self, encoder: Encoder, segmenter: Segmenter, edges: Edges, salt: bytes
    ) -> PromptEncoder:
        return PromptEncoder(encoder, segmenter, edges, salt, self._segments, self._known_prompts)

    async def _differs(
        self,
        engine: EngineClient,
        encoder: Encoder,
        segmenter: Segmenter,
        edges: Edges,
    ) -> str | None:
        """Why not, in words; None: equal on every text."""
        trial = PromptEncoder(
            encoder, segmenter, edges, b"trial", SegmentCache(0), KnownPrompts(0)
        )  # nothing of the corpus is kept
        texts = await asyncio.to_thread(
            probe_texts, [*segmenter.clean, *(t for t, _ in segmenter.tangled)]
        )
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
            return self._set(
                VerificationStatus("template", "engine", "the engine does not tell it")
            )
        try:
            self._renderer = await asyncio.to_thread(Renderer, self.template)
        except NotRenderedError as error:
            return self._set(VerificationStatus("template", "engine", str(error)))
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
                return self._set(VerificationStatus("template", "engine", why))
            if mine is not None:
                equal += 1
                self._shapes.put(shape_of(chat), True)
        if not equal:
            self._renderer = None
            return self._set(
                VerificationStatus("template", "engine", "it renders in the engine only")
            )
        return self._set(VerificationStatus("template", "local", f"equal on {equal} conversations"))

    def _set(self, status: VerificationStatus) -> None:
        log.info("profile %s: %s %s (%s)", self.profile, status.job, status.state, status.reason)
        if status.job == "tokenizer":
            self.tokenizer = status
        else:
            self.rendering = status

    # ------------------------------------------------------------ in service

    def plan(self, fields: Mapping[str, Any]) -> RenderingPlan:
        """Who renders a request, by what was seen of its shape."""
        if self._renderer is None or not may_render(fields):
            return RenderingPlan(b"", False)
        shape = shape_of(fields)
        return RenderingPlan(shape, self._shapes.proven(shape))

    async def text(
        self, engine: EngineClient, fields: dict[str, Any], plan: RenderingPlan, size_bytes: int = 0
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
            self._set(VerificationStatus("tokenizer", "engine", str(error)))

    def tells_time(self) -> bool:
        """Whether a prompt may depend on when it is rendered; such a prompt is not kept."""
        return self.template is None or self.template.tells_time

    def _demote(self, job: Literal["tokenizer", "template"], why: str) -> None:
        self.differences += 1
        log.warning("profile %s: %s differs from the engine's: %s", self.profile, job, why)
        self._set(VerificationStatus(job, "engine", why))

"""The proof that what is computed here is what the engine computes: a corpus of hard texts.

One difference, and the engine's own result is used from then on. A proof on a corpus is no proof of
every text, so one request in a thousand is compared again in service.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slotwise.policies.prefix import Tokens, lcp, pack
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.tokens.prompt_encoder import Edges, PromptEncoder

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
class Difference:
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
) -> Difference | None:
    """Compare on each text; raises what the engine's calls raise."""
    for text in texts:
        found = await compare((await encoder.encode(text)).tokens, engine, text)
        if found is not None:
            return found
    return None


async def compare(tokens: Tokens, engine: EngineClient, text: str) -> Difference | None:
    """Compare the tokens of a text with the engine's own."""
    right = pack(await engine.tokenize(text))
    return None if tokens == right else Difference(text, lcp(tokens, right))

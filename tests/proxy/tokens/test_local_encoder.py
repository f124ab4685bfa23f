"""Local tokenizers: SPM by merges equals the engine's own way, and what cannot be built says so."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.launcher.model import gguf_header
from slotwise.proxy.tokens.encoders import Source
from slotwise.proxy.tokens.local_encoder import SPLITS, UnsupportedError, from_file, from_vocabulary
from slotwise.proxy.tokens.vocabulary import TokenType, Vocabulary
from tests.proxy.true_engine import ids_of

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = [
    "▁",
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "▁a",
    "▁ab",
    "abab",
    "bb",
    "é",
    "▁▁",
    "▁▁▁▁",
    "aaa",
    "aa",
]
CONTROLS = ["<unk>", "<s>", "</s>", "\n", "\n\n"]
TYPES = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.USER_DEFINED] * 2]


def spm(add_space_prefix: bool | None = None) -> Vocabulary:
    return Vocabulary(
        model="llama",
        pre="default",
        tokens=[*CONTROLS, *BYTES, *WORDS],
        types=[*TYPES, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(WORDS)],
        scores=[0.0] * (len(CONTROLS) + 256) + [-float(i) for i in range(len(WORDS))],
        merges=(),
        add_space_prefix=add_space_prefix,
    )


def reference(text: str, vocabulary: Vocabulary) -> list[int]:
    """llama.cpp's SPM: always merge the neighbours whose token scores best, the leftmost first."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (-vocabulary.scores[ids[a + b]], n)
            for n, (a, b) in enumerate(pairwise(symbols))
            if a + b in ids
        ]
        if not pairs:
            break
        _, n = min(pairs)
        symbols[n : n + 2] = [symbols[n] + symbols[n + 1]]
    out: list[int] = []
    for symbol in symbols:
        known = ids.get(symbol)
        out += [known] if known is not None else [ids[BYTES[b]] for b in symbol.encode()]
    return out


SPM = from_vocabulary(spm(add_space_prefix=False))


@given(st.text("ab é☃", max_size=40))
def test_spm_merges_as_the_engine_does(text: str) -> None:
    assert ids_of(SPM.encode([text])[0]) == reference(text, spm())


def test_spm_takes_special_tokens_out_and_puts_a_space_before_each_text() -> None:
    encoder = from_vocabulary(spm())  # a space is put where the file does not say otherwise
    token = {text: i for i, text in enumerate(spm().tokens)}
    expected = [token[text] for text in ("▁ab", "\n\n", "\n", "▁a")]
    assert ids_of(encoder.encode(["ab\n\n\na"])[0]) == expected


def test_a_lone_surrogate_is_what_json_writers_make_of_it() -> None:
    assert SPM.encode(["a\ud800b"]) == SPM.encode(["a\ufffdb"])
    assert SPM.encode(["☃\ud800b"]) == SPM.encode(["☃\ufffdb"])


def byte_level(pre: str = "qwen2", **more: object) -> Vocabulary:
    fields: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": ["a", "b", "Ġ", "ab", "Ġab", "1", "<|x|>"],
        "types": [1, 1, 1, 1, 1, 1, 3],
        "scores": (),
        "merges": ["a b", "Ġ ab"],
    }
    return Vocabulary(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_family_of_pre_tokenizers_builds(pre: str) -> None:
    encoder = from_vocabulary(byte_level(pre))
    assert ids_of(encoder.encode(["ab ab"])[0]) == [3, 4]


@pytest.mark.parametrize(
    ("vocabulary", "says"),
    [
        (byte_level("unheard-of"), "pre-tokenizer unheard-of is not built locally"),
        (byte_level(model="t5"), "tokenizer model t5 is not built locally"),
        (byte_level(merges=["a x"]), "the merge 'a x' is not of this vocabulary"),
        (byte_level(tokens=["a", "a"], types=[1, 1]), "holds a token twice"),
        (byte_level(name="Phi-3 mini"), "drops white space"),
        (
            byte_level(tokens=["a", "b", "Ġ", "ab", "Ġab", "<x", "x>"], types=[1] * 5 + [3] * 2),
            "special tokens of equal length overlap",
        ),
        (Vocabulary("llama", "", ["a"], [1], [0.0], ()), "lacks byte tokens"),
        (Vocabulary("llama", "", BYTES, [6] * 256, (), ()), "has no scores"),
    ],
)
def test_what_cannot_be_built_says_why(vocabulary: Vocabulary, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        from_vocabulary(vocabulary)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 5}', "\x00\x01"])
def test_an_unreadable_tokenizer_file_says_which(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UnsupportedError, match=r"tokenizer\.json is no tokenizer: .+"):
        from_file(path)
    with pytest.raises(UnsupportedError, match=r"none\.json is no tokenizer"):
        from_file(tmp_path / "none.json")


def test_a_tokenizer_file_is_used_without_what_the_engine_does_not_do(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    model = {"type": "BPE", "vocab": {"e": 0, "\u0301": 1, "é": 2}, "merges": []}
    added = [{"id": 7, "content": "<|x|>", "single_word": False, "lstrip": True, "rstrip": True}]
    added[0] |= {"normalized": True, "special": True}
    path.write_text(
        json.dumps({"normalizer": {"type": "NFC"}, "model": model, "added_tokens": added})
    )
    encoder = from_file(path)
    assert ids_of(encoder.encode(["e\u0301"])[0]) == [0, 1]  # not composed
    assert [piece for piece, _ in encoder.segmenter.pieces("e <|x|> e")] == ["e ", 7, " e"]


@pytest.mark.slow
def test_a_vocabulary_is_read_from_a_gguf_file(tmp_path: Path) -> None:
    from slotwise.launcher.model import tiny_model

    path = tiny_model.build(tmp_path)
    fields = gguf_header.read_vocabulary(path)
    assert fields is not None
    vocabulary = Vocabulary(**fields)
    assert (vocabulary.model, vocabulary.pre, len(vocabulary.tokens)) == ("gpt2", "qwen2", 3000)
    assert list(vocabulary.specials()) == list(tiny_model.SPECIALS)
    texts = ["def f(x):\n    return 12345  # ☃", "  a\n\n b", "naïve e\u0301"]
    local = from_vocabulary(vocabulary).encode(texts)
    assert local == from_file(tiny_model.tokenizer_path(path)).encode(texts)


def broken() -> None:
    raise OSError("no such file")


def test_a_source_without_a_vocabulary_says_so() -> None:
    with pytest.raises(UnsupportedError, match="no vocabulary is known"):
        Source().build()
    with pytest.raises(UnsupportedError, match="the model's vocabulary: no such file"):
        Source(vocabulary=broken).build()


def test_merges_over_characters_split_at_newlines_and_fall_back_to_bytes() -> None:
    tokens = ["<eos>", "<|tool_response>", "</s>", *BYTES, "a", "▁", "▁a", "\n", "\n\n", "aa"]
    merges = ["▁ a", "\n \n", "a a"]
    made = Vocabulary("gemma4", "", tokens, [3, 3, 3, *[6] * 256, *[1] * 6], (), merges)
    assert list(made.specials()) == ["<eos>", "<|tool_response>"]  # its </s> is text
    known = {text: i for i, text in enumerate(tokens)}
    expected = ["a", "▁a", "\n\n", "▁a", "<0x62>", "<0xC3>", "<0xA9>"]
    assert ids_of(from_vocabulary(made).encode(["a a\n\n abé"])[0]) == [known[t] for t in expected]

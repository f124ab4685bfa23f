"""Tokenizers built here: from a model's own vocabulary, or from a tokenizer.json.

The library does the splitting into words and the merges; special tokens are taken out before it
sees a text (``segments.py``), in the engine's order. Only what both sides can express is
built. Whether it then agrees with the engine is for ``verification.py`` to show.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from slotwise.proxy.tokens.segments import Segmenter
from slotwise.proxy.tokens.vocabulary import TokenType, Vocabulary

PARALLELISM = "TOKENIZERS_PARALLELISM"
"""Read by the library at each call: whether threads of its own encode several texts at once."""
# For short texts they are a detour; the process for the long ones has it switched on. And said
# explicitly, the library does not warn when the process forks later on.
os.environ.setdefault(PARALLELISM, "false")

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+" + _CONTRACTIONS + "?"
    r"|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*" + _CONTRACTIONS + "?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
)
_DIGITS_THEN_GPT2 = (r"\p{N}", _GPT2)

# How llama-vocab.cpp splits a text into words, by ``tokenizer.ggml.pre``: expressions, each applied
# to what the one before it left. And whether a word that is a token is taken whole.
SPLITS: dict[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(
        (
            *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais"),
            *("exaone4", "trillion", "granite-docling"),
        ),
        ((_GPT2,), False),
    ),
    **dict.fromkeys(
        (
            *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
            *("lfm2", "glm4", "glm5"),
        ),
        ((_LLAMA3,), True),
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), ((_LLAMA3,), False)),
    **dict.fromkeys(
        (
            *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open"),
            *("stablelm2", "grok-2"),
        ),
        ((_QWEN2,), False),
    ),
    "qwen35": ((_QWEN35,), False),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        ((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3), False),
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"),
        (_DIGITS_THEN_GPT2, False),
    ),
    "mellum2": (_DIGITS_THEN_GPT2, False),
    "tekken": ((_TEKKEN,), True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie"), ((_GPT4O,), False)),
}

_SPACE = "▁"
_BYTES = 256
_NORMAL_FORMS = frozenset(("NFC", "NFD", "NFKC", "NFKD"))


class UnsupportedError(Exception):
    """No local tokenizer can be built; the text says why."""


class LocalEncoder:
    """The library's tokenizer behind the engine's own handling of special tokens.

    ``escape``: spaces become ▁ as SPM has them; ``space_first``: one is put before each text that
    begins a prompt or follows a special token, clean or tangled, as SPM may do.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        segmenter: Segmenter,
        *,
        escape: bool = False,
        space_first: bool = False,
    ) -> None:
        self.segmenter = segmenter
        self._tokenizer = tokenizer
        self._escape = escape
        self._space_first = space_first

    @property
    def tokens(self) -> int:
        """How many the vocabulary holds."""
        return self._tokenizer.get_vocab_size()

    def encode(self, segments: Sequence[str]) -> list[bytes]:
        split = [self.segmenter.fragments(segment) for segment in segments]
        texts = [self._text(part) for parts in split for part in parts if isinstance(part, str)]
        # Without offsets: they cost as much as the merges.
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return [
            b"".join(
                _packed(next(encoded).ids if isinstance(part, str) else (part,)) for part in parts
            )
            for parts in split
        ]

    def _text(self, fragment: str) -> str:
        # A lone surrogate cannot reach an engine: JSON writers put U+FFFD in its place.
        if not fragment.isascii():
            fragment = fragment.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if self._escape:
            fragment = (" " + fragment if self._space_first else fragment).replace(" ", _SPACE)
        return fragment


def _packed(ids: Sequence[int]) -> bytes:
    packed = array("I", ids)
    return packed.tobytes()


def from_vocabulary(vocabulary: Vocabulary) -> LocalEncoder:
    """Takes up to some seconds for a large vocabulary; raises :class:`UnsupportedError`."""
    if vocabulary.strips():
        raise UnsupportedError("the engine drops white space beside this model's special tokens")
    if len(set(vocabulary.tokens)) != len(vocabulary.tokens):
        raise UnsupportedError("the vocabulary holds a token twice")
    segmenter = Segmenter(vocabulary.specials())
    if not segmenter.certain:
        raise UnsupportedError("special tokens of equal length overlap")
    if vocabulary.model == "gpt2":
        return LocalEncoder(_byte_level(vocabulary), segmenter)
    if vocabulary.model == "gemma4":
        return LocalEncoder(_merged_utf8(vocabulary), segmenter, escape=True)
    if vocabulary.model == "llama":
        prefix = vocabulary.add_space_prefix
        space_first = True if prefix is None else prefix
        return LocalEncoder(
            _sentence_piece(vocabulary), segmenter, escape=True, space_first=space_first
        )
    raise UnsupportedError(f"tokenizer model {vocabulary.model or 'unknown'} is not built locally")


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.pre not in SPLITS:
        raise UnsupportedError(f"pre-tokenizer {vocabulary.pre or 'unknown'} is not built locally")
    expressions, whole_words = SPLITS[vocabulary.pre]
    ids, merges = _merges(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=ids, merges=merges, fuse_unk=False, ignore_merges=whole_words)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(expression), "isolated") for expression in expressions),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def _merged_utf8(vocabulary: Vocabulary) -> Tokenizer:
    """Merges over characters as they are; a run of newlines is a word."""
    ids, merges = _merges(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, fuse_unk=False, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated")
    return tokenizer


def _merges(vocabulary: Vocabulary) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids by token, and the merges in pairs, best first."""
    ids = {text: i for i, text in enumerate(vocabulary.tokens)}
    merges = []
    for merge in vocabulary.merges:
        # The engine looks for the space from the second byte on.
        left, space, right = merge[1:].partition(" ")
        left = merge[:1] + left
        if space and left in ids and right in ids and left + right in ids:
            merges.append((left, right))
        else:
            raise UnsupportedError(f"the merge {merge!r:.60} is not of this vocabulary")
    return ids, merges


def _sentence_piece(vocabulary: Vocabulary) -> Tokenizer:
    """SPM by merges: every way to make a token of two, the token with the best score first."""
    ids = {text: i for i, text in enumerate(vocabulary.tokens)}
    if any(f"<0x{byte:02X}>" not in ids for byte in range(_BYTES)):
        raise UnsupportedError("the vocabulary lacks byte tokens")
    if not vocabulary.scores:
        raise UnsupportedError("the vocabulary has no scores")
    scores, types = vocabulary.scores, vocabulary.types
    merges: list[tuple[float, int, str, str]] = []
    for i, text in enumerate(vocabulary.tokens):
        if types and types[i] == TokenType.BYTE:
            continue
        for n in range(1, len(text)):
            left, right = text[:n], text[n:]
            if left in ids and right in ids:
                merges.append((-scores[i], i, left, right))
    merges.sort(key=lambda merge: merge[:2])
    pairs = [(left, right) for _, _, left, right in merges]
    return Tokenizer(models.BPE(vocab=ids, merges=pairs, fuse_unk=False, byte_fallback=True))


def from_file(path: Path, vocabulary: Vocabulary | None = None) -> LocalEncoder:
    """A tokenizer.json; the special tokens are the GGUF file's where it is known, else its own.

    Raises :class:`UnsupportedError` also where the file cannot be read.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
        added = {token["content"]: int(token["id"]) for token in content.get("added_tokens", ())}
        tokenizer = Tokenizer.from_str(json.dumps(_bare(content)))
    except Exception as error:  # the library raises bare ones
        raise UnsupportedError(f"{path} is no tokenizer: {error!s:.200}") from error
    if vocabulary is not None and vocabulary.strips():
        raise UnsupportedError("the engine drops white space beside this model's special tokens")
    segmenter = Segmenter(vocabulary.specials() if vocabulary is not None else added)
    if not segmenter.certain:
        raise UnsupportedError("special tokens of equal length overlap")
    return LocalEncoder(tokenizer, segmenter)


def _bare(content: dict[str, Any]) -> dict[str, Any]:
    """Without what the engine does not do: added tokens are ours, and it never normalizes forms."""
    content = {**content, "added_tokens": [], "post_processor": None, "truncation": None}
    normalizer = content.get("normalizer")
    if isinstance(normalizer, dict) and normalizer.get("type") in _NORMAL_FORMS:
        content["normalizer"] = None
    return content

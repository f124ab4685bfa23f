"""A model's vocabulary as its GGUF file states it: what a local tokenizer is built from.

Plain data. The launcher reads it from the file and the command hands it over, since the proxy opens
no model files itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from slotwise.proxy.tokens.fim import FIM_TEXTS, FimTokens


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``, as llama.cpp numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_TYPES = frozenset((TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN))
"""Tokens that the engine looks for in a text before it merges anything."""

# llama.cpp makes these special by their text, whatever type the file gives them
# (llama-vocab.cpp, "auto-detect special tokens by text" and the end-of-generation list).
SPECIAL_BY_TEXT = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<EOT>"),
        *("<|end_of_text|>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>", "<eos>"),  # noqa: RUF001
        *("<end_of_utterance>", "<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>"),
        *("</s>", "<turn|>", "<|tool_response>", "[e~[", "<|channel|>", "<|message|>", "<|start|>"),
        *("<|constrain|>", "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>"),  # noqa: RUF001
        *("<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>"),
        *("<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),  # noqa: RUF001
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),  # noqa: RUF001
        *("<|code_middle|>", "<|middle|>", "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"),
        *("[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
        "<|file_sep|>",
    )
)

# Where a vocabulary has one of these, its "</s>" is a token like any other.
_END_IS_TEXT = ("<|tool_response>", "<|plamo:eos|>")

# Where the engine also eats white space beside special tokens (LSTRIP, RSTRIP); by model name,
# pre-tokenizer and architecture, since the file does not say it.
_STRIPPING_NAMES = ("phi-3", "phi3", "modern-bert")
_STRIPPING_PRES = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
_STRIPPING_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``tokenizer.ggml.*`` of one model. None: the file does not say."""

    model: str  # gpt2 | llama | ...
    pre: str
    tokens: Sequence[str]  # by id
    types: Sequence[int]  # TokenType by id; empty: not given
    scores: Sequence[float]  # by id; empty: not given
    merges: Sequence[str]  # "left right", best first
    add_space_prefix: bool | None = None
    name: str = ""  # general.name
    architecture: str = ""
    fim: Mapping[str, int] = field(default_factory=dict)  # of FimTokens, as far as the file says

    def specials(self) -> dict[str, int]:
        """Text -> id of every token that is found in a text before anything is merged."""
        found = {
            text: i
            for i, (text, kind) in enumerate(zip(self.tokens, self._all_types(), strict=True))
            if text and (kind in SPECIAL_TYPES or text in SPECIAL_BY_TEXT)
        }
        if any(text in self.tokens for text in _END_IS_TEXT):
            found.pop("</s>", None)
        return found

    def controls(self) -> dict[str, int]:
        """Those of :meth:`specials` that are plain text where special tokens are not parsed."""
        kinds = self._all_types()
        return {
            text: i
            for text, i in self.specials().items()
            if kinds[i] != TokenType.USER_DEFINED or text in SPECIAL_BY_TEXT
        }

    def fim_tokens(self) -> FimTokens:
        """As the engine finds them: named by the file, else by their texts."""
        ids = {text: i for i, text in enumerate(self.tokens)}
        by_text = {
            name: ids[text]
            for name, texts in FIM_TEXTS.items()
            for text in reversed(texts)
            if text in ids
        }
        return FimTokens(**{**by_text, **self.fim})

    def strips(self) -> bool:
        """Whether the engine drops white space beside special tokens of this model."""
        name = self.name.lower()
        return (
            any(part in name for part in _STRIPPING_NAMES)
            or any(part in self.pre for part in _STRIPPING_PRES)
            or any(part in self.architecture for part in _STRIPPING_ARCHITECTURES)
        )

    def _all_types(self) -> Sequence[int]:
        return self.types or [TokenType.NORMAL] * len(self.tokens)

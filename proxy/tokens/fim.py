"""The prompt that llama-server makes of an ``/infill`` body, token by token.

Around the cursor it sets the model's own tokens for "fill in the middle"; other files of the
project go in front, each under its name, where the model has tokens for that too::

    [rep]myproject [sep]NAME TEXT ... [sep]filename [pre]PREFIX PROMPT [suf]SUFFIX [mid]

What is cut to fit is cut here in the same way: of the prefix its begin, of the suffix its end, of
the other files what comes first (server-common.cpp, ``format_prompt_infill``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ID_BYTES = 4
_REPOSITORY = "myproject\n"  # the engine's own constants
_FILE = "filename\n"
_UNNAMED = "tmp"
_SNIPPET = "\n\n--- snippet ---\n\n"  # before each file, for a model without [sep]

FIM_TEXTS: Mapping[str, tuple[str, ...]] = {
    "pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),  # noqa: RUF001
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),  # noqa: RUF001
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),  # noqa: RUF001
        *("<|code_middle|>", "<|middle|>"),
    ),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}
"""By which texts the engine finds these tokens where the model file does not name them."""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The ids of one model; None: it has no such token."""

    pre: int | None = None
    suf: int | None = None
    mid: int | None = None
    rep: int | None = None
    sep: int | None = None


@dataclass(frozen=True, slots=True)
class InfillFlags:
    """What the engine's command line says about it; as they are by default."""

    n_batch: int = 2048  # tokens
    n_predict: int = -1  # tokens; the flag's, not the request's
    spm_infill: bool = False  # the suffix comes first


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of a body, tokenized; packed ids."""

    prefix: bytes
    suffix: bytes
    prompt: bytes
    files: bytes


def files_content(fim: FimTokens, files: Sequence[Mapping[str, Any]]) -> list[str | int]:
    """What stands before the code around the cursor: ids, and texts that tokenize on their own."""
    content: list[str | int] = [] if fim.rep is None else [fim.rep, _REPOSITORY]
    for file in files:
        name = f"{file.get('filename', _UNNAMED)}\n"
        content += [_SNIPPET] if fim.sep is None else [fim.sep, name]
        content.append(file["text"])
    return content if fim.sep is None else [*content, fim.sep, _FILE]


def compose(
    fim: FimTokens, flags: InfillFlags, window: int | None, bos: bytes, pieces: Pieces
) -> bytes:
    """The packed ids of the whole prompt. ``window``: of a slot, in tokens; None: not known."""
    quarter = flags.n_batch // 4
    suffix_room = max(0, quarter - 2 - len(pieces.prompt) // _ID_BYTES)
    prefix = _last(pieces.prefix, 3 * quarter)
    suffix = pieces.suffix[: suffix_room * _ID_BYTES]
    files = pieces.files
    if window is not None:
        files = _last(files, max(0, window - flags.n_batch - 2 * flags.n_predict))
    before = _id(fim.pre) + prefix + pieces.prompt
    behind = _id(fim.suf) + suffix
    if flags.spm_infill:
        before, behind = behind, before
    return files + bos + before + behind + _id(fim.mid)


def _last(packed: bytes, n: int) -> bytes:
    return packed[max(0, len(packed) - n * _ID_BYTES) :]


def _id(token: int | None) -> bytes:
    return b"" if token is None else token.to_bytes(_ID_BYTES, "little")

"""What the header of a GGUF file says: all that a profile is checked and planned by."""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

_ALIGNMENT_BYTES = 32  # unless general.alignment says otherwise
_MOST_TENSORS = 1_000_000
_MOST_DIMENSIONS = 8
_LONGEST_NAME_BYTES = 1024
# ggml.h and ggml-common.h: type number -> values in a block, bytes of a block.
BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8)},  # F32 F16 BF16 F64
    **{24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8)},  # I8 I16 I32 I64
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)},  # Q4_0 Q4_1 Q5_* Q8_0
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},  # Q2_K-Q6_K
    **{15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98)},  # Q8_K IQ2_XXS IQ2_XS IQ3_XXS
    **{19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82)},  # IQ1_S IQ4_NL IQ3_S IQ2_S
    **{23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66)},  # IQ4_XS IQ1_M TQ1_0 TQ2_0
    39: (32, 17),  # MXFP4
}
# A table of embeddings of which each token needs a few rows: llama.cpp can leave it on disk (-lzm).
_TABLE = b"per_layer_token_embd.weight"
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Layout:
    """How long the file is at least; how much of it is a table that may stay on disk."""

    length_bytes: int
    table_bytes: int = 0


def layout(file: BinaryIO, tensors: int, alignment: Any) -> Layout:
    """Of a file that stands behind its keys.

    Raises ``ValueError`` for what no header says, ``struct.error`` where the file ends within it.
    """
    if tensors > _MOST_TENSORS:
        raise ValueError(f"{tensors} tensors in the header")
    found = [_tensor(file) for _ in range(tensors)]
    if not found:
        return Layout(file.tell())
    step = alignment if isinstance(alignment, int) and alignment > 0 else _ALIGNMENT_BYTES
    begin = -(-file.tell() // step) * step
    tables = [size for name, _, size in found if name == _TABLE]
    return Layout(begin + max(offset + size for _, offset, size in found), sum(tables))


def _tensor(file: BinaryIO) -> tuple[bytes, int, int]:
    """Name, offset from the begin of the data, and bytes of the next tensor; of an unknown type one
    byte, since it has some."""
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_NAME_BYTES:
        raise ValueError(f"a tensor's name of {length} bytes in the header")
    name = file.read(length)
    (dimensions,) = _unpack(file, "I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {dimensions} dimensions in the header")
    values = prod(_unpack(file, f"{dimensions}Q"))
    kind, offset = _unpack(file, "IQ")
    in_block, block_bytes = BLOCKS.get(kind, (max(1, values), 1))
    return name, offset, -(-values // in_block) * block_bytes


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    layout = "<" + layout
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def parts(path: Path) -> list[Path]:
    """All files of a model, by its name; one that was split has ``-00001-of-00003.gguf`` in it."""
    named = _PART.search(path.name)
    if named is None:
        return [path]
    stem, count = path.name[: named.start()], int(named[2])
    return [path.with_name(f"{stem}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]


MAGIC = b"GGUF"
# Type number -> struct format of a scalar.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LONGEST_TEXT_BYTES = 16 * 2**20  # a chat template is tens of KB; more means a broken file
_MOST_KEYS = 100_000
_LISTED_ITEMS = 4096  # an array up to this says something of each layer
_MOST_ITEMS = 16 * 2**20  # of an array that is read; the largest vocabularies have some 300,000
_TOKENIZER = "tokenizer.ggml."
# Tokens for filling in the middle; where a file has both names, the engine reads the second.
_FIM = {
    "pre": ("fim_pre_token_id", "prefix_token_id"),
    "suf": ("fim_suf_token_id", "suffix_token_id"),
    "mid": ("fim_mid_token_id", "middle_token_id"),
    "rep": ("fim_rep_token_id",),
    "sep": ("fim_sep_token_id",),
}
_ARRAYS = frozenset(_TOKENIZER + name for name in ("tokens", "token_type", "scores", "merges"))


class HeaderError(ValueError):
    """Not a GGUF file, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Length:
    """Stands for an array that was skipped over."""

    items: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the launcher asks of a model. ``values``: every key; long arrays as their Length.

    ``table_bytes``: of this file, a table of embeddings that the engine can leave on disk.
    """

    architecture: str
    context_length: int | None
    sliding_window: int | None
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    table_bytes: int = field(default=0, compare=False)


def read(path: Path) -> Header:
    """The header's facts; raises HeaderError, also for a file that is cut short, OSError."""
    try:
        with path.open("rb") as file:
            tensors, values = _key_values(file)
            found = layout(file, tensors, values.get("general.alignment"))
            size = os.fstat(file.fileno()).st_size
    except struct.error as error:
        raise HeaderError("the file ends within its header") from error
    except ValueError as error:
        raise HeaderError(str(error)) from error
    if size < found.length_bytes:
        raise HeaderError(f"{path.name} is cut short: {size} of {found.length_bytes} bytes")
    architecture = str(values.get("general.architecture", ""))
    return Header(
        architecture=architecture,
        context_length=_whole(values.get(f"{architecture}.context_length")),
        sliding_window=_whole(values.get(f"{architecture}.attention.sliding_window")) or None,
        values=values,
        table_bytes=found.table_bytes,
    )


def read_vocabulary(path: Path) -> dict[str, Any] | None:
    """The fields of :class:`tokens.vocabulary.Vocabulary`; None: the file holds no vocabulary.

    Takes about a second for 262,000 tokens. Raises HeaderError, OSError.
    """
    try:
        with path.open("rb") as file:
            _, values = _key_values(file, _ARRAYS)
    except struct.error as error:
        raise HeaderError("the file ends within its header") from error
    tokens = values.get(_TOKENIZER + "tokens")
    if not tokens:
        return None
    types = values.get(_TOKENIZER + "token_type") or ()
    scores = values.get(_TOKENIZER + "scores") or ()
    for name, items in (("token_type", types), ("scores", scores)):
        if items and len(items) < len(tokens):
            raise HeaderError(f"{len(items)} entries in {name} for {len(tokens)} tokens")
    return {
        "model": str(values.get(_TOKENIZER + "model", "")),
        "pre": str(values.get(_TOKENIZER + "pre", "")),
        "tokens": tokens,
        "types": types[: len(tokens)],
        "scores": scores[: len(tokens)],
        "merges": values.get(_TOKENIZER + "merges") or (),
        "add_space_prefix": _switch(values.get(_TOKENIZER + "add_space_prefix")),
        "name": str(values.get("general.name", "")),
        "architecture": str(values.get("general.architecture", "")),
        "fim": _fim(values, len(tokens)),
    }


def _fim(values: dict[str, Any], n_tokens: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, keys in _FIM.items():
        for key in keys:
            token = _whole(values.get(_TOKENIZER + key))
            if token is not None and 0 <= token < n_tokens:
                found[name] = token
    return found


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _key_values(file: BinaryIO, arrays: Collection[str] = ()) -> tuple[int, dict[str, Any]]:
    """How many tensors there are, and all keys; a long array's items only where its key is among
    ``arrays``, else its Length."""
    if file.read(len(MAGIC)) != MAGIC:
        raise HeaderError("not a GGUF file")
    version, tensors, count = _unpack(file, "IQQ")
    if version < 2 or count > _MOST_KEYS:
        raise HeaderError(f"GGUF version {version} with {count} keys is not supported")
    values: dict[str, Any] = {}
    for _ in range(count):
        key = _text(file)
        values[key] = _value(file, _unpack(file, "I")[0], key in arrays)
    return tensors, values


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_TEXT_BYTES:
        raise HeaderError(f"a text of {length} bytes in the header")
    return file.read(length).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int, whole: bool) -> Any:
    """One value; of a long array its Length, unless ``whole``."""
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        raise HeaderError(f"unknown value type {kind}")
    of, length = _unpack(file, "IQ")
    if of not in _SCALARS and of != _STRING:
        raise HeaderError(f"an array of type {of}")
    if whole:
        return _items(file, of, length)
    if of in _SCALARS and length <= _LISTED_ITEMS:
        return list(_unpack(file, f"{length}{_SCALARS[of]}"))
    if of in _SCALARS:
        file.seek(struct.calcsize(_SCALARS[of]) * length, 1)
    else:
        for _ in range(length):
            file.seek(_unpack(file, "Q")[0], 1)
    return Length(length)


def _items(file: BinaryIO, of: int, length: int) -> Any:
    if length > _MOST_ITEMS:
        raise HeaderError(f"an array of {length} entries in the header")
    if of == _STRING:
        return [_text(file) for _ in range(length)]
    if of == _BOOL:
        raise HeaderError("an array of truth values where numbers are expected")
    size = struct.calcsize("<" + _SCALARS[of]) * length
    return array(_SCALARS[of], struct.unpack(f"<{length}{_SCALARS[of]}", file.read(size)))

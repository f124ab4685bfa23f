"""What a model's files say of its tensors: how long each file has to be, and what may stay in it.

A download that broke off has an intact header; the engine would find out only after it has read
most of the file. After the keys each tensor has its name, dimensions, type and offset.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
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

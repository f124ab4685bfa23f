"""Whether a model's files are whole: how long each has to be, by what it says of its tensors.

A download that broke off has an intact header; the engine would find out only after it has read
most of the file. After the keys each tensor has its name, dimensions, type and offset.
"""

from __future__ import annotations

import os
import re
import struct
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
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def length_bytes(file: BinaryIO, tensors: int, alignment: Any) -> int:
    """How long the file is at least; it stands behind its keys.

    Raises ``ValueError`` for what no header says, ``struct.error`` where the file ends within it.
    """
    if tensors > _MOST_TENSORS:
        raise ValueError(f"{tensors} tensors in the header")
    ends = [_end(file) for _ in range(tensors)]
    if not ends:
        return file.tell()
    step = alignment if isinstance(alignment, int) and alignment > 0 else _ALIGNMENT_BYTES
    begin = -(-file.tell() // step) * step
    return begin + max(ends)


def _end(file: BinaryIO) -> int:
    """Where the next tensor ends, from the begin of the data; of an unknown type, where it begins
    to have any."""
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_NAME_BYTES:
        raise ValueError(f"a tensor's name of {length} bytes in the header")
    file.seek(length, os.SEEK_CUR)
    (dimensions,) = _unpack(file, "I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor of {dimensions} dimensions in the header")
    values = prod(_unpack(file, f"{dimensions}Q"))
    kind, offset = _unpack(file, "IQ")
    in_block, block_bytes = BLOCKS.get(kind, (max(1, values), 1))
    end: int = offset + -(-values // in_block) * block_bytes
    return end


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

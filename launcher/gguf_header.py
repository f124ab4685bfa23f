"""The few facts of a GGUF file that a profile is checked against, read from its header.

Only the key-value part is read, and arrays (the vocabulary) are skipped over. Format: magic,
version, tensor count, key count, then key, type, value; all little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

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
_STRING, _ARRAY = 8, 9
_LONGEST_TEXT_BYTES = 16 * 2**20  # a chat template is tens of KB; more means a broken file
_MOST_KEYS = 100_000


class HeaderError(ValueError):
    """Not a GGUF file, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the launcher asks of a model."""

    architecture: str
    context_length: int | None
    sliding_window: int | None


def read(path: Path) -> Header:
    """The header's facts; raises HeaderError, OSError."""
    try:
        with path.open("rb") as file:
            values = _key_values(file)
    except struct.error as error:
        raise HeaderError("the file ends within its header") from error
    architecture = str(values.get("general.architecture", ""))
    return Header(
        architecture=architecture,
        context_length=_whole(values.get(f"{architecture}.context_length")),
        sliding_window=_whole(values.get(f"{architecture}.attention.sliding_window")) or None,
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _key_values(file: BinaryIO) -> dict[str, Any]:
    if file.read(len(MAGIC)) != MAGIC:
        raise HeaderError("not a GGUF file")
    version, _tensors, count = _unpack(file, "IQQ")
    if version < 2 or count > _MOST_KEYS:
        raise HeaderError(f"GGUF version {version} with {count} keys is not supported")
    values: dict[str, Any] = {}
    for _ in range(count):
        key = _text(file)
        values[key] = _value(file, _unpack(file, "I")[0])
    return values


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    layout = "<" + layout
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    if length > _LONGEST_TEXT_BYTES:
        raise HeaderError(f"a text of {length} bytes in the header")
    return file.read(length).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    """One value; an array gives None."""
    if kind in _SCALARS:
        return _unpack(file, _SCALARS[kind])[0]
    if kind == _STRING:
        return _text(file)
    if kind != _ARRAY:
        raise HeaderError(f"unknown value type {kind}")
    of, length = _unpack(file, "IQ")
    if of in _SCALARS:
        file.seek(struct.calcsize(_SCALARS[of]) * length, 1)
    elif of == _STRING:
        for _ in range(length):
            size = _unpack(file, "Q")[0]
            file.seek(size, 1)
    else:
        raise HeaderError(f"an array of type {of}")
    return None

"""GGUF files that are a header and nothing else, as large as told without taking the room."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_I8_TENSOR = 24
NO_TABLES: Mapping[str, int] = {}
_U32, _F32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def write(
    path: Path,
    values: Mapping[str, Any],
    size_bytes: int = 0,
    tables: Mapping[str, int] = NO_TABLES,
) -> Path:
    """``values``: by key; whole numbers, floats, truth values, texts, and lists of one of them.

    ``tables``: tensors of so many bytes, which the file then has to hold.
    """
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tables), len(values))
    for key, value in values.items():
        data += _text(key) + _value(value)
    for name, length in tables.items():
        data += _text(name) + struct.pack("<IQIQ", 1, length, _I8_TENSOR, 0)
    path.write_bytes(data)
    if size_bytes > len(data):
        os.truncate(path, size_bytes)
    return path


def model(architecture: str, vocabulary: int = 0, **values: Any) -> dict[str, Any]:
    """The keys of a model; a double underscore stands for the dot."""
    found: dict[str, Any] = {"general.architecture": architecture}
    for key, value in values.items():
        found[f"{architecture}.{key.replace('__', '.')}"] = value
    if vocabulary:
        found["tokenizer.ggml.tokens"] = ["t"] * vocabulary
    return found


def _value(value: Any) -> bytes:
    kind, data = _scalar(value)
    if kind != _ARRAY:
        return struct.pack("<I", kind) + data
    items = [_scalar(item) for item in value]
    head = struct.pack("<IIQ", _ARRAY, items[0][0], len(items))
    return head + b"".join(item for _, item in items)


def _scalar(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return _U32, struct.pack("<I", value)
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _text(value)
    return _ARRAY, b""


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()

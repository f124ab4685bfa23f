"""The tiny model with another chat template: its GGUF file, with one value exchanged."""

from __future__ import annotations

import struct
from pathlib import Path

_KEY = b"tokenizer.chat_template"
_STRING = 8
_ALIGNMENT = 32  # of the tensors behind the header


def retemplated(model: Path, template: str, target: Path) -> Path:
    """Write ``model`` with this template to ``target``.

    A comment fills the template up, so that the tensors move by a multiple of their alignment.
    """
    content = model.read_bytes()
    key = struct.pack("<Q", len(_KEY)) + _KEY + struct.pack("<I", _STRING)
    at = content.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", content, at)
    new = template.encode() + b"{# #}"
    fill = (length - len(new)) % _ALIGNMENT
    new = new[:-2] + b" " * fill + new[-2:]
    target.write_bytes(
        content[:at] + struct.pack("<Q", len(new)) + new + content[at + 8 + length :]
    )
    return target

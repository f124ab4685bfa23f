"""The stub engine's tokenizer and chat template: small, deterministic, and true to the real shape.

A special token ``<|...|>`` is one id; other text falls into words (with one leading space, as
byte-pair vocabularies have it), single punctuation marks and single white space. The id is a
checksum of the piece, so that any two processes agree on it without a vocabulary.
"""

from __future__ import annotations

import json
import re
from typing import Any
from zlib import crc32

_SPECIAL = re.compile(r"(<\|[^|<>]*\|>)")
_PIECE = re.compile(r" ?\w+| ?[^\w\s]|\s")
_PLAIN_IDS = 2**30
BOS = "<|bos|>"
EOS = "<|im_end|>"
MARKER = "<__media_stub__>"
_MEDIA = {"image_url": "image", "input_audio": "audio"}
_MEDIA_IDS = 2**29


class NoMediaError(ValueError):
    """An image or a recording for an engine that takes none: a 500, as llama-server has it."""


class Vocabulary:
    """Text to ids and back; what was never seen cannot be turned back and reads ``\\ufffd``."""

    def __init__(self) -> None:
        self._pieces: dict[int, str] = {}

    def id(self, piece: str) -> int:
        """The id of one piece; special tokens have a range of their own."""
        checksum = crc32(piece.encode())
        special = _SPECIAL.fullmatch(piece) is not None
        token = _PLAIN_IDS + checksum % 2**20 if special else checksum % _PLAIN_IDS
        self._pieces[token] = piece
        return token

    def encode(self, text: str, parse_special: bool = True) -> list[int]:
        return [self.id(piece) for piece in split(text, parse_special)]

    def encode_prompt(self, text: str, media: list[str]) -> list[int]:
        """A rendered chat: what lies between two media is encoded on its own."""
        first, *others = text.split(MARKER)
        ids = self.encode(first)
        for source, part in zip(media, others, strict=True):
            first_id = _MEDIA_IDS + crc32(source.encode()) % 2**20
            ids += [*range(first_id, first_id + media_tokens(source)), *self.encode(part)]
        return ids

    def piece(self, token: int) -> str:
        return self._pieces.get(token, "\ufffd")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.piece(token) for token in ids)


def split(text: str, parse_special: bool = True) -> list[str]:
    """The pieces of ``text``; joined they give it back."""
    if not parse_special:
        return _PIECE.findall(text)
    pieces: list[str] = []
    for part in _SPECIAL.split(text):
        pieces += [part] if _SPECIAL.fullmatch(part) else _PIECE.findall(part)
    return pieces


def media_tokens(source: str) -> int:
    """How many tokens a medium takes: by its data or URL."""
    return 20 + len(source) % 50


def render(body: dict[str, Any], media: list[str] | None = None) -> str:
    """The chat as one prompt, chatml style. Raises ``ValueError`` with the engine's own words.

    ``media``: takes the sources of images and audio, for which markers stand; None: not supported.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        missing = "messages" not in body
        raise ValueError(
            "'messages' is required" if missing else "Expected 'messages' to be an array"
        )
    parts: list[str] = []
    if body.get("tools"):
        parts.append(_turn("system", f"tools {json.dumps(body['tools'], sort_keys=True)}"))
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise ValueError("Missing 'role' in message")
        parts.append(_turn(str(message["role"]), _content(message, media)))
    if body.get("add_generation_prompt", True):
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}{EOS}\n"


def _content(message: dict[str, Any], media: list[str] | None) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(_part(part, media) for part in content)
    calls = message.get("tool_calls")
    return f"{content}{json.dumps(calls, sort_keys=True)}" if calls else str(content)


def _part(part: dict[str, Any], media: list[str] | None) -> str:
    kind = part.get("type")
    if kind not in _MEDIA:
        return str(part.get("text", ""))
    if media is None:
        raise NoMediaError(f"{_MEDIA[kind]} input is not supported - hint: provide the mmproj")
    inner = part[kind]
    media.append(str(inner.get("url") or inner.get("data")))
    return MARKER

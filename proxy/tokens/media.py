"""Images and audio in a chat: what stands for them where the text alone is looked at.

A medium is known by a digest of its data, or of its URL where it has to be fetched (never by the
proxy). In a prompt it is a run of ids that follow from the digest and lie outside every vocabulary:
the same picture matches itself, another one does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

FIRST_ID = 2**31
"""Ids from here on stand for media; those of texts lie below."""

# The parts that the engine takes, by type: where the data or the URL may stand in them.
_FIELDS = {
    "image_url": ("image_url", ("url",)),
    "input_audio": ("input_audio", ("data", "url")),
    "input_video": ("input_video", ("data", "url")),
    "video_url": ("video_url", ("data", "url")),
}
_TINY_IMAGE = "data:image/png;base64,AAAA"  # the engine decodes no picture to render a text
_TINY = "AAAA"
_DIGEST_BYTES = 16
_ID_BYTES = 4


class Medium(NamedTuple):
    """One image, recording or film of a request."""

    message: int  # index of its message
    digest: bytes
    part: Mapping[str, Any]  # the content part as the client sent it


def without_media(fields: dict[str, Any]) -> tuple[dict[str, Any], list[Medium]]:
    """The request with a few bytes in place of each medium, and the media in order.

    Rendering gives the same text for it, without the engine reading megabytes or fetching a URL.
    Without media: the very same object. Takes time by the size of the media.
    """
    media: list[Medium] = []
    messages = [_without(message, i, media) for i, message in enumerate(fields["messages"])]
    return ({**fields, "messages": messages} if media else fields), media


def _without(message: dict[str, Any], index: int, media: list[Medium]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    known = len(media)
    parts = [_part(part, index, media) for part in content]
    return {**message, "content": parts} if len(media) > known else message


def _part(part: Any, index: int, media: list[Medium]) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        return part
    field, names = _FIELDS[kind]
    inner = part.get(field)
    given = inner if isinstance(inner, dict) else {}
    name = next((name for name in names if isinstance(given.get(name), str)), None)
    if name is None:  # not a form that the engine takes: its to refuse
        media.append(Medium(index, _digest(kind, orjson.dumps(part).decode()), part))
        return part
    media.append(Medium(index, _digest(kind, given[name]), part))
    tiny = _TINY_IMAGE if kind == "image_url" else _TINY
    return {**part, field: {**given, name: tiny}}


def _digest(kind: str, source: str) -> bytes:
    if source.startswith("data:"):
        source = source.partition(",")[2]
    content = source.encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=_DIGEST_BYTES, person=kind.encode()).digest()


def stand_in(digest: bytes, n: int) -> bytes:
    """``n`` packed ids that stand for a medium."""
    words = [
        (FIRST_ID | int.from_bytes(digest[i : i + _ID_BYTES], "little")).to_bytes(
            _ID_BYTES, "little"
        )
        for i in range(0, _DIGEST_BYTES, _ID_BYTES)
    ]
    return (b"".join(words) * (n // len(words) + 1))[: n * _ID_BYTES]

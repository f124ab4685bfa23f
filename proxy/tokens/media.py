"""Images and audio in a chat: what stands for them where the text alone is looked at.

A medium is known by a digest of its data, or of its URL where it has to be fetched (never by the
proxy). In a prompt it is a run of ids that follow from the digest and lie outside every vocabulary:
the same picture matches itself, another one does not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import orjson

from slotwise.policies.prefix import Tokens
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.tokens.prompt_encoder import TokenizedText
from slotwise.proxy.tokens.verification import VerifiedEngine, tokenized_text

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


MOST_COUNTS = 4096
_COUNT_PATH = "/v1/chat/completions/input_tokens"
_COUNT_TIMEOUT_S = 60.0  # the engine may have to fetch it
_GUESS_TOKENS = 256  # of a medium, from an engine that is too old to count
_OLD_MARKER = "<__media__>"  # of engines that do not tell theirs


class MediaPrompts:
    """For all profiles; what was counted is kept by profile and digest."""

    def __init__(self, most_counts: int = MOST_COUNTS) -> None:
        self._most_counts = most_counts
        self._counts: OrderedDict[tuple[str, bytes], int] = OrderedDict()
        self._markers: WeakKeyDictionary[EngineClient, str] = WeakKeyDictionary()
        self._asking: WeakValueDictionary[tuple[str, bytes], asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._counts)

    async def encode(
        self,
        engine: EngineClient,
        known: VerifiedEngine | None,
        profile: str,
        text: str,
        media: Sequence[Medium],
    ) -> TokenizedText:
        """A rendered text in which markers stand for these media.

        Raises ``UpstreamError`` with the engine's own words where it cannot take one of them.
        """
        counts = [await self.count(engine, known, profile, medium) for medium in media]
        marker = await self._marker(engine)
        parts = await self._parts(engine, known, text, marker)
        if len(parts) - 1 != len(media):  # the template left one out, or the text holds a marker
            return await tokenized_text(engine, known, text)
        between = [stand_in(m.digest, n) for m, n in zip(media, counts, strict=True)]
        return _joined(parts, marker, between)

    async def count(
        self, engine: EngineClient, known: VerifiedEngine | None, profile: str, medium: Medium
    ) -> int:
        """How many tokens a medium takes."""
        key = profile, medium.digest
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._counts:
                try:
                    self._counts[key] = await self._asked(engine, known, medium)
                except UpstreamError as error:
                    if error.status != 404:
                        raise
                    return _GUESS_TOKENS
                while len(self._counts) > self._most_counts:
                    self._counts.popitem(last=False)
            self._counts.move_to_end(key)
            return self._counts[key]

    async def _asked(
        self, engine: EngineClient, known: VerifiedEngine | None, medium: Medium
    ) -> int:
        alone = {"messages": [{"role": "user", "content": [medium.part]}]}
        answer = await engine.call("POST", _COUNT_PATH, alone, _COUNT_TIMEOUT_S)
        total = answer.get("input_tokens") if isinstance(answer, dict) else None
        if not isinstance(total, int):
            raise EngineUnreachableError(f"the engine's answer to {_COUNT_PATH} holds no count")
        text = await engine.apply_template(without_media(alone)[0])
        parts = await self._parts(engine, known, text, await self._marker(engine))
        return max(1, total - sum(len(part.tokens) for part in parts))

    async def _parts(
        self, engine: EngineClient, known: VerifiedEngine | None, text: str, marker: str
    ) -> list[TokenizedText]:
        """The engine tokenizes what is between two media on its own."""
        return [
            await tokenized_text(engine, known, part, whole=i == 0)
            for i, part in enumerate(text.split(marker))
        ]

    async def _marker(self, engine: EngineClient) -> str:
        """What this engine puts into a text for a medium; it draws it anew at each start."""
        marker = self._markers.get(engine)
        if marker is None:
            props = await engine.props()
            told = props.get("media_marker") if isinstance(props, dict) else None
            marker = told if isinstance(told, str) and told else _OLD_MARKER
            self._markers[engine] = marker
        return marker


def _joined(parts: Sequence[TokenizedText], marker: str, between: Sequence[bytes]) -> TokenizedText:
    ends, positions, cuts = [0], [parts[0].positions[0]], []
    packed: list[bytes] = []
    chars = tokens = 0
    for part, medium in zip_longest(parts, between, fillvalue=b""):
        assert isinstance(part, TokenizedText)
        assert isinstance(medium, bytes)
        cuts += [len(ends) - 1 + cut for cut in part.cuts]
        ends += [chars + end for end in part.ends[1:]]
        positions += [tokens + position for position in part.positions[1:]]
        packed += [part.tokens.packed, medium]
        chars += len(part.text)
        tokens += len(part.tokens)
        if medium:
            chars += len(marker)
            tokens += len(medium) // _ID_BYTES
            ends.append(chars)
            positions.append(tokens)
    text = marker.join(part.text for part in parts)
    return TokenizedText(text, ends, positions, cuts, Tokens(b"".join(packed)))

"""The tokens of a prompt with images or audio: exact for its text, counted for its media.

How many tokens a medium takes is the engine's to say (``/v1/chat/completions/input_tokens``): it is
asked once for each, with a message that holds nothing else, whose own text is then taken off. The
counts are kept by digest, within a bound. An engine that cannot take the medium refuses that count,
and its refusal is the client's answer.

Built from llama-server's sources and tried against a stub; no multimodal engine has been at hand. A
count that is not the engine's would show as a mismatch in the log, and cost reuse.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from weakref import WeakKeyDictionary, WeakValueDictionary

from slotwise.policies.prefix import Tokens
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError, UpstreamError
from slotwise.proxy.tokens.knowledge import Knowledge
from slotwise.proxy.tokens.known_prompts import Mapped
from slotwise.proxy.tokens.media import Medium, stand_in, without_media
from slotwise.proxy.tokens.text_tokens import mapped_text

MOST_COUNTS = 4096
_COUNT_PATH = "/v1/chat/completions/input_tokens"
_COUNT_TIMEOUT_S = 60.0  # the engine may have to fetch it
_GUESS_TOKENS = 256  # of a medium, from an engine that is too old to count
_OLD_MARKER = "<__media__>"  # of engines that do not tell theirs
_ID_BYTES = 4


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
        known: Knowledge | None,
        profile: str,
        text: str,
        media: Sequence[Medium],
    ) -> Mapped:
        """A rendered text in which markers stand for these media.

        Raises ``UpstreamError`` with the engine's own words where it cannot take one of them.
        """
        counts = [await self.count(engine, known, profile, medium) for medium in media]
        marker = await self._marker(engine)
        parts = await self._parts(engine, known, text, marker)
        if len(parts) - 1 != len(media):  # the template left one out, or the text holds a marker
            return await mapped_text(engine, known, text)
        between = [stand_in(m.digest, n) for m, n in zip(media, counts, strict=True)]
        return _joined(parts, marker, between)

    async def count(
        self, engine: EngineClient, known: Knowledge | None, profile: str, medium: Medium
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

    async def _asked(self, engine: EngineClient, known: Knowledge | None, medium: Medium) -> int:
        alone = {"messages": [{"role": "user", "content": [medium.part]}]}
        answer = await engine.call("POST", _COUNT_PATH, alone, _COUNT_TIMEOUT_S)
        total = answer.get("input_tokens") if isinstance(answer, dict) else None
        if not isinstance(total, int):
            raise EngineUnreachableError(f"the engine's answer to {_COUNT_PATH} holds no count")
        text = await engine.apply_template(without_media(alone)[0])
        parts = await self._parts(engine, known, text, await self._marker(engine))
        return max(1, total - sum(len(part.tokens) for part in parts))

    async def _parts(
        self, engine: EngineClient, known: Knowledge | None, text: str, marker: str
    ) -> list[Mapped]:
        """The engine tokenizes what is between two media on its own."""
        return [
            await mapped_text(engine, known, part, whole=i == 0)
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


def _joined(parts: Sequence[Mapped], marker: str, between: Sequence[bytes]) -> Mapped:
    ends, positions, cuts = [0], [parts[0].positions[0]], []
    packed: list[bytes] = []
    chars = tokens = 0
    for part, medium in zip_longest(parts, between, fillvalue=b""):
        assert isinstance(part, Mapped)
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
    return Mapped(text, ends, positions, cuts, Tokens(b"".join(packed)))

"""The local tokenizer of a profile, built on first use, for all its engines.

It lives in a process of its own. Where its vocabulary is small, a second one is built here, for
short texts: a process that slept takes longer to wake than they take to encode. Building a large
one here would stall all streams for up to a second and take some 200 MB.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from hashlib import blake2b

from slotwise.proxy.tokens.encoders import Encoder, ProcessEncoder, Source
from slotwise.proxy.tokens.local_encoder import LocalEncoder, UnsupportedError
from slotwise.proxy.tokens.segments import Cuts

SMALL_VOCABULARY_TOKENS = 50_000
"""Building one holds the interpreter for 40 ms at a stretch and takes 25 MB, both measured."""
SHORT_CHARS = 4096
"""As much is encoded in 1 ms, the hardest texts in 4: so long the loop does nothing else."""


class HereEncoder:
    """A local tokenizer in this process, which encodes at once."""

    def __init__(self, encoder: LocalEncoder) -> None:
        encoder.learn_words()
        self._encoder = encoder

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        return self._encoder.encode(segments)


class LocalEncoders:
    """Short texts are encoded here, where that may be, long ones by the process.

    ``parts``: both are proven, each on its own.
    """

    def __init__(self, process: ProcessEncoder, here: HereEncoder | None) -> None:
        self.parts: tuple[Encoder, ...] = (process, here) if here is not None else (process,)
        self._process = process
        self._here = here

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        if self._here is not None and sum(map(len, segments)) <= SHORT_CHARS:
            return await self._here.encode(segments)
        return await self._process.encode(segments)


class Local:
    """The local tokenizer of a profile, built once for all its engines."""

    def __init__(self, profile: str, source: Source) -> None:
        self.salt = blake2b(b"local " + profile.encode(), digest_size=16).digest()
        self._source = source
        self._process = ProcessEncoder(source)
        self._lock = asyncio.Lock()
        self._built: tuple[LocalEncoders, Cuts] | None = None
        self._refused: str | None = None

    async def get(self) -> tuple[LocalEncoders, Cuts]:
        """Raises :class:`UnsupportedError`, at once where it did before."""
        if not self._source.given:
            raise UnsupportedError("no vocabulary is known")
        async with self._lock:
            if self._refused is not None:
                raise UnsupportedError(self._refused)
            if self._built is None:
                try:
                    self._built = await self._build()
                except UnsupportedError as error:
                    self._refused = str(error)
                    raise
            return self._built

    async def _build(self) -> tuple[LocalEncoders, Cuts]:
        built = await self._process.start()
        cuts = await asyncio.to_thread(Cuts, built.specials)
        here = None
        if built.tokens <= SMALL_VOCABULARY_TOKENS:
            # The process has just built the same, so a failure is the file's, which changed.
            with contextlib.suppress(UnsupportedError):
                here = HereEncoder(await asyncio.to_thread(self._source.build))
        return LocalEncoders(self._process, here), cuts

    async def close(self) -> None:
        await self._process.closed()

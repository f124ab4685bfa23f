"""The local tokenizer of a profile: one process, built on first use, for all its engines."""

from __future__ import annotations

import asyncio
from hashlib import blake2b

from proxy.encoders import ProcessEncoder, Source
from proxy.local_encoder import UnsupportedError
from proxy.segments import Cuts


class Local:
    """The local tokenizer of a profile, built once for all its engines."""

    def __init__(self, profile: str, source: Source) -> None:
        self.salt = blake2b(b"local " + profile.encode(), digest_size=16).digest()
        self._source = source
        self._encoder = ProcessEncoder(source)
        self._lock = asyncio.Lock()
        self._cuts: Cuts | None = None
        self._refused: str | None = None

    async def get(self) -> tuple[ProcessEncoder, Cuts]:
        """Raises :class:`UnsupportedError`, at once where it did before."""
        if not self._source.given:
            raise UnsupportedError("no vocabulary is known")
        async with self._lock:
            if self._refused is not None:
                raise UnsupportedError(self._refused)
            if self._cuts is None:
                try:
                    specials = await self._encoder.start()
                except UnsupportedError as error:
                    self._refused = str(error)
                    raise
                self._cuts = await asyncio.to_thread(Cuts, specials)
            return self._encoder, self._cuts

    async def close(self) -> None:
        await self._encoder.closed()

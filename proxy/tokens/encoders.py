"""Who turns segments into ids: a local tokenizer in a process of its own, or the engine.

A process, because the library holds the interpreter while it builds a large vocabulary (seconds)
and while it hands over many ids: streams of other clients would stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError
from slotwise.proxy.tokens.encoder_process import LENGTH, frame
from slotwise.proxy.tokens.fim import InfillFlags
from slotwise.proxy.tokens.local_encoder import (
    PARALLELISM,
    LocalEncoder,
    UnsupportedError,
    from_file,
    from_vocabulary,
)
from slotwise.proxy.tokens.segments import Segmenter
from slotwise.proxy.tokens.vocabulary import Vocabulary

BUILD_TIMEOUT_S = 60.0
ENCODE_TIMEOUT_S = 60.0
ENCODE_CHARS_PER_S = 100_000  # a tenth of the slowest seen; long texts get more time
_CALL_CHARS = 1024 * 1024  # of one call to the engine or the process


@dataclass(frozen=True, slots=True)
class Source:
    """Where a profile's local tokenizer comes from; a tokenizer.json goes before the vocabulary.

    ``infill``: how its engine was told to make the prompts of ``/infill``.

    ``vocabulary`` gives the fields of :class:`Vocabulary`, or None. It is called in another
    process, so it has to be a function of a module, or a ``functools.partial`` of one.
    """

    vocabulary: Callable[[], Mapping[str, Any] | None] | None = None
    tokenizer_json: Path | None = None
    infill: InfillFlags = field(default_factory=InfillFlags)

    @property
    def given(self) -> bool:
        return self.vocabulary is not None or self.tokenizer_json is not None

    def load_vocabulary(self) -> Vocabulary | None:
        """Raises :class:`UnsupportedError` where the model file cannot be read."""
        if self.vocabulary is None:
            return None
        try:
            fields = self.vocabulary()
        except Exception as error:  # the loader's own kinds, which are not known here
            raise UnsupportedError(f"the model's vocabulary: {error!s:.200}") from error
        return None if fields is None else Vocabulary(**fields)

    def build(self) -> LocalEncoder:
        """Takes up to some seconds; raises :class:`UnsupportedError`."""
        vocabulary = self.load_vocabulary()
        if self.tokenizer_json is not None:
            return from_file(self.tokenizer_json, vocabulary)
        if vocabulary is None:
            raise UnsupportedError("no vocabulary is known")
        return from_vocabulary(vocabulary)


class EncoderGoneError(Exception):
    """The local tokenizer's process died or hangs; the text says how."""


class Encoder(Protocol):
    """Encodes segments: texts that hold no clean special token."""

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        """Packed ids of each.

        Raises :class:`EncoderGoneError`, :class:`EngineUnreachableError`, ``UpstreamError``.
        """


class Built(NamedTuple):
    """What a local tokenizer says of itself."""

    tokens: int  # in its vocabulary
    specials: dict[str, int]  # text -> id


class ProcessEncoder:
    """A local tokenizer in one process of its own; it ends with this one, whatever happens."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
        self.gone = "it was not started"

    async def start(self) -> Built:
        """Build it. Raises :class:`UnsupportedError`."""
        self.close("it is built anew")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "slotwise.proxy.tokens.encoder_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    PARALLELISM: "true",
                },
            )
            self._reading = asyncio.create_task(self._read(self._process))
            built = await self._ask(BUILD_TIMEOUT_S, self._source)
        except (OSError, EncoderGoneError) as error:
            raise UnsupportedError(f"the local tokenizer: {error}") from error
        if isinstance(built, str):
            self.close(built)
            raise UnsupportedError(built)
        return Built(*built)

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        packed: list[bytes] = []
        for batch in _batches(segments):
            bound_s = ENCODE_TIMEOUT_S + sum(map(len, batch)) / ENCODE_CHARS_PER_S
            answer = await self._ask(bound_s, batch)
            if isinstance(answer, str):
                raise EncoderGoneError(f"the local tokenizer failed: {answer}")
            packed += answer
        return packed

    async def _ask(self, timeout_s: float, what: Any) -> Any:
        process = self._process
        if process is None or process.stdin is None:
            raise EncoderGoneError(f"the local tokenizer is gone: {self.gone}")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                process.stdin.write(frame(number, what))
                await process.stdin.drain()
                return await answer
        except (TimeoutError, ConnectionError) as error:
            self.close(str(error) or f"no answer within {timeout_s:g} s")
            raise EncoderGoneError(f"the local tokenizer is gone: {self.gone}") from error
        finally:
            self._answers.pop(number, None)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                head = await process.stdout.readexactly(LENGTH.size)
                content = await process.stdout.readexactly(LENGTH.unpack(head)[0])
                number, what = pickle.loads(content)
                answer = self._answers.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(what)
        except asyncio.IncompleteReadError:
            self.close(f"it ended with code {await process.wait()}")

    def close(self, why: str = "it was closed") -> None:
        """End the process; never waits."""
        process, self._process = self._process, None
        if process is None:
            return
        self.gone = why
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(EncoderGoneError(f"the local tokenizer is gone: {why}"))
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def closed(self) -> None:
        """End it and see it end."""
        process = self._process
        self.close()
        if process is not None:
            await process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading})


SMALL_VOCABULARY_TOKENS = 50_000
"""Building one holds the interpreter for 40 ms at a stretch and takes 25 MB, both measured."""
SHORT_CHARS = 4096
"""As much is encoded in 1 ms, the hardest texts in 4: so long the loop does nothing else."""


class HereEncoder:
    """A local tokenizer in this process, which encodes at once."""

    def __init__(self, encoder: LocalEncoder) -> None:
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


class LocalTokenizer:
    """The local tokenizer of a profile, built once for all its engines."""

    def __init__(self, profile: str, source: Source) -> None:
        self.salt = blake2b(b"local " + profile.encode(), digest_size=16).digest()
        self._source = source
        self._process = ProcessEncoder(source)
        self._lock = asyncio.Lock()
        self._built: tuple[LocalEncoders, Segmenter] | None = None
        self._refused: str | None = None

    async def get(self) -> tuple[LocalEncoders, Segmenter]:
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

    async def _build(self) -> tuple[LocalEncoders, Segmenter]:
        built = await self._process.start()
        segmenter = await asyncio.to_thread(Segmenter, built.specials)
        here = None
        if built.tokens <= SMALL_VOCABULARY_TOKENS:
            # The process has just built the same, so a failure is the file's, which changed.
            with contextlib.suppress(UnsupportedError):
                here = HereEncoder(await asyncio.to_thread(self._source.build))
        return LocalEncoders(self._process, here), segmenter

    async def close(self) -> None:
        await self._process.closed()


class EngineEncoder:
    """The engine's own tokenizer, for the segments alone."""

    def __init__(self, engine: EngineClient, segmenter: Segmenter) -> None:
        self._engine = engine
        # No segment holds it, so between two segments it tells where one ends.
        self._border = max(i for text, i in segmenter.clean.items() if text != "<unk>")

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        packed: list[bytes] = []
        for batch in _batches(segments):
            content: list[str | int] = []
            for segment in batch:
                content += (self._border, segment)
            ids = await self._engine.tokenize(content)
            found = await asyncio.to_thread(_parted, ids, self._border, len(batch))
            packed += found
        return packed


def _parted(ids: list[int], border: int, count: int) -> list[bytes]:
    if ids.count(border) != count or ids[0] != border:
        raise EngineUnreachableError("the engine's answer to /tokenize lacks a border")
    packed = []
    start = 0
    for n in range(count):
        end = ids.index(border, start + 1) if n + 1 < count else len(ids)
        packed.append(array("I", ids[start + 1 : end]).tobytes())
        start = end
    return packed


def _batches(segments: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    size = _CALL_CHARS
    for segment in segments:
        if size + len(segment) > _CALL_CHARS:
            batches.append([])
            size = 0
        batches[-1].append(segment)
        size += len(segment)
    return batches

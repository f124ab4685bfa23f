"""Who turns segments into ids: a local tokenizer in a process of its own, or the engine.

A process, because the library holds the interpreter while it builds a large vocabulary (seconds)
and while it hands over many ids: streams of other clients would stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import signal
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError
from proxy.local_encoder import LocalEncoder, UnsupportedError, from_file, from_vocabulary
from proxy.segments import Cuts
from proxy.vocabulary import Vocabulary

BUILD_TIMEOUT_S = 60.0
ENCODE_TIMEOUT_S = 60.0
_CALL_CHARS = 1024 * 1024  # of one call to the engine or the process
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where a profile's local tokenizer comes from; a tokenizer.json goes before the vocabulary.

    ``vocabulary`` gives the fields of :class:`Vocabulary`, or None. It is called in another
    process, so it has to be a function of a module, or a ``functools.partial`` of one.
    """

    vocabulary: Callable[[], Mapping[str, Any] | None] | None = None
    tokenizer_json: Path | None = None

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


class ProcessEncoder:
    """A local tokenizer in one process of its own; it ends with this one, whatever happens."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool: ProcessPoolExecutor | None = None

    async def start(self) -> dict[str, int]:
        """Build it; returns the special tokens. Raises :class:`UnsupportedError`."""
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_end_with_parent
        )
        try:
            built = await self._run(BUILD_TIMEOUT_S, _build, self._source)
        except EncoderGoneError as error:
            raise UnsupportedError(str(error)) from error
        if isinstance(built, str):
            self.close()
            raise UnsupportedError(built)
        specials: dict[str, int] = built
        return specials

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        packed: list[bytes] = []
        for batch in _batches(segments):
            packed += await self._run(ENCODE_TIMEOUT_S, _encode, batch)
        return packed

    async def _run(self, timeout_s: float, work: Callable[..., Any], *values: Any) -> Any:
        if self._pool is None:
            raise EncoderGoneError("the local tokenizer is closed")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._pool, work, *values)
        except (BrokenProcessPool, TimeoutError, RuntimeError) as error:
            self.close()
            text = str(error) or type(error).__name__
            raise EncoderGoneError(f"the local tokenizer is gone: {text}") from error

    def close(self) -> None:
        """End the process; never waits."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            with contextlib.suppress(OSError, ValueError):
                process.terminate()


_local: LocalEncoder | None = None


def _end_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent to act on
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _build(source: Source) -> dict[str, int] | str:
    global _local
    try:
        _local = source.build()
    except UnsupportedError as error:
        return str(error)
    except MemoryError:
        return "not enough memory for the vocabulary"
    return {**_local.cuts.clean, **dict(_local.cuts.tangled)}


def _encode(segments: Sequence[str]) -> list[bytes]:
    if _local is None:
        raise RuntimeError("not built")
    return _local.encode(segments)


class EngineEncoder:
    """The engine's own tokenizer, for the segments alone."""

    def __init__(self, engine: EngineClient, cuts: Cuts) -> None:
        self._engine = engine
        # No segment holds it, so between two segments it tells where one ends.
        self._border = max(i for text, i in cuts.clean.items() if text != "<unk>")

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

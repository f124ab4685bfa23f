"""The process that a local tokenizer lives in: frames in, frames out, until its input ends.

A frame is its length in 4 bytes and a pickle: ``(number, what)``. The first one brings the source
to build from and is answered by the size of its vocabulary and its special tokens, or by a text
that says why there are none; all others bring segments and are answered by their packed ids, as
each gets done.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from slotwise.proxy.tokens.local_encoder import LocalEncoder, UnsupportedError

LENGTH = struct.Struct("<I")
_SHORT_CHARS = 16 * 1024  # done at once, in a few milliseconds
_AT_ONCE = 4  # a long text must not hold up the short ones


def frame(number: int, what: Any) -> bytes:
    content = pickle.dumps((number, what), pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(content)) + content


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent to act on
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the frames
    first = _read(source)
    if first is None:
        return
    number, given = first
    encoder: LocalEncoder | None = None
    try:
        encoder = given.build()
        specials = {**encoder.segmenter.clean, **dict(encoder.segmenter.tangled)}
        answer: Any = encoder.tokens, specials
    except UnsupportedError as error:
        answer = str(error)
    except MemoryError:
        answer = "not enough memory for the vocabulary"
    sink.write(frame(number, answer))
    sink.flush()
    if encoder is not None:
        _serve(source, sink, encoder)


def _serve(source: BinaryIO, sink: BinaryIO, encoder: LocalEncoder) -> None:
    writing = threading.Lock()

    def answer(number: int, segments: Sequence[str]) -> None:
        try:
            done = frame(number, encoder.encode(segments))
        except Exception as error:  # the library's own, bare ones
            done = frame(number, str(error))
        with writing:
            sink.write(done)
            sink.flush()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while (read := _read(source)) is not None:
            if sum(map(len, read[1])) < _SHORT_CHARS:
                answer(*read)
            else:
                pool.submit(answer, *read)


def _read(source: BinaryIO) -> tuple[int, Any] | None:
    """The next frame; None: the parent is gone or wants no more."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    content = source.read(LENGTH.unpack(head)[0])
    read: tuple[int, Any] = pickle.loads(content)
    return read


if __name__ == "__main__":
    main()

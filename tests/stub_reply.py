"""How the stub engine's answer leaves: as one object, or as an event stream that can be cut up."""

from __future__ import annotations

import asyncio
import time

import orjson
from starlette.types import Send

from tests import stub_shapes as shapes
from tests.stub_config import Config
from tests.stub_shapes import Answer
from tests.stub_slots import Job

EVENT_STREAM = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
    (b"server", b"llama.cpp"),
]
_FILLER = b'data: {"choices":[],"x":123}\n\n'  # 30 bytes
DONE = b"data: [DONE]\n\n"


class CutError(Exception):
    """Ends a response by closing its socket."""


class RefusedError(Exception):
    def __init__(self, body: shapes.Json) -> None:
        super().__init__(body["error"]["message"])
        self.body = body


class Whole:
    """A reply that is one JSON object: nothing leaves before the end."""

    def __init__(self, answer: Answer, job: Job) -> None:
        self.answer = answer
        self.job = job
        self.finish = ""

    async def open(self) -> None: ...

    async def progress(self, processed: int) -> None: ...

    async def token(self, piece: str, token: int) -> None: ...

    async def cut(self) -> None:
        raise CutError

    async def error(self, body: shapes.Json) -> None:
        raise RefusedError(body)

    async def end(self, finish: str) -> None:
        self.finish = finish


class Stream:
    """A reply that is an event stream, event by event or cut into pieces of a given size."""

    def __init__(self, config: Config, send: Send, answer: Answer, job: Job) -> None:
        self._config = config
        self._send = send
        self.answer = answer
        self.job = job
        self._opened = False
        self._rest = b""  # bytes short of a whole piece

    async def open(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        self.job.log["first_byte"] = time.monotonic()
        if self.job.log["body"].get("return_progress"):
            await self._event(self.answer.progress(self.answer.cached))

    async def progress(self, processed: int) -> None:
        if self.job.log["body"].get("return_progress"):
            await self._event(self.answer.progress(processed))

    async def token(self, piece: str, token: int) -> None:
        await self._open_answer()
        await self._event(self.answer.token(piece, token))

    async def cut(self) -> None:
        raise CutError

    async def error(self, body: shapes.Json) -> None:
        await self._event(body)
        raise CutError

    async def end(self, finish: str) -> None:
        await self._open_answer()
        options = self.job.log["body"].get("stream_options") or {}
        include_usage = bool(options.get("include_usage"))
        for event in self.answer.endings(finish, self._config.usage, include_usage):
            await self._event(event)
        if self.answer.kind != "native":
            await self._write(DONE)
        if self._config.end_late_s:
            await self._put(self._rest)
            self._rest = b""
            await asyncio.sleep(self._config.end_late_s)
        await self._put(self._rest, more=False)

    async def _open_answer(self) -> None:
        if self._opened:
            return
        self._opened = True
        for _ in range(self._config.filler_events):
            await self._put(_FILLER)
            await asyncio.sleep(self._config.chunk_gap_s)
        opening = self.answer.opening()
        if opening:
            await self._event(opening)

    async def _event(self, event: shapes.Json) -> None:
        comment = b": a comment\n\n" if self._config.comments else b""
        await self._write(comment + b"data: " + orjson.dumps(event) + b"\n\n")

    async def _write(self, data: bytes) -> None:
        size = self._config.chunk_bytes
        if not size:
            await self._put(data)
            return
        self._rest += data
        while len(self._rest) >= size:
            piece, self._rest = self._rest[:size], self._rest[size:]
            await self._put(piece)
            await asyncio.sleep(self._config.chunk_gap_s)

    async def _put(self, data: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

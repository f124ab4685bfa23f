"""The stub engine's generating endpoints: one request from its body to its last byte, or worse."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tests import stub_shapes as shapes
from tests.stub_config import Config
from tests.stub_reply import CutError, RefusedError, Stream, Whole
from tests.stub_shapes import Answer, Kind
from tests.stub_slots import Job, Slots
from tests.stub_text import BOS, Vocabulary, render


class _GoneError(Exception):
    """The client hung up."""


class Generating:
    """The ASGI endpoint of one kind of generation. ``log`` grows by one record per request."""

    def __init__(
        self,
        kind: Kind,
        config: Config,
        slots: Slots,
        vocabulary: Vocabulary,
        log: list[dict[str, Any]],
    ) -> None:
        self._kind = kind
        self._config = config
        self._slots = slots
        self._vocabulary = vocabulary
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        raw = await request.body()
        record: dict[str, Any] = {
            "path": request.url.path,
            "headers": dict(request.headers),
            "arrived": time.monotonic(),
            "violation": False,
            "slot": None,
            "ended": None,
        }
        self._log.append(record)
        try:
            body = orjson.loads(raw)
            record["body"] = body
            prompt, ids = self._prompt(body)
        except ValueError as problem:
            await _refuse(scope, receive, send, record, shapes.refusal(problem)[0])
            return
        if self._config.fail_next > 0:
            await self._fail(scope, receive, send, record)
            return
        job = Job(
            ids=ids,
            pin=_whole(body.get("id_slot"), -1),
            n_predict=_n_predict(body),
            log=record,
            cache_prompt=bool(body.get("cache_prompt", True)),
        )
        answer = Answer(self._kind, self._config.alias, prompt, len(ids))
        record["n_prompt"] = len(ids)
        await self._serve(scope, receive, send, job, answer)

    def _prompt(self, body: Any) -> tuple[Any, list[int]]:
        if not isinstance(body, dict):
            raise ValueError("the body must be an object")
        bos = [self._vocabulary.id(BOS)] if self._config.add_bos else []
        if self._kind == "chat":
            media: list[str] = []
            text = render(body, media if self._config.mmproj else None)
            return text, bos + self._vocabulary.encode_prompt(text, media)
        if isinstance(body.get("prompt"), str | list):
            prompt: Any = body["prompt"]
        else:
            raise ValueError("'prompt' must be a string or a list of tokens")
        if isinstance(prompt, list):
            return prompt, [int(token) for token in prompt]
        return prompt, bos + self._vocabulary.encode(prompt)

    async def _fail(self, scope: Scope, receive: Receive, send: Send, record: Any) -> None:
        self._config.fail_next -= 1
        if self._config.fail_after_s:
            await asyncio.sleep(self._config.fail_after_s)
        status = self._config.fail_status
        if status == 0:
            record["ended"] = "cut"
            await _close_socket(receive)
            raise CutError
        kind = "server_error" if status >= 500 else "invalid_request_error"
        await _refuse(scope, receive, send, record, shapes.error(status, "as told", kind))

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, job: Job, answer: Answer
    ) -> None:
        streamed = bool(job.log["body"].get("stream"))
        watch = asyncio.get_running_loop().create_task(_watch(receive, job))
        reply = Stream(self._config, send, answer, job) if streamed else Whole(answer, job)
        try:
            if self._config.silent:
                await job.gone.wait()
                raise _GoneError
            self._slots.submit(job)
            await self._relay(reply, job, answer)
            if isinstance(reply, Whole):
                told = self._config.usage != "none"
                whole = answer.whole(reply.finish, told)
                await JSONResponse(whole, headers={"server": "llama.cpp"})(scope, receive, send)
            job.log |= {"ended": "finished", "finished": time.monotonic()}
            if streamed and self._config.stale_keepalive:
                raise CutError
        except CutError:
            if not streamed:
                await _close_socket(receive)
            raise
        except _GoneError:
            job.log["ended"] = "client_gone"
        except RefusedError as refused:
            await _refuse(scope, receive, send, job.log, refused.body)
        finally:
            watch.cancel()
            self._slots.leave(job)
            job.log |= {"predicted": answer.predicted, "text": answer.text}

    async def _relay(self, reply: Whole | Stream, job: Job, answer: Answer) -> None:
        """Take what the slot does, misbehave where told, and hand it to the reply."""
        began = time.monotonic()
        while True:
            what, *values = await job.out.get()
            now = time.monotonic()
            if what == "gone":
                raise _GoneError
            if what == "error":
                raise RefusedError(_too_long(*values))
            if what == "start":
                began = now
                answer.cached, answer.id_slot = values
                await reply.open()
            elif what == "progress":
                answer.prompt_s = now - began
                await reply.progress(values[0])
            else:
                answer.predicted_s = now - began - answer.prompt_s
                await self._misbehave(reply, answer)
                if what == "final":
                    await reply.end(values[0])
                    return
                answer.predicted += 1
                await self._token(reply, answer, values[0])

    async def _token(self, reply: Whole | Stream, answer: Answer, token: int) -> None:
        piece = self._vocabulary.piece(token)
        if not piece.startswith("<|"):  # the end-of-turn token is counted, not shown
            answer.text += piece
            await reply.token(piece, token)

    async def _misbehave(self, reply: Whole | Stream, answer: Answer) -> None:
        n, config = answer.predicted, self._config
        if n == config.exit_after_tokens:
            os._exit(1)
        if n == config.cut_after_tokens:
            reply.job.log["ended"] = "cut"
            await reply.cut()
        if n == config.error_after_tokens:
            reply.job.log["ended"] = "error"
            await reply.error(shapes.error(500, "Compute error.", "server_error"))


async def _watch(receive: Receive, job: Job) -> None:
    """Wait for the client to leave; says so to whoever waits for the slot."""
    while (await receive())["type"] != "http.disconnect":
        pass
    job.log["closed"] = time.monotonic()
    job.gone.set()
    job.out.put_nowait(("gone",))


async def _close_socket(receive: Receive) -> None:
    """Close the connection with nothing sent: ASGI has no word for it, uvicorn's cycle has."""
    cycle: Any = receive
    cycle.__self__.transport.close()
    await asyncio.sleep(0.01)  # lets uvicorn see the loss, so that it sends no 500


async def _refuse(
    scope: Scope, receive: Receive, send: Send, record: dict[str, Any], body: shapes.Json
) -> None:
    status = body["error"]["code"]
    record |= {"ended": record["ended"] or "refused", "status": status}
    # llama-server closes the connection after any status from 400 on
    headers = {"server": "llama.cpp", "connection": "close"}
    await JSONResponse(body, status, headers)(scope, receive, send)


def _too_long(status: int, n_prompt: int, n_ctx: int) -> shapes.Json:
    message = (
        f"request ({n_prompt} tokens) exceeds the available context size ({n_ctx} tokens), "
        "try increasing it"
    )
    return shapes.error(
        status, message, "exceed_context_size_error", n_prompt_tokens=n_prompt, n_ctx=n_ctx
    )


def _n_predict(body: dict[str, Any]) -> int:
    """The limit asked for, under any of its names; 0 still computes one token."""
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        if name in body:
            limit = _whole(body[name], -1)
            return 1 if limit == 0 else limit
    return -1


def _whole(value: Any, default: int) -> int:
    """llama-server takes a value of the wrong type for its default."""
    return value if type(value) is int else default

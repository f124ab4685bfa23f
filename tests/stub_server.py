"""A llama-server look-alike that misbehaves on request: ``python -m tests.stub_server --port 0``.

It prints ``listening on http://127.0.0.1:PORT`` once bound and has llama-server's endpoints, shapes
and slots (see the files ``stub_*.py``). Each way to misbehave is a field of ``Config``: a flag, and
at run time a key of ``POST /stub/config``. ``GET /stub/log`` tells what it saw, in seconds of the
machine's monotonic clock, which all processes share: that is what tests assert on. Its parts:

requests    every generating request: body, headers, slot, cached, violation (it was pinned to a
            busy slot), deferred, arrived, started, first_byte, finished, closed (its client left
            before the end), released, ended (finished, client_gone, refused, cut, error)
slots_polls when ``/slots`` was asked
helpers     how often each path was
violations  how many requests were pinned to a busy slot
``POST /stub/clear`` forgets all that; ``GET /stub/slots`` is ``/slots``, never hanging, not noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests import stub_shapes as shapes
from tests.stub_config import Config, from_command_line
from tests.stub_generate import Generating
from tests.stub_slots import Slots
from tests.stub_text import BOS, MARKER, Vocabulary, render

_GENERATING: dict[str, shapes.Kind] = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "text",
    "/completion": "native",
    "/completions": "native",
}
_KEYLESS = ("/health", "/v1/health")
Handler = Callable[[Request], Awaitable[Response]]


class Stub:
    """The whole stub as an ASGI application."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._vocabulary = Vocabulary()
        self._slots = Slots(config, self._vocabulary)
        self._requests: list[dict[str, Any]] = []
        self._slots_polls: list[float] = []
        self._helpers: Counter[str] = Counter()
        self._ready_at = time.monotonic() + config.load_s
        self._app = Starlette(routes=self._routes(), exception_handlers={404: _not_found})

    def _routes(self) -> list[Route]:
        handlers: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/health"): self._health,
            ("GET", "/props"): self._props,
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/slots"): self._slots_view,
            ("POST", "/slots/{id:int}"): self._slot_action,
            ("POST", "/apply-template"): self._apply_template,
            ("POST", "/v1/chat/completions/input_tokens"): self._input_tokens,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/stub/log"): self._stub_log,
            ("GET", "/stub/slots"): self._stub_slots,
            ("POST", "/stub/clear"): self._stub_clear,
            ("POST", "/stub/config"): self._stub_config,
        }
        routes = [Route(path, handler, methods=[m]) for (m, path), handler in handlers.items()]
        for path, kind in _GENERATING.items():
            parts = (self._config, self._slots, self._vocabulary, self._requests)
            routes.append(Route(path, Generating(kind, *parts), methods=["POST"]))
        return routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Loading first, then the key, then the routes: llama-server's order."""
        if scope["type"] != "http" or scope["path"].startswith("/stub/"):
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        self._helpers[path] += 1
        if time.monotonic() < self._ready_at:
            refusal = shapes.error(503, "Loading model", "unavailable_error")
            await JSONResponse(refusal, 503)(scope, receive, send)
        elif not self._allowed(Request(scope)):
            refusal = shapes.error(401, "Invalid API Key", "authentication_error")
            await JSONResponse(refusal, 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _allowed(self, request: Request) -> bool:
        key = self._config.api_key
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        is_open = not key or request.url.path in _KEYLESS
        return is_open or key in (given, request.headers.get("x-api-key"))

    # ------------------------------------------------------------ llama-server's endpoints

    async def _health(self, request: Request) -> Response:
        if self._config.health_hang:
            await _until_gone(request)
        return JSONResponse({"status": "ok"})

    async def _props(self, request: Request) -> Response:
        config = self._config
        props = shapes.props(config.alias, config.slots, self._slots.window)
        return JSONResponse({**props, "media_marker": MARKER})

    async def _models(self, request: Request) -> Response:
        return JSONResponse(shapes.models(self._config.alias, self._slots.window))

    async def _metrics(self, request: Request) -> Response:
        if self._config.metrics_hang:
            await _until_gone(request)
        busy = sum(state["is_processing"] for state in self._slots.states())
        return Response(shapes.metrics(busy), media_type="text/plain")

    async def _slots_view(self, request: Request) -> Response:
        self._slots_polls.append(time.monotonic())
        if self._config.slots_hang:
            await _until_gone(request)
        return JSONResponse(self._slots.states())

    async def _slot_action(self, request: Request) -> Response:
        action = request.query_params.get("action")
        if not self._config.slot_save_path or action != "erase":
            refusal = shapes.error(501, f"no slot action {action}", "not_supported_error")
            return JSONResponse(refusal, 501)
        id_slot = request.path_params["id"]
        return JSONResponse({"id_slot": id_slot, "n_erased": self._slots.erase(id_slot)})

    async def _apply_template(self, request: Request) -> Response:
        await asyncio.sleep(self._config.helper_delay_s)
        try:
            text = render(orjson.loads(await request.body()), [] if self._config.mmproj else None)
            return JSONResponse({"prompt": text})
        except ValueError as problem:
            return JSONResponse(*shapes.refusal(problem))

    async def _input_tokens(self, request: Request) -> Response:
        media: list[str] = []
        try:
            text = render(await request.json(), media if self._config.mmproj else None)
        except ValueError as problem:
            return JSONResponse(*shapes.refusal(problem))
        count = len(self._vocabulary.encode_prompt(text, media)) + self._config.add_bos
        return JSONResponse({"input_tokens": count, "object": "response.input_tokens"})

    async def _tokenize(self, request: Request) -> Response:
        await asyncio.sleep(self._config.helper_delay_s)
        body = await request.json()
        bos = body.get("add_special") and self._config.add_bos
        ids = [self._vocabulary.id(BOS)] if bos else []
        content = body.get("content", "")
        for part in [content] if isinstance(content, str) else content:
            is_text = isinstance(part, str)
            special = body.get("parse_special", True)
            ids += self._vocabulary.encode(part, special) if is_text else [int(part)]
        if body.get("with_pieces"):
            pieces = [{"id": token, "piece": self._vocabulary.piece(token)} for token in ids]
            return JSONResponse({"tokens": pieces})
        return JSONResponse({"tokens": ids})

    async def _detokenize(self, request: Request) -> Response:
        return JSONResponse({"content": self._vocabulary.decode((await request.json())["tokens"])})

    # ------------------------------------------------------------ the test's side

    async def _stub_log(self, request: Request) -> Response:
        told = {
            "now": time.monotonic(),
            "requests": self._requests,
            "violations": sum(record["violation"] for record in self._requests),
            "slots_polls": self._slots_polls,
            "helpers": dict(self._helpers),
            "tasks": len(asyncio.all_tasks()),
        }
        return Response(orjson.dumps(told), media_type="application/json")

    async def _stub_slots(self, request: Request) -> Response:
        return JSONResponse(self._slots.states())

    async def _stub_clear(self, request: Request) -> Response:
        self._requests.clear()
        self._slots_polls.clear()
        self._helpers.clear()
        return JSONResponse({})

    async def _stub_config(self, request: Request) -> Response:
        given = await request.json()
        try:
            self._config.update(given)
        except ValueError as problem:
            return JSONResponse(shapes.error(400, str(problem)), 400)
        if "load_s" in given:
            self._ready_at = time.monotonic() + self._config.load_s
        return JSONResponse({})


class _Server(uvicorn.Server):
    """uvicorn with llama-server's signals: the first TERM waits for clients, the second exits."""

    def __init__(self, config: uvicorn.Config, ignore_sigterm: bool) -> None:
        super().__init__(config)
        self._ignore_sigterm = ignore_sigterm

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        yield

    def _terminate(self, number: int, frame: object) -> None:
        if self._ignore_sigterm and number == signal.SIGTERM:
            return
        if self.should_exit:
            os._exit(1)
        self.should_exit = True


async def _not_found(request: Request, problem: Exception) -> Response:
    return JSONResponse(shapes.error(404, "File Not Found", "not_found_error"), 404)


async def _until_gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.05)


def _fails_this_time(config: Config) -> bool:
    """Whether this start is one of the first ``fail_starts``, counted in a file."""
    if not config.fail_starts:
        return False
    counter = Path(config.count_file)
    so_far = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(so_far + 1))
    return so_far < config.fail_starts


def _print_much(config: Config) -> None:
    line = "x" * 1023 + ("" if config.print_one_line else "\n")
    for _ in range(config.print_mb * 1024):
        sys.stdout.write(line)
    sys.stdout.write("\n" if config.print_one_line else "")
    sys.stdout.flush()


def main() -> None:
    config, host, port = from_command_line(sys.argv[1:])
    _print_much(config)
    if _fails_this_time(config):
        sys.exit("stub: told to fail this start")
    time.sleep(config.bind_delay_s)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
        print(f"listening on http://{host}:{listener.getsockname()[1]}", flush=True)
        settings = uvicorn.Config(
            Stub(config),
            log_level="critical",
            timeout_keep_alive=5,
            lifespan="off",
            server_header=False,
        )
        _Server(settings, config.ignore_sigterm).run(sockets=[listener])


if __name__ == "__main__":
    main()

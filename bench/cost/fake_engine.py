"""A llama-server that computes nothing, so that what stands in front of it is what is measured.

    python -m slotwise.bench.cost.fake_engine --engine http://127.0.0.1:8080 \\
        --port 8081 -np 4 -c 524288

Streams come from memory, each event in a write of its own, as an engine sends them: the events of
all running streams together, ``pace_us`` of the last request apart (0: as fast as they go). What a
proxy asks beside that is answered too: templates and token ids by the real engine named, pins as if
kept. One thread, plain sockets and no HTTP library: it must not be the slowest of the row. Flags of
llama-server that it does not know are accepted, so that slotwise can start it.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import orjson

from slotwise.bench.trace.report import count, parser_of, port

HEAD_END = b"\r\n\r\n"
FORWARDED = ("/apply-template", "/tokenize", "/detokenize", "/v1/models")
MAX_BODY_BYTES = 64 * 1024 * 1024
READ_BYTES = 1024 * 1024
SEND_LIMIT_S = 10  # to a reader that does not read
FORWARD_LIMIT_S = 60
IDLE_S = 1.0
MOST_LATE_S = 0.05  # what is made up for, when others held the processor
SLACK_S = 0.00006  # how late the kernel wakes a sleeper
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nX-Accel-Buffering: no\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Keep-Alive: timeout=5, max=100\r\n\r\n"
)
_REST = (
    '"created":1795994028,"id":"chatcmpl-ZnUdl8rX3rawOguInvok7yLG6Efu9aca","model":"tiny",'
    '"system_fingerprint":"b0-fake","object":"chat.completion.chunk"'
)


def event(choice: str, more: str = "") -> bytes:
    """One event of a chat stream."""
    return f'data: {{"choices":[{{{choice}}}],{_REST}{more}}}\n\n'.encode()


def chunk(*events: bytes) -> bytes:
    """Events as one HTTP chunk, as the engine frames what it writes at once."""
    body = b"".join(events)
    return b"%x\r\n%b\r\n" % (len(body), body)


ROLE = event('"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}')
TOKEN = event('"finish_reason":null,"index":0,"delta":{"content":" updated"}')
TOKEN_CHUNK = chunk(TOKEN)
FIRST_CHUNK = chunk(ROLE, TOKEN)
DONE_CHUNK = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass
class Connection:
    """One client."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)


@dataclass
class Stream:
    """One running answer."""

    connection: Connection
    left: int  # events
    end: bytes  # what ends it
    id_slot: int
    closes: bool


class FakeEngine:
    """Serves on ``listener``. ``engine``: where the real one listens; ``windows``: by id_slot."""

    def __init__(self, listener: socket.socket, engine: str, slots: int, window: int) -> None:
        self._listener = listener
        self._address = urlsplit(engine).netloc
        self._slots = slots
        self._window = window
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._streams: list[Stream] = []
        self._pace_s = 0.0
        self._held: dict[int, list[int]] = {}  # ids of the pinned raw prompts
        self._props: bytes = b""

    def serve(self, until: Callable[[], bool] = lambda: False) -> None:
        """Serve until told; asked at least once a second."""
        due = 0.0
        while not until():
            running = bool(self._streams)
            for key, _ in self._selector.select(0 if running else IDLE_S):
                self._ready(key)
            if not running:
                due = time.perf_counter() + self._pace_s
                continue
            early_s = due - time.perf_counter()
            if early_s > SLACK_S:
                time.sleep(early_s - SLACK_S)
            due = max(due + self._pace_s, time.perf_counter() - MOST_LATE_S)
            self._send_all()

    def _send_all(self) -> None:
        """One event of every stream, each in a write of its own."""
        ended = []
        for stream in self._streams:
            stream.left -= 1
            try:
                stream.connection.socket.send(TOKEN_CHUNK if stream.left else stream.end)
            except OSError:  # its reader left
                stream.left, stream.closes = 0, True
            if stream.left <= 0:
                ended.append(stream)
        for stream in ended:
            self._streams.remove(stream)
            if stream.closes:
                self._drop(stream.connection)

    # ------------------------------------------------------------ what is asked

    def _ready(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            client, _ = self._listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A blocking socket with a limit of the kernel's: Python's own costs a call more.
            limit = struct.pack("ll", SEND_LIMIT_S, 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._selector.register(client, selectors.EVENT_READ, Connection(client))
            return
        connection: Connection = key.data
        try:
            data = connection.socket.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._gone(connection)
            return
        connection.received += data
        self._requests(connection)

    def _requests(self, connection: Connection) -> None:
        """Answer what has come whole."""
        received = connection.received
        head_end = received.find(HEAD_END)
        if head_end < 0:
            return
        head = bytes(received[:head_end])
        start = head_end + len(HEAD_END)
        length = _content_length(head)
        if length > MAX_BODY_BYTES:
            self._gone(connection)
            return
        if len(received) < start + length:
            return
        body = bytes(received[start : start + length])
        del received[: start + length]
        method, path, *_ = head.split(b" ", 2)
        closes = b"connection: close" in head.lower()
        with contextlib.suppress(OSError):
            self._answer(connection, path.decode(), body, closes, method == b"GET")

    def _answer(
        self, connection: Connection, path: str, body: bytes, closes: bool, is_get: bool
    ) -> None:
        path = path.partition("?")[0]
        if path in FORWARDED:
            content = self._by_engine(path, None if is_get else body)
        elif path == "/props":
            content = self._props = self._props or self._told_props()
        elif path.startswith("/slots"):
            content = orjson.dumps([self._slot(n) for n in range(self._slots)])
        elif path.endswith(("/completions", "/completion")):
            request = orjson.loads(body)
            if request.get("stream"):
                self._start(connection, request, closes)
                return
            content = self._pinned(request)
        else:
            content = b'{"status":"ok"}'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.socket.sendall(head % len(content) + content)
        if closes:
            self._drop(connection)

    def _start(self, connection: Connection, request: dict[str, Any], closes: bool) -> None:
        """``reports``: prompt and cached tokens to tell of, since nothing is counted here."""
        count = max(2, int(request.get("max_tokens") or 2))
        prompt, cached = request.get("reports") or (0, 0)
        timings = {
            **{"cache_n": cached, "prompt_n": prompt - cached, "prompt_ms": 1.0},
            **{"predicted_n": count, "predicted_ms": 1.0},
        }
        finish = '"finish_reason":"length","index":0,"delta":{}'
        reported = f',"timings":{orjson.dumps(timings).decode()}'
        end = chunk(event(finish, reported)) + DONE_CHUNK
        self._pace_s = int(request.get("pace_us") or 0) / 1e6
        send = connection.socket.send
        send(_STREAM_HEAD)
        if request.get("return_progress"):
            steps = [_progress(prompt, cached, cached), _progress(prompt, cached, prompt)]
            send(chunk(*steps))
        send(FIRST_CHUNK)
        id_slot = int(request.get("id_slot", 0)) % self._slots
        self._streams.append(Stream(connection, count - 1, end, id_slot, closes))

    def _pinned(self, request: dict[str, Any]) -> bytes:
        """The answer to a short whole prompt of ids, as a slot that keeps what it holds."""
        prompt, id_slot = request["prompt"], int(request.get("id_slot", 0)) % self._slots
        held = self._held.get(id_slot, [])
        pairs = zip(held, prompt, strict=False)
        cached = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(held), len(prompt)))
        self._held[id_slot] = prompt
        timings = {"cache_n": cached, "prompt_n": len(prompt) - cached, "predicted_n": 1}
        return orjson.dumps({"content": "", "id_slot": id_slot, "stop": True, "timings": timings})

    def _slot(self, id_slot: int) -> dict[str, Any]:
        busy = any(stream.id_slot == id_slot for stream in self._streams)
        return {"id": id_slot, "n_ctx": self._window, "is_processing": busy}

    def _told_props(self) -> bytes:
        props = orjson.loads(self._by_engine("/props", None))
        props["total_slots"] = self._slots
        props["default_generation_settings"]["n_ctx"] = self._window
        return orjson.dumps(props)

    def _by_engine(self, path: str, body: bytes | None) -> bytes:
        engine = HTTPConnection(self._address, timeout=FORWARD_LIMIT_S)
        try:
            engine.request("GET" if body is None else "POST", path, body)
            return engine.getresponse().read()
        finally:
            engine.close()

    def _gone(self, connection: Connection) -> None:
        self._streams = [s for s in self._streams if s.connection is not connection]
        self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.socket.fileno() >= 0:
            self._selector.unregister(connection.socket)
            connection.socket.close()


def _progress(total: int, cached: int, processed: int) -> bytes:
    reported = {"total": total, "cache": cached, "processed": processed, "time_ms": 0}
    role = '"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}'
    return event(role, f',"prompt_progress":{orjson.dumps(reported).decode()}')


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("slotwise.bench.cost.fake_engine", __doc__)
    parser.add_argument("--engine", required=True, help="URL of the real engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=port, default=0)
    parser.add_argument("-np", type=count, default=1, help="slots")
    parser.add_argument("-c", type=count, default=4096, help="tokens of all slots together")
    given, _ = parser.parse_known_args(arguments)
    with socket.create_server((given.host, given.port), backlog=256) as listener:
        FakeEngine(listener, given.engine, given.np, given.c // given.np).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The load of the overhead benchmark: plain sockets, and prompts counted by the real engine."""

from __future__ import annotations

import gc
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import orjson

from slotwise.bench.cost.prompt_corpus import code_text, conversation
from slotwise.bench.trace.trace import Message
from slotwise.policies.prefix import EMPTY, Tokens, lcp, pack

CHAT = "/v1/chat/completions"
TOKEN = b'"content":"'
EVENT = b"data: "
LAST_CHUNK = b"\r\n0\r\n\r\n"
OK = b"HTTP/1.1 200"
SHOWN_BYTES = 300
HEAD_END = b"\r\n\r\n"
LIMIT_S = 60.0
KEPT_S = 3.0  # a connection idle for longer may be closed under our hands,
KEPT_REQUESTS = 90  # as one that had more of them: llama-server takes 100
READ_BYTES = 256 * 1024


class LoadError(RuntimeError):
    """An answer that is not what was asked for; the text holds its begin."""


def post(path: str, body: Mapping[str, Any]) -> bytes:
    """The bytes of a request, head and body in one."""
    content = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Talker:
    """One kept-alive connection to ``url``."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._socket: socket.socket | None = None
        self._used_at = 0.0
        self._requests = 0  # on this connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def first_token_s(self, request: bytes) -> float:
        """Seconds from the first byte sent to the first token read; the answer is read to its end.

        Raises :class:`LoadError`, ``OSError``.
        """
        connected = self._connected()
        begun = time.perf_counter()
        connected.sendall(request)
        received, at = bytearray(), 0.0
        while not received.endswith(LAST_CHUNK):
            received += _received(connected)
            if not at and TOKEN in received:
                at = time.perf_counter()
            if not at and _length(received) is not None:
                raise LoadError(f"not a stream: {bytes(received[:SHOWN_BYTES])!r}")
        self._used_at = time.monotonic()
        if not at:
            raise LoadError(f"a stream without a token: {bytes(received[:SHOWN_BYTES])!r}")
        return at - begun

    def whole_s(self, request: bytes) -> float:
        """Seconds to the end of an answer that is not streamed; raises as above."""
        connected = self._connected()
        begun = time.perf_counter()
        connected.sendall(request)
        received = bytearray()
        while (length := _length(received)) is None or len(received) < length:
            received += _received(connected)
        self._used_at = time.monotonic()
        if not received.startswith(OK):
            raise LoadError(f"not an answer: {bytes(received[:SHOWN_BYTES])!r}")
        return time.perf_counter() - begun

    def _connected(self) -> socket.socket:
        is_old = time.monotonic() - self._used_at > KEPT_S or self._requests >= KEPT_REQUESTS
        if self._socket is None or is_old:
            self.close()
            self._socket, self._requests = _connect(self._address), 0
        self._requests += 1
        return self._socket


@dataclass(frozen=True, slots=True)
class Flow:
    """What a run of streams brought while all of them ran: from when the last one had its first
    event to when the first one ended, so that the opening of streams does not count."""

    events: int
    seconds: float
    metered: float  # by how much the meter went on
    whole: int  # events of all streams from begin to end

    @property
    def per_s(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0

    @property
    def metered_each(self) -> float:
        return self.metered / self.events


class _Reader:
    """One stream that is read and counted, not looked at."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = _connect(address)
        self.request = request
        self.events = 0
        self._tail = b""

    def read(self) -> bool:
        """Take what is there; False: it was the end."""
        data = _received(self.socket)
        seen = self._tail + data
        self.events += seen.count(EVENT) - self._tail.count(EVENT)
        if seen.endswith(LAST_CHUNK):
            return False
        self._tail = seen[-len(LAST_CHUNK) + 1 :]  # a mark may be cut in two
        return True


def streams(url: str, requests: list[bytes], meter: Callable[[], float] = float) -> Flow:
    """Post all requests, each on a connection of its own, and read the answers to their end.

    ``meter``: what else is taken at both ends of the time that counts. Raises :class:`LoadError`,
    ``OSError``; the answers are to be so long that none ends before the last begins.
    """
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    readers = [_Reader(address, request) for request in requests]
    try:
        with undisturbed(), selectors.DefaultSelector() as selector:
            for reader in readers:
                selector.register(reader.socket, selectors.EVENT_READ, reader)
                reader.socket.sendall(reader.request)
            return _read_all(selector, readers, meter, url)
    finally:
        for reader in readers:
            reader.socket.close()


class _Moment(NamedTuple):
    """A reading of everything."""

    events: int
    at: float
    meter: float


def _read_all(
    selector: selectors.BaseSelector,
    readers: list[_Reader],
    meter: Callable[[], float],
    url: str,
) -> Flow:
    """Until the last one has ended."""

    def moment() -> _Moment:
        return _Moment(sum(reader.events for reader in readers), time.perf_counter(), meter())

    first: _Moment | None = None
    last: _Moment | None = None
    left, silent = len(readers), len(readers)
    while left:
        ready = selector.select(LIMIT_S)
        if not ready:
            raise LoadError(f"{left} streams were silent for {LIMIT_S:g} s")
        for key, _ in ready:
            reader: _Reader = key.data
            was_silent = not reader.events
            if not reader.read():
                selector.unregister(reader.socket)
                left -= 1
                last = last or moment()
            silent -= was_silent and reader.events > 0
            if first is None and not silent:
                first = moment()
    if first is None or last is None or last.events <= first.events:
        raise LoadError(f"a stream of {url} ended before the last one began: they are too short")
    whole = sum(reader.events for reader in readers)
    return Flow(last.events - first.events, last.at - first.at, last.meter - first.meter, whole)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection of garbage while times are taken."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _connect(address: tuple[str, int]) -> socket.socket:
    connected = socket.create_connection(address, timeout=LIMIT_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel's own limit: Python's would cost a call more for every read.
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(LIMIT_S), 0))
    return connected


def _received(connected: socket.socket) -> bytes:
    """At least a byte; raises :class:`LoadError`."""
    try:
        data = connected.recv(READ_BYTES)
    except BlockingIOError:
        raise LoadError(f"no byte for {LIMIT_S:g} s") from None
    if not data:
        raise LoadError("the answer broke off")
    return data


def _length(received: bytearray) -> int | None:
    """Of an answer with a Content-Length, head and body; None: not told, or not yet."""
    start = received.find(HEAD_END)
    for line in bytes(received[: max(start, 0)]).lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return start + len(HEAD_END) + int(line.partition(b":")[2])
    return None


SYSTEM_CHARS, USER_CHARS = 300, 260  # of a short prompt: some 200 tokens with the template


@dataclass(frozen=True, slots=True)
class PromptTurn:
    """One request: its messages, and the tokens a real engine would tell."""

    messages: tuple[Message, ...]
    prompt_tokens: int
    cached_tokens: int

    def request(self, max_tokens: int, pace_us: int) -> bytes:
        """The bytes to send for a streamed answer of so many events, so far apart."""
        body = {
            **self.shape(),
            "max_tokens": max_tokens,
            "stream": True,
            "pace_us": pace_us,
            "reports": [self.prompt_tokens, self.cached_tokens],
        }
        return post(CHAT, body)

    def shape(self) -> dict[str, Any]:
        """What makes the prompt."""
        return {"messages": list(self.messages)}


class Counter:
    """Asks the engine at ``url`` what messages are in tokens."""

    def __init__(self, url: str) -> None:
        self._engine = HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)
        self._last = EMPTY

    def turn(self, messages: Sequence[Message]) -> PromptTurn:
        """The turn of these messages; what it shares with the one before is cached."""
        prompt = self._ask("/apply-template", {"messages": messages})["prompt"]
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        tokens: Tokens = pack(self._ask("/tokenize", asked)["tokens"])
        cached = min(lcp(tokens, self._last), len(tokens) - 1)
        self._last = tokens
        return PromptTurn(tuple(messages), len(tokens), cached)

    def _ask(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        try:
            self._engine.request("POST", path, orjson.dumps(body), headers)
            return orjson.loads(self._engine.getresponse().read())
        finally:
            self._engine.close()  # engines close idle connections without notice


def short_turns(engine_url: str, count: int) -> list[PromptTurn]:
    """New conversations of about 200 tokens with one system text."""
    text, counter = code_text(), Counter(engine_url)
    system: Message = {"role": "system", "content": text[:SYSTEM_CHARS]}
    most = len(text) - USER_CHARS
    begins = ((SYSTEM_CHARS + n * USER_CHARS) % most for n in range(count))
    said = (text[begin : begin + USER_CHARS] for begin in begins)
    return [counter.turn([system, {"role": "user", "content": one}]) for one in said]


def long_turns(engine_url: str, first_tokens: int, count: int) -> list[PromptTurn]:
    """A conversation that has about ``first_tokens`` and adds some 500 a turn."""
    counter = Counter(engine_url)
    messages, next_turn = conversation(first_tokens)
    turns = []
    for _ in range(count):
        turns.append(counter.turn(messages))
        messages += next_turn()
    return turns

"""What it costs to be seen: the proxy's processor time per request, unseen and seen, by turns.

    python -m bench.seeing_cost [--requests 4000]

Seen means: metrics count, Prometheus asks for them every 5 s, and a lanes page is open. Unseen:
metrics count nothing and nobody asks. The same process serves both by short turns (A/B/A/B), so
that a machine that is busy with other things slows both alike, before the tests' stub engine (so
this runs in a checkout), with streamed answers of 16 tokens. Only the proxy's own time counts.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil

from bench.report import markdown_table
from bench.seeing_server import READY, SWITCH

STUB = ("-m", "tests.stub_server", "--slots", "8", "--ctx", "65536", "--answer-tokens", "16")
STUB_READY = "listening on "
SCRAPE_EVERY_S = 5.0
CLIENTS = 4
PROMPT_WORDS = 400
WARM_UP = 200  # requests
LIMIT_S = 60.0
GOAL = 0.03


@dataclass(slots=True)
class Way:
    """Seen or unseen: what its turns took so far."""

    seen: bool
    requests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    turns_ms: list[float] = field(default_factory=list)  # processor time per request

    def row(self) -> dict[str, Any]:
        return {
            "": "seen" if self.seen else "unseen",
            "requests": self.requests,
            "turns": len(self.turns_ms),
            "proxy's ms per request": self.ms,
            "requests per s": self.requests / self.wall_s,
        }

    @property
    def ms(self) -> float:
        return 1000 * self.cpu_s / self.requests


@contextlib.contextmanager
def running(command: Sequence[str], ready: str) -> Iterator[tuple[str, psutil.Process]]:
    """A child and the URL it prints behind ``ready``; ended by its own process id."""
    child = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    watchdog = threading.Timer(LIMIT_S, child.kill)
    watchdog.start()
    try:
        line = next((line for line in child.stdout if line.startswith(ready)), None)
        watchdog.cancel()
        if line is None:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield line.removeprefix(ready).strip(), psutil.Process(child.pid)
    finally:
        watchdog.cancel()
        child.terminate()
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def ask(url: str, path: str, body: dict[str, Any] | None = None, method: str = "GET") -> int:
    """One request on a connection of its own, read to its end; returns its status."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=LIMIT_S)
    try:
        content = orjson.dumps(body) if body else None
        headers = {"Content-Type": "application/json"} if body else {}
        connection.request("POST" if body else method, path, content, headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    finally:
        connection.close()


def talk(url: str, client: int, n: int) -> None:
    """One of the clients: conversations of ten turns, each a little longer than the last."""
    text = ""
    for turn in range(n):
        if turn % 10 == 0:
            text = f"client {client} conversation {turn} " + "word " * PROMPT_WORDS
        text += f" and turn {turn}"
        messages = [{"role": "user", "content": text}]
        status = ask(url, "/v1/chat/completions", {"messages": messages, "stream": True})
        if status != 200:
            raise SystemExit(f"a request was answered with {status}")


class Scraper:
    """Asks for the metrics every 5 s of the time that it is at work."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._left_s = SCRAPE_EVERY_S
        self.scrapes = 0

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        over = threading.Event()
        thread = threading.Thread(target=self._run, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(LIMIT_S)

    def _run(self, over: threading.Event) -> None:
        while True:
            begun = time.perf_counter()
            if over.wait(self._left_s):
                self._left_s = max(0.0, self._left_s - (time.perf_counter() - begun))
                return
            ask(self._url, "/metrics")
            self.scrapes += 1
            self._left_s = SCRAPE_EVERY_S


@contextlib.contextmanager
def open_page(url: str) -> Iterator[None]:
    """A listener to the lanes page's stream, as a browser is one."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), LIMIT_S) as page:
        page.sendall(b"GET /slotwise/events HTTP/1.1\r\nHost: bench\r\n\r\n")

        def read() -> None:
            with contextlib.suppress(OSError):
                while page.recv(65536):
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            page.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)


def turn(url: str, process: psutil.Process, way: Way, scraper: Scraper, requests: int) -> None:
    """Serve so many requests this way."""
    ask(url, SWITCH + ("on" if way.seen else "off"), method="POST")
    each = requests // CLIENTS
    with contextlib.ExitStack() as stack:
        if way.seen:
            stack.enter_context(scraper.at_work())
            stack.enter_context(open_page(url))
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        before, begun = process.cpu_times(), time.perf_counter()
        list(pool.map(lambda client: talk(url, client, each), range(CLIENTS)))
        after, ended = process.cpu_times(), time.perf_counter()
    cpu_s = after.user + after.system - before.user - before.system
    way.requests += each * CLIENTS
    way.cpu_s += cpu_s
    way.wall_s += ended - begun
    way.turns_ms.append(1000 * cpu_s / (each * CLIENTS))


def measure(requests: int, per_turn: int) -> tuple[Way, Way, int]:
    """Unseen and seen by turns; the scrapes that there were."""
    unseen, seen = Way(False), Way(True)
    with (
        running(STUB, STUB_READY) as (engine, _),
        running(("-m", "bench.seeing_server", engine), READY) as (url, process),
    ):
        scraper = Scraper(url)
        for way in (Way(True), Way(False)):  # caches filled, code warm
            turn(url, process, way, Scraper(url), WARM_UP)
        for _ in range(max(1, requests // per_turn)):
            turn(url, process, unseen, scraper, per_turn)
            turn(url, process, seen, scraper, per_turn)
    return unseen, seen, scraper.scrapes


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.seeing_cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--requests", type=int, default=4000, help="seen, and as many unseen")
    parser.add_argument("--turn", type=int, default=100, help="requests of one turn")
    options = parser.parse_args(argv)
    if not CLIENTS <= options.turn <= options.requests:
        parser.error(f"expected {CLIENTS} <= --turn <= --requests")
    unseen, seen, scrapes = measure(options.requests, options.turn)
    print(markdown_table([unseen.row(), seen.row()]))
    pairs = zip(unseen.turns_ms, seen.turns_ms, strict=True)
    median = statistics.median(b / a - 1 for a, b in pairs)
    print(
        f"\nBeing seen adds {seen.ms / unseen.ms - 1:+.1%} to the proxy's time per request "
        f"(median of the turns {median:+.1%}; {scrapes} scrapes); the goal is {GOAL:.0%}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

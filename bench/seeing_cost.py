"""What it costs to be seen: the proxy's processor time per request, unseen and seen, by turns.

    python -m slotwise.bench.seeing_cost [--requests 4000]

Three ways, of the same process, by short turns (A/B/C, B/C/A, ...), so that a machine that is busy
with other things slows all alike. *Unseen*: metrics count nothing and nobody asks. *Counted*:
metrics count. *Seen*: Prometheus asks every 5 s besides, and a lanes page is open. Counting costs
per request, asking per second: both are told apart. Only the proxy's own time counts. The engine
is the tests' stub, so this runs in a checkout; answers are streams of 16 tokens.
"""

from __future__ import annotations

import contextlib
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

import httpx
import psutil

from slotwise.bench.command_line import count, parser_of
from slotwise.bench.overhead_load import CHAT, Talker, post
from slotwise.bench.report import markdown_table
from slotwise.bench.seeing_server import READY, SWITCH
from slotwise.launcher.parent_death import dying_with_us

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
    """One of the three: what its turns took so far."""

    name: str
    counts: bool = True
    asks: bool = False
    requests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    turns_ms: list[float] = field(default_factory=list)  # processor time per request

    def row(self) -> dict[str, Any]:
        return {
            "": self.name,
            "requests": self.requests,
            "turns": len(self.turns_ms),
            "proxy's ms per request": self.ms,
            "requests per s": self.requests / self.wall_s,
        }

    @property
    def ms(self) -> float:
        return 1000 * self.cpu_s / self.requests

    def over(self, other: Way) -> float:
        """What it adds to the other's time per request: the median of the turns."""
        pairs = zip(other.turns_ms, self.turns_ms, strict=True)
        return statistics.median(b / a - 1 for a, b in pairs)


@contextlib.contextmanager
def running(command: Sequence[str], ready: str) -> Iterator[tuple[str, psutil.Process]]:
    """A child and the URL it prints behind ``ready``; ended by its own process id."""
    child = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=dying_with_us(),
    )
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


def ask(url: str, path: str, method: str = "GET") -> None:
    """One request on a connection of its own, read to its end."""
    httpx.request(method, url + path, timeout=LIMIT_S).raise_for_status()


def talk(url: str, client: int, n: int) -> None:
    """One of the clients: conversations of ten turns, each a little longer than the last."""
    text = ""
    with Talker(url) as talker:
        for turn in range(n):
            if turn % 10 == 0:
                text = f"client {client} conversation {turn} " + "word " * PROMPT_WORDS
            text += f" and turn {turn}"
            messages = [{"role": "user", "content": text}]
            talker.first_token_s(post(CHAT, {"messages": messages, "stream": True}))


def cpu_s(process: psutil.Process) -> float:
    """Processor time so far of all its threads, to the nanosecond; the ticks of ``cpu_times`` are
    too coarse for a turn. The clock is that of Linux' clock_getcpuclockid(3)."""
    return time.clock_gettime((~process.pid << 3) | 2)


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
    ask(url, SWITCH + ("on" if way.counts else "off"), method="POST")
    each = requests // CLIENTS
    with contextlib.ExitStack() as stack:
        if way.asks:
            stack.enter_context(scraper.at_work())
            stack.enter_context(open_page(url))
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        before_s, begun = cpu_s(process), time.perf_counter()
        list(pool.map(lambda client: talk(url, client, each), range(CLIENTS)))
        took_s, ended = cpu_s(process) - before_s, time.perf_counter()
    way.requests += each * CLIENTS
    way.cpu_s += took_s
    way.wall_s += ended - begun
    way.turns_ms.append(1000 * took_s / (each * CLIENTS))


def measure(requests: int, per_turn: int) -> tuple[Way, Way, Way]:
    """Unseen, counted and seen, by turns."""
    ways = unseen, counted, seen = (
        Way("unseen", counts=False),
        Way("counted"),
        Way("seen", asks=True),
    )
    with (
        running(STUB, STUB_READY) as (engine, _),
        running(("-m", "slotwise.bench.seeing_server", engine), READY) as (url, process),
    ):
        scraper = Scraper(url)
        turn(url, process, Way("warm", asks=True), scraper, WARM_UP)  # caches filled, code warm
        for n in range(max(1, requests // per_turn)):
            first = n % len(ways)  # each is first, second and third as often as the others
            for way in ways[first:] + ways[:first]:
                turn(url, process, way, scraper, per_turn)
    return unseen, counted, seen


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = parser_of("slotwise.bench.seeing_cost", __doc__)
    parser.add_argument("--requests", type=count, default=4000, help="of each way")
    parser.add_argument("--turn", type=count, default=100, help="requests of one turn")
    options = parser.parse_args(argv)
    if not CLIENTS <= options.turn <= options.requests:
        parser.error(f"argument --turn: expected {CLIENTS} to --requests, got {options.turn}")
    unseen, counted, seen = measure(options.requests, options.turn)
    print(markdown_table([unseen.row(), counted.row(), seen.row()]))
    per_s = 1000 * (seen.cpu_s / seen.wall_s - seen.requests * counted.ms / 1000 / seen.wall_s)
    print(
        f"\nCounting adds {counted.over(unseen):+.1%} to the proxy's time per request, being seen "
        f"{seen.over(unseen):+.1%} (medians of the turns; the goal is {GOAL:.0%}).\n"
        f"The page and Prometheus take {per_s:.1f} ms of a second, however many requests there are."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

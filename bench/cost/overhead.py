"""What slotwise adds to a call and to every event of a stream.

    python -m slotwise.bench.cost.overhead

A direct call, nginx as a plain pass-through, and slotwise with all of its work, in turns within one
run, before a fake engine that answers at once. Time to the first token is taken one request at a
time: of new conversations of 200 tokens, and of one of about 100,000 that adds 500 a turn; beside
each, on the real engine, one ``/apply-template`` of the same prompt. Events are counted over 1 and
16 streams, one event of each every 0.24 ms and each written alone, while all of them run. Client,
proxy and engine share the machine: read the ratios.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console
from rich.progress import Progress

from slotwise.bench.cost.overhead_load import (
    CHAT,
    LoadError,
    PromptTurn,
    Talker,
    long_turns,
    post,
    short_turns,
    streams,
    undisturbed,
)
from slotwise.bench.run import engines
from slotwise.bench.run.engines import Model, ServerError
from slotwise.bench.trace.report import count, markdown_table, parser_of, percentile

RUNNING = 16
SLOTS = RUNNING + 2  # so that all streams find the slot they had
WINDOW = 131_072
FAKE = "slotwise.bench.cost.fake_engine"
SLOTWISE = f"slotwise serve PROFILE, parallel: {SLOTS}, max_running: {RUNNING}, binary: the fake"
_NGINX_CONF = """\
daemon off;
master_process off;
{user}
pid {folder}/nginx.pid;
error_log stderr error;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engine {{ server 127.0.0.1:{to}; keepalive 32; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Target:
    """Something to send requests to."""

    name: str
    url: str
    processes: tuple[psutil.Process, ...] = ()  # whose time is the arm's
    line: str = ""  # how it was started

    def cpu_s(self) -> float:
        """Processor seconds so far, of all its processes."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)


@contextmanager
def fake_engine(engine_url: str) -> Iterator[Target]:
    """The upstream of all arms but slotwise's, which start one like it; named ``direct``."""
    port = engines.free_port()
    command = [sys.executable, "-m", FAKE, "--engine", engine_url, "--port", str(port)]
    command += ["-np", str(SLOTS), "-c", str(SLOTS * WINDOW)]
    with engines.running(command) as server:
        yield Target("direct", server.url, line=f"python -m {FAKE} -np {SLOTS} -c {SLOTS * WINDOW}")


def has_nginx() -> bool:
    return shutil.which("nginx") is not None


@contextmanager
def nginx(to: str) -> Iterator[Target]:
    """nginx as a plain pass-through to this URL; raises :class:`ServerError`."""
    port = engines.free_port()
    with engines.scratch_folder() as folder:
        config = folder / "nginx.conf"
        user = "user root;" if os.getuid() == 0 else ""
        text = _NGINX_CONF.format(folder=folder, port=port, to=to.rsplit(":", 1)[1], user=user)
        config.write_text(text)
        command = [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(config)]
        with engines.running(command, port) as server:
            how = "nginx, one worker, proxy_buffering off, keepalive both ways"
            yield Target("nginx", server.url, _tree(server.pid), how)


@contextmanager
def slotwise(name: str, model: Model, engine_url: str, checkout: Path | None) -> Iterator[Target]:
    """``slotwise serve`` of this or another version of the code, with the fake as its engine.

    The profile is as it comes, but for more slots and requests at once.
    """
    with engines.scratch_folder() as folder:
        program = folder / "llama-server"
        fake = shlex.join([sys.executable, "-P", "-m", FAKE, "--engine", engine_url])
        # The fake is always this version's: only the proxy is exchanged.
        program.write_text(f'#!/bin/sh\nexec {fake} "$@"\n')
        program.chmod(0o755)
        started = engines.slotwise(
            model,
            SLOTS,
            SLOTS * WINDOW,
            binary=str(program),
            policy={"max_running": RUNNING},
            checkout=checkout,
        )
        with started as server:
            _wait_until_proven(server.url)
            yield Target(name, server.url, _tree(server.pid), SLOTWISE)


def _wait_until_proven(url: str) -> None:
    """Prompts are encoded and rendered by slotwise itself; raises :class:`ServerError`."""
    until = time.monotonic() + engines.START_S
    while time.monotonic() < until:
        parts = engines.tokens_by(url)
        if set(parts) == {"local"}:
            return
        if "engine" in parts:
            raise ServerError(f"slotwise does not encode and render itself: {parts}")
        time.sleep(0.1)
    raise ServerError(f"slotwise did not prove its tokens within {engines.START_S:g} s")


def _tree(pid: int) -> tuple[psutil.Process, ...]:
    """A process and those it started, the fake engine left out."""
    root = psutil.Process(pid)
    every = (root, *root.children(recursive=True))
    return tuple(one for one in every if FAKE not in one.cmdline())


SHORT, LONG = "200", "100k"
DIRECT, NGINX = "direct", "nginx"
PERCENTS = (50, 99)
AT_MOST_OF_NGINX = 8.0  # added to a short call
AT_MOST_OF_TEMPLATE = 1.3  # added to a long one
AT_LEAST_OF_DIRECT = 0.8  # events a second of 16 streams
NO_NGINX = "nginx is not installed here (apt-get install nginx-light): measured without it."
Row = dict[str, Any]
Flows = dict[int, dict[str, list[tuple[float, float]]]]
"""By number of streams, by arm: events a second, and processor seconds an event."""


@dataclass
class OverheadFigures:
    """Everything that was measured; times to the first token by length of the prompt and arm."""

    ttft_s: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cpu_s: dict[str, dict[str, float]] = field(default_factory=dict)  # the proxy's, a call
    apply_s: dict[str, list[float]] = field(default_factory=dict)  # the real /apply-template
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)  # of the prompts, from - to
    flows: Flows = field(default_factory=dict)


def report(figures: OverheadFigures, arms: Sequence[Target], load: float) -> str:
    """All tables as markdown, with how the arms were started and the machine's load before."""
    short, long = (f"{low:,} to {high:,}" for low, high in figures.tokens.values())
    parts = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores shared by client, proxy and "
        f"engine, load {load:.2f} before{_priority()}.",
        *([] if NGINX in figures.ttft_s[SHORT] else [NO_NGINX]),
        f"Milliseconds to the first token, what is added to a direct call, and the proxy's "
        f"processor time; {SHORT}: {short} tokens, {len(figures.ttft_s[SHORT][DIRECT])} "
        f"conversations, {LONG}: {long} tokens, {len(figures.ttft_s[LONG][DIRECT])} turns.",
        markdown_table(ttft_rows(figures)),
        "Events a second, and the proxy's processor time for each, medians of the rounds; one "
        "event of each stream every 0.24 ms, each written alone.",
        markdown_table(flow_rows(figures)),
        markdown_table(verdicts(figures)),
        "\n".join(f"- {arm.name}: {arm.line}" for arm in arms),
    ]
    return "\n\n".join(parts)


def _priority() -> str:
    """Said where the run was set before all others, which a busy machine may need."""
    usual = os.sched_getscheduler(0) == os.SCHED_OTHER
    return "" if usual else "; at real-time priority, past everything else on the machine"


def ttft_rows(figures: OverheadFigures) -> list[Row]:
    """Time to the first token by arm: as it is, and what is added to a direct call."""
    rows: list[Row] = []
    for arm in figures.ttft_s[SHORT]:
        row: Row = {"arm": arm}
        for length, percent in ((n, p) for n in (SHORT, LONG) for p in PERCENTS):
            here = _ms(figures.ttft_s[length][arm], percent)
            direct = _ms(figures.ttft_s[length][DIRECT], percent)
            row[f"{length}: p{percent}"] = f"{here:.2f}"
            row[f"{length}: p{percent} added"] = "-" if arm == DIRECT else f"{here - direct:+.2f}"
        for length in (SHORT, LONG):
            cpu = f"{figures.cpu_s[length][arm] * 1000:.2f}"
            row[f"{length}: CPU a call"] = "-" if arm == DIRECT else cpu
        rows.append(row)
    template: Row = dict.fromkeys(rows[0], "-") | {"arm": "one real /apply-template"}
    for length, percent in ((n, p) for n in (SHORT, LONG) for p in PERCENTS):
        template[f"{length}: p{percent}"] = f"{_ms(figures.apply_s[length], percent):.2f}"
    return [*rows, template]


def flow_rows(figures: OverheadFigures) -> list[Row]:
    """Events a second and processor time an event by arm, medians of the rounds."""
    rows: list[Row] = []
    for n, kept in figures.flows.items():
        for arm, runs in kept.items():
            cpu_us = median(cpu_s for _, cpu_s in runs) * 1e6
            rows.append(
                {
                    "streams": n,
                    "arm": arm,
                    "events/s": round(median(per_s for per_s, _ in runs)),
                    "of direct": f"{of_direct(figures, n, arm):.2f}",
                    "us an event": "-" if arm == DIRECT else f"{cpu_us:.1f}",
                }
            )
    return rows


def of_direct(figures: OverheadFigures, count: int, arm: str) -> float:
    """Events a second as a share of the direct ones: the median over the rounds."""
    kept = figures.flows[count]
    return median(a / b for (a, _), (b, _) in zip(kept[arm], kept[DIRECT], strict=True))


def verdicts(figures: OverheadFigures) -> list[Row]:
    """Each target beside what was measured, for each slotwise."""
    rows: list[Row] = []
    template_ms = _ms(figures.apply_s[LONG], 50)
    for arm in figures.ttft_s[SHORT]:
        if arm in (DIRECT, NGINX):
            continue
        if NGINX in figures.ttft_s[SHORT]:
            ratio = added_ms(figures, SHORT, arm) / added_ms(figures, SHORT, NGINX)
            what = "added to 200 tokens, of what nginx adds"
            rows.append(
                _row(arm, what, ratio, f"<= {AT_MOST_OF_NGINX:g}", ratio <= AT_MOST_OF_NGINX)
            )
        ratio = added_ms(figures, LONG, arm) / template_ms
        held = ratio <= AT_MOST_OF_TEMPLATE
        what = "added to 100k tokens, of one real /apply-template"
        rows.append(_row(arm, what, ratio, f"<= {AT_MOST_OF_TEMPLATE:g}", held))
        most = max(figures.flows)
        ratio = of_direct(figures, most, arm)
        held = ratio >= AT_LEAST_OF_DIRECT
        what = f"events/s of {most} streams, of direct"
        rows.append(_row(arm, what, ratio, f">= {AT_LEAST_OF_DIRECT:g}", held))
    return rows


def _row(arm: str, what: str, ratio: float, target: str, held: bool) -> Row:
    reported = "yes" if held else "NO"
    return {
        "arm": arm,
        "median of": what,
        "ratio": f"{ratio:.2f}",
        "target": target,
        "held": reported,
    }


def added_ms(figures: OverheadFigures, length: str, arm: str) -> float:
    """What an arm adds to the median time to the first token."""
    times = figures.ttft_s[length]
    return _ms(times[arm], 50) - _ms(times[DIRECT], 50)


def _ms(times_s: Sequence[float], percent: float) -> float:
    return (percentile(times_s, percent) or 0.0) * 1000


EVENT_US = 240  # between the events of a stream, as measured elsewhere
TOKENS, PACE_US = 3, 2000  # of an answer whose first token is timed: nothing else comes with it
WARM = 5  # requests before it counts
REAL_FLAGS = ("-c", "4096", "-np", "1")
RESULTS = Path(__file__).resolve().parents[1] / "results" / "overhead.md"


@dataclass(frozen=True, slots=True)
class RunSize:
    """How much is measured."""

    short: int = 400  # requests
    long: int = 100  # turns
    long_tokens: int = 75_000  # of the first of them; some 500 more each
    rounds: int = 5  # of streams
    events: int = 6000  # of each stream: a second and a half
    streams: tuple[int, ...] = (1, 16)  # at once


def first_tokens(
    arms: Sequence[Target], turns: Sequence[PromptTurn], beside: Callable[[PromptTurn], None]
) -> dict[str, list[float]]:
    """Seconds to the first token of every turn, the arms in changing order."""
    rng = random.Random(1)
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    with ExitStack() as stack, undisturbed():
        talkers = [(arm.name, stack.enter_context(Talker(arm.url))) for arm in arms]
        for turn in turns:
            request = turn.request(max_tokens=TOKENS, pace_us=PACE_US)
            for name, talker in rng.sample(talkers, len(talkers)):
                times[name].append(talker.first_token_s(request))
            beside(turn)
            gc.collect()
    return times


def flow(arm: Target, count: int, events: int) -> tuple[float, float]:
    """Events a second of so many streams at once, and the arm's processor seconds an event."""
    bodies = [
        {
            "messages": [{"role": "user", "content": f"stream {n} of {count}"}],
            "max_tokens": events,
            "stream": True,
            "pace_us": EVENT_US,
        }
        for n in range(count)
    ]
    measured = streams(arm.url, [post(CHAT, body) for body in bodies], arm.cpu_s)
    return measured.per_s, measured.metered_each


def flows(arms: Sequence[Target], size: RunSize, progress: Progress) -> Flows:
    """Rounds of every number of streams, the arms in changing order."""
    found: Flows = {count: {arm.name: [] for arm in arms} for count in size.streams}
    rng = random.Random(2)
    task = progress.add_task("streams", total=size.rounds * len(size.streams) * len(arms))
    for _, n in product(range(size.rounds), size.streams):
        for arm in rng.sample(arms, len(arms)):
            found[n][arm.name].append(flow(arm, n, size.events))
            progress.advance(task)
    return found


def measure(
    arms: Sequence[Target], engine_url: str, size: RunSize, progress: Progress
) -> OverheadFigures:
    """All figures of these arms; raises :class:`LoadError`."""
    prompts = {
        SHORT: short_turns(engine_url, size.short + WARM),
        LONG: long_turns(engine_url, size.long_tokens, size.long + WARM),
    }
    # The streams first: each has a slot that knows it, and no long conversation to make room for.
    figures = OverheadFigures(flows=flows(arms, size, progress))
    with Talker(engine_url) as real:
        for name, turns in prompts.items():
            task = progress.add_task(f"{name} prompts", total=len(turns))

            def beside(turn: PromptTurn) -> None:
                apply_s = real.whole_s(post("/apply-template", turn.shape()))
                figures.apply_s.setdefault(name, []).append(apply_s)  # noqa: B023 (called here)
                progress.advance(task)  # noqa: B023

            before_s = {arm.name: arm.cpu_s() for arm in arms}
            times = first_tokens(arms, turns, beside)
            figures.cpu_s[name] = {
                arm.name: (arm.cpu_s() - before_s[arm.name]) / len(turns) for arm in arms
            }
            figures.ttft_s[name] = {arm: taken[WARM:] for arm, taken in times.items()}
            tokens = [turn.prompt_tokens for turn in turns[WARM:]]
            figures.tokens[name] = (min(tokens), max(tokens))
    return figures


@contextmanager
def running_arms(
    engine_url: str, model: engines.Model, against: Sequence[str]
) -> Iterator[list[Target]]:
    """Every arm, started. ``against``: NAME=FOLDER of other versions of the code."""
    with ExitStack() as stack:
        direct = stack.enter_context(fake_engine(engine_url))
        arms = [direct]
        if has_nginx():
            arms.append(stack.enter_context(nginx(direct.url)))
        versions: dict[str, Path | None] = {"slotwise": None}
        for given in against:
            name, _, folder = given.rpartition("=")
            versions[f"slotwise {name or folder}"] = Path(folder).resolve()
        for name, checkout in versions.items():
            arms.append(stack.enter_context(slotwise(name, model, engine_url, checkout)))
        yield arms


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("slotwise.bench.cost.overhead", __doc__)
    defaults = RunSize()
    for name, what in (
        ("short", "requests of 200 tokens"),
        ("long", "turns of the long conversation"),
        ("long-tokens", "its length at the start"),
        ("rounds", "rounds of streams"),
        ("events", "of each stream"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=count, default=default, help=f"{what} ({default})")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        help="NAME=FOLDER of another version, one more arm",
    )
    parser.add_argument("--write", action="store_true", help=f"also to {RESULTS.name}")
    given = parser.parse_args(arguments)
    size = RunSize(given.short, given.long, given.long_tokens, given.rounds, given.events)
    try:
        reported = run(size, given.against)
    except (engines.ServerError, LoadError, OSError) as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 1
    print(reported)
    if given.write:
        command = shlex.join(
            ["python", "-m", "slotwise.bench.cost.overhead", *(arguments or sys.argv[1:])]
        )
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"# What slotwise adds\n\n`{command}`\n\n{reported}\n")
    return 0


def run(size: RunSize, against: Sequence[str]) -> str:
    """Start everything, measure, and tell it as markdown."""
    model = engines.tiny_model()
    load = os.getloadavg()[0]
    with (
        engines.bare(model, REAL_FLAGS) as real,
        running_arms(real.url, model, against) as arms,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        figures = measure(arms, real.url, size, progress)
        return report(figures, arms, load)


if __name__ == "__main__":
    sys.exit(main())

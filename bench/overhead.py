"""What slotwise adds to a call and to every event of a stream.

    python -m slotwise.bench.overhead

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
import random
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from slotwise.bench import engines, overhead_arms
from slotwise.bench.command_line import count, parser_of
from slotwise.bench.overhead_arms import Arm
from slotwise.bench.overhead_load import CHAT, LoadError, Talker, post, streams, undisturbed
from slotwise.bench.overhead_prompts import Turn, long_turns, short_turns
from slotwise.bench.overhead_report import LONG, SHORT, Figures, Flows, report

EVENT_US = 240  # between the events of a stream, as measured elsewhere
TOKENS, PACE_US = 3, 2000  # of an answer whose first token is timed: nothing else comes with it
WARM = 5  # requests before it counts
REAL_FLAGS = ("-c", "4096", "-np", "1")
RESULTS = Path(__file__).parent / "results" / "overhead.md"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    short: int = 400  # requests
    long: int = 100  # turns
    long_tokens: int = 75_000  # of the first of them; some 500 more each
    rounds: int = 5  # of streams
    events: int = 6000  # of each stream: a second and a half
    streams: tuple[int, ...] = (1, 16)  # at once


def first_tokens(
    arms: Sequence[Arm], turns: Sequence[Turn], beside: Callable[[Turn], None]
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


def flow(arm: Arm, count: int, events: int) -> tuple[float, float]:
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


def flows(arms: Sequence[Arm], size: Size, progress: Progress) -> Flows:
    """Rounds of every number of streams, the arms in changing order."""
    found: Flows = {count: {arm.name: [] for arm in arms} for count in size.streams}
    rng = random.Random(2)
    task = progress.add_task("streams", total=size.rounds * len(size.streams) * len(arms))
    for _, n in product(range(size.rounds), size.streams):
        for arm in rng.sample(arms, len(arms)):
            found[n][arm.name].append(flow(arm, n, size.events))
            progress.advance(task)
    return found


def measure(arms: Sequence[Arm], engine_url: str, size: Size, progress: Progress) -> Figures:
    """All figures of these arms; raises :class:`LoadError`."""
    prompts = {
        SHORT: short_turns(engine_url, size.short + WARM),
        LONG: long_turns(engine_url, size.long_tokens, size.long + WARM),
    }
    # The streams first: each has a slot that knows it, and no long conversation to make room for.
    figures = Figures(flows=flows(arms, size, progress))
    with Talker(engine_url) as real:
        for name, turns in prompts.items():
            task = progress.add_task(f"{name} prompts", total=len(turns))

            def beside(turn: Turn) -> None:
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
) -> Iterator[list[Arm]]:
    """Every arm, started. ``against``: NAME=FOLDER of other versions of the code."""
    with ExitStack() as stack:
        direct = stack.enter_context(overhead_arms.fake_engine(engine_url))
        arms = [direct]
        if overhead_arms.has_nginx():
            arms.append(stack.enter_context(overhead_arms.nginx(direct.url)))
        versions: dict[str, Path | None] = {"slotwise": None}
        for given in against:
            name, _, folder = given.rpartition("=")
            versions[f"slotwise {name or folder}"] = Path(folder).resolve()
        for name, checkout in versions.items():
            arms.append(
                stack.enter_context(overhead_arms.slotwise(name, model, engine_url, checkout))
            )
        yield arms


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("slotwise.bench.overhead", __doc__)
    defaults = Size()
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
    size = Size(given.short, given.long, given.long_tokens, given.rounds, given.events)
    try:
        told = run(size, given.against)
    except (engines.ServerError, LoadError, OSError) as error:
        print(f"overhead: {error}", file=sys.stderr)
        return 1
    print(told)
    if given.write:
        command = shlex.join(
            ["python", "-m", "slotwise.bench.overhead", *(arguments or sys.argv[1:])]
        )
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"# What slotwise adds\n\n`{command}`\n\n{told}\n")
    return 0


def run(size: Size, against: Sequence[str]) -> str:
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

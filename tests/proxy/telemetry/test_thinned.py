"""A journal without the samples that nobody misses replays to the same decisions and state."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

from slotwise.policies.admission import MIB, Limits
from slotwise.proxy.core.events import Action, Dispatch, Event, MemorySampled, Reclaim
from slotwise.proxy.core.memory import Member
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.telemetry.journal import Journal, Thinned, read
from tests.proxy.memory_script import CHECKPOINTS, World
from tests.proxy.script import finished

Entry = tuple[float, Event, list[Action]]


class Written:
    """A journal that keeps what it is given."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.closed = False

    def write(self, now: float, event: Event, actions: object) -> None:
        self.entries.append((now, event, list(actions)))  # type: ignore[call-overload]

    def close(self) -> None:
        self.closed = True


class Noted(World):
    """A world whose shell has a journal; what every entry left behind is kept."""

    def __init__(self, journal: object) -> None:
        self.journal = journal
        self.thinned: Thinned | None = None
        self.states: dict[float, str] = {}
        super().__init__(CHECKPOINTS, small=[Member("small", 1)], limits=Limits(floor_gib=15))

    def feed(self, event: Event) -> list[Action]:
        self.now += 1e-6  # so that each entry is known by its time
        actions = super().feed(event)
        if self.thinned is None:
            self.thinned = Thinned(self.journal, self.scheduler.is_calm)  # type: ignore[arg-type]
        self.thinned.write(self.now, event, actions)
        self.states[self.now] = state(self.scheduler, self.now)
        return actions


def state(scheduler: Scheduler, now: float) -> str:
    return json.dumps([scheduler.snapshot(now), scheduler.memory.snapshot(now)], default=str)


def a_day(world: Noted, seed: int) -> None:
    """Calm stretches, shortages down to below the hard floor, requests at any moment."""
    draw, ended = random.Random(seed), 0
    for n in range(100):
        short = draw.random() < 0.3
        for _ in range(draw.randrange(1, 12)):
            gib = draw.choice([None, 1.0, 3.0, 9.0, 14.0]) if short else draw.uniform(40, 90)
            engines = draw.choice([["e"], ["e"], ["e"], ["e", "small"], []])
            world.sample(gib, grown=tuple((e, draw.randrange(900) * MIB) for e in engines))
            world.take_back()
        if draw.random() < 0.6:
            world.arrive(f"r{n}", draw.randrange(500, 12_000))
        running = world.all(Dispatch)[ended:]
        if running and draw.random() < 0.6:
            ended += 1
            world.feed(finished(running[0].id, 1000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_replayed_it_decides_the_same_and_ends_up_in_the_same_state(
    tmp_path: Path, seed: int
) -> None:
    world = Noted(Journal(tmp_path / "j"))
    a_day(world, seed)
    assert world.thinned is not None
    world.thinned.close()
    again, entries = Scheduler(world.params, world.rules), list(read(tmp_path / "j"))
    for now, event, actions in entries:
        assert again.handle(event, now) == actions
        assert state(again, now) == world.states[now], event
    said = [(now, actions) for now, _, actions in world.entries if actions]
    assert [(now, actions) for now, _, actions in entries if actions] == said
    assert len(entries) < len(world.entries), "nothing was left out"
    assert world.all(Reclaim), "nothing was short"


def test_of_calm_samples_one_a_minute_is_written() -> None:
    written = Written()
    world = Noted(written)
    for _ in range(2 * 600):
        world.sample(60)
    times = [now for now, event, _ in written.entries if isinstance(event, MemorySampled)]
    assert len(times) == pytest.approx(11, abs=1)
    assert max(b - a for a, b in pairwise(times)) < 61


def test_the_last_sample_before_an_event_is_written_and_so_is_the_last_of_all() -> None:
    written = Written()
    world = Noted(written)
    for _ in range(9):
        world.sample(60)
    world.arrive("a")
    first, last, arrived = written.entries[-3:]
    assert [type(e).__name__ for _, e, _ in (first, last, arrived)] == [
        *("MemorySampled", "MemorySampled", "RequestArrived")
    ]
    assert arrived[0] - last[0] < 0.5 < last[0] - first[0]
    for _ in range(3):
        world.sample(60)
    assert world.thinned is not None
    world.thinned.close()
    assert written.entries[-1] == world.entries[-1]
    assert written.closed


def test_a_sample_that_counts_as_low_is_always_written() -> None:
    written = Written()
    world = Noted(written)
    for _ in range(2):
        world.sample(1)
    assert [e for _, e, _ in written.entries] == [e for _, e, _ in world.entries]

"""Small models beside a main one: who is loaded, who gives way, when it comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotwise.launcher.plan.fitting import Headroom
from slotwise.launcher.roles.residents import Journal, Residents
from slotwise.launcher.roles.roles import Decision, Patience, Role, Roles, State

GIB = 2**30


def room(available: float, growth: float = 0) -> Headroom:
    """Floor 15, margin 4; all in GiB."""
    sizes = (available, 15, growth, 4)
    return Headroom(*(round(size * GIB) for size in sizes))


def small(name: str, gib: float, order: int = 1, **more: Any) -> Role:
    return Role(name, round(gib * GIB), order, **more)


def told(decisions: list[Decision]) -> list[tuple[str, str]]:
    return [(d.action, d.name) for d in decisions]


def loaded(*roles: Role, available: float = 100) -> Roles:
    """All of them loaded, by samples with plenty of room."""
    models = Roles([Role("main", 76 * GIB), *roles], 0.0)
    models.start(0.0)
    models.ready("main", 0.0)
    for _ in roles:
        for decision in models.sampled(0.0, room(available), calm=True):
            models.ready(decision.name, 0.0)
    return models


@pytest.mark.parametrize(("claim", "left"), [(6.5, "14.22"), (3.0, "17.72")])
def test_the_published_case_is_refused_in_words_with_its_figures(claim: float, left: str) -> None:
    """128 GB, 28.97 available, an engine at 76.4 of a declared peak of 84.65 GiB."""
    models = Roles([small("s", claim)], 0.0)
    (decision,) = models.sampled(0.0, room(28.97, growth=84.65 - 76.4), calm=True)
    assert (decision.action, models.states()["s"]) == ("refuse", State.UNLOADED)
    for figure in ("28.97", "8.25", f"{claim:.2f}", left, "15.00", "4.00"):
        assert figure in decision.text


def test_they_are_loaded_one_at_a_time_in_order_and_one_refused_holds_up_nobody() -> None:
    models = Roles([Role("main", 0), small("c", 1, 3), small("a", 2, 1), small("b", 50, 2)], 0.0)
    assert told(models.start(0.0)) == [("load", "main")]
    assert models.sampled(1.0, room(40), calm=True) == []  # the main model loads
    models.ready("main", 2.0)
    assert told(models.sampled(3.0, room(40), calm=True)) == [("load", "a")]
    assert models.sampled(4.0, room(39), calm=True) == []
    models.ready("a", 5.0)
    assert told(models.sampled(6.0, room(38), calm=True)) == [("refuse", "b"), ("load", "c")]


def test_nothing_is_loaded_on_the_word_of_a_figure_that_is_not_there() -> None:
    models = Roles([small("a", 1)], 0.0)
    assert models.sampled(0.0, None, calm=True) == []
    assert models.states() == {"a": State.PENDING}


def test_what_gave_way_comes_back_after_a_minute_of_room_and_calm() -> None:
    models = loaded(small("a", 5))
    models.unload("a", 100.0, "why")
    for at in range(100, 160):
        assert models.sampled(at, room(24), calm=True) == []
    assert told(models.sampled(160.0, room(24), calm=True)) == [("load", "a")]


@pytest.mark.parametrize(("available", "calm"), [(23.9, True), (24, False), (None, True)])
def test_a_moment_without_room_or_calm_or_figures_begins_the_minute_anew(
    available: float | None, calm: bool
) -> None:
    models = loaded(small("a", 5))
    models.unload("a", 0.0, "why")
    for at in range(50):
        models.sampled(at, room(24), calm=True)
    models.sampled(50.0, room(available) if available else None, calm)
    for at in range(51, 111):
        assert models.sampled(at, room(24), calm=True) == []
    assert told(models.sampled(111.0, room(24), calm=True)) == [("load", "a")]


def test_they_come_back_one_at_a_time_in_order() -> None:
    models = loaded(small("a", 2, 1), small("b", 2, 2))
    models.unload("b", 0.0, "why")
    models.unload("a", 0.0, "why")
    came = []
    for at in range(200):
        for decision in models.sampled(at, room(50), calm=True):
            came.append((at, decision.name))
            models.ready(decision.name, at + 5.0)
    assert came == [(60, "a"), (121, "b")]  # each with a minute of its own


def test_one_that_has_to_go_soon_again_waits_twice_as_long_each_time_up_to_a_cap() -> None:
    models = Roles([small("a", 5)], 0.0, Patience(60, 600, 300))
    models.sampled(0.0, room(50), calm=True)
    models.ready("a", 0.0)
    at, waits = 10.0, []
    for _ in range(5):
        models.unload("a", at, "memory")
        gone = at
        while not models.sampled(at, room(50), calm=True):
            at += 1.0
        waits.append(at - gone)
        models.ready("a", at)
        at += 100.0  # within 600 s of its return
    assert waits == [60, 120, 240, 300, 300]
    decision = models.unload("a", at + 600, "memory")  # it stayed long enough
    assert decision is not None
    assert decision.text == "memory"
    assert models.retry_after_s("a", at + 600) == 60


def test_an_unload_too_soon_says_so() -> None:
    models = loaded(small("a", 5))
    models.unload("a", 0.0, "x")
    for at in (0.0, 60.0):
        models.sampled(at, room(50), calm=True)
    models.ready("a", 61.0)
    decision = models.unload("a", 90.0, "a request does not fit")
    assert decision is not None
    assert decision.text == (
        "a request does not fit; it came back only 30 s ago: next time after 120 s of room"
    )
    assert models.unload("a", 91.0, "again") is None


def test_on_demand_it_is_loaded_when_somebody_asks_and_there_is_room() -> None:
    models = Roles([small("d", 3, on_demand=True)], 0.0)
    assert models.sampled(0.0, room(50), calm=True) == []
    refused = models.wanted("d", 1.0, room(20))
    assert refused is not None
    assert (refused.action, models.states()["d"]) == ("refuse", State.OFF)
    found = models.wanted("d", 2.0, room(50))
    assert found is not None
    assert found.action == "load"
    assert models.wanted("d", 3.0, room(50)) is None


@pytest.mark.parametrize(
    ("available", "came"), [(99.1, [(60, "main")]), (98.9, [(60, "a")]), (200, [(60, "main")])]
)
def test_a_main_model_that_was_stopped_comes_back_first_by_what_it_took(
    available: float, came: list[tuple[int, str]]
) -> None:
    models = loaded(small("a", 2))
    models.measured("main", 80 * GIB)
    models.unload("a", 0.0, "low")
    models.unload("main", 0.0, "low")
    found = [
        (at, decision.name)
        for at in range(100)
        for decision in models.sampled(at, room(available), calm=True)
    ]
    assert found == came


def test_one_that_ended_by_itself_loads_again_and_one_that_had_to_go_does_not() -> None:
    models = loaded(small("a", 5), small("b", 5, 2))
    models.unload("b", 0.0, "x")
    for name in ("a", "b"):
        models.lost(name, 1.0)
    assert models.states() == {
        "main": State.LOADED,
        "a": State.LOADING,
        "b": State.UNLOADED,
    }
    assert models.loading() == {"a": 5 * GIB}


class Engines:
    """Processes that start and end at once."""

    def __init__(self) -> None:
        self.running: list[str] = []

    def load(self, name: str) -> None:
        self.running.append(name)

    async def unload(self, name: str, why: str) -> bool:
        self.running.remove(name)
        return True

    def pid(self, name: str) -> int | None:
        return 4711 if name in self.running else None


class World:
    """Residents with a clock that the test moves."""

    def __init__(self, directory: Path, *roles: Role) -> None:
        self.now = 0.0
        self.engines = Engines()
        self.gone: list[tuple[str, int]] = []
        self.shown: dict[str, str] = {}
        self.path = directory / "residency.jsonl"
        self.models = Residents(
            Roles(roles, 0.0),
            self.engines,
            Journal(self.path, most_bytes=4000),
            lambda name, retry_after_s: self.gone.append((name, retry_after_s)),
            self._show,
            lambda: self.now,
        )

    def _show(self, states: dict[str, str]) -> None:
        self.shown = states

    def journal(self) -> Iterator[dict[str, Any]]:
        for path in (self.path.with_suffix(".1.jsonl"), self.path):
            if path.exists():
                yield from map(json.loads, path.read_text().splitlines())


async def _thrash(w: World, times: int) -> None:
    for _ in range(times):
        assert await w.models.unload("a", "a request that does not fit") == ""
        while "a" not in w.engines.running:
            w.now += 5
            w.models.sampled(room(50), calm=True)
        w.models.ready("a")
        w.now += 30


@pytest.mark.anyio
async def test_a_thrashing_role_backs_off_and_the_journal_has_all_of_it(tmp_path: Path) -> None:
    w = World(tmp_path, Role("main", 0), small("a", 5))
    w.models.start()
    w.models.ready("main")
    w.models.sampled(room(50), calm=True)
    w.models.ready("a")
    await _thrash(w, 5)
    lines = list(w.journal())
    assert [(e["name"], e["action"]) for e in lines] == [
        ("main", "load"),
        ("a", "load"),
        *[("a", "unload"), ("a", "load")] * 5,
    ]
    waits = [e["verdict"] for e in lines if e["verdict"].startswith("room for")]
    assert [text.split(" s;")[0] for text in waits] == [
        f"room for {n}" for n in (60, 120, 240, 480, 960)
    ]
    assert all(e["available_bytes"] == 50 * GIB for e in lines if "room for" in e["verdict"])
    assert [retry for name, retry in w.gone if name == "a"] == [60, 120, 240, 480, 960]
    assert w.shown == {"a": "loaded"}


@pytest.mark.anyio
async def test_what_is_asked_for_again_and_again_is_written_once_a_minute(tmp_path: Path) -> None:
    w = World(tmp_path, small("d", 9, on_demand=True))
    w.models.start()
    assert w.gone == [("d", 60)]
    w.models.sampled(room(20), calm=True)
    for _ in range(130):
        assert not w.models.wanted("d")
        w.now += 1
    assert len(list(w.journal())) == 3
    w.models.sampled(room(50), calm=True)
    assert w.models.wanted("d")
    assert w.models.loading_bytes(lambda name, pid: 2 * GIB) == 7 * GIB
    w.engines.running.clear()  # its process ended: it takes nothing until it is tried again
    assert w.models.loading_bytes(lambda name, pid: 2 * GIB) == 0


def test_a_journal_that_cannot_be_written_is_said_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "no" / "such" / "folder")
    for _ in range(3):
        journal.write(Decision("load", "a", "x", 1))
    assert caplog.text.count("No such file") == 1

"""A journal gives back what was written, and replayed it decides the same."""

from __future__ import annotations

import os
import random
import stat
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from slotwise.policies.params import Params
from slotwise.policies.prefix import Tokens, pack
from slotwise.policies.types import Reason, Request, Rule, SlotId
from slotwise.proxy.core.events import (
    Action,
    AskSlots,
    Dispatch,
    EngineLost,
    EngineReady,
    Event,
    Failure,
    Mismatch,
    Refuse,
    RequestArrived,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestProgressed,
    SlotReport,
    SlotsReported,
    Tick,
    WakeAt,
)
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.telemetry.journal import Journal, read

Entry = tuple[float, Event, list[Action]]


def request(id: str, tokens: Tokens) -> Request:
    return Request(id, "p", tokens, 3, 2, None, True, "key", cache_prompt=False)


EVERY_KIND: list[Entry] = [
    (0.1, EngineReady("e", "p", (4096, 2048), None, True), [WakeAt(7.25)]),
    (0.1 + 0.2, RequestArrived(request("a", pack(range(600)))), []),
    (
        1.0,
        RequestProgressed("a", 512, 256),
        [Dispatch("a", SlotId("e", 1), Rule.HOME, 9, 0.1, Reason.HELD, 77, "why \u00fc")],
    ),
    (2.0, RequestFinished("a", 600, None, 3, 1), [Mismatch(SlotId("e", 1), "a", "what")]),
    (3.0, RequestFailed("b", Failure.CLIENT_GONE, 4, False), [AskSlots("e")]),
    (4.0, RequestCancelled("c"), [Refuse("c", 400, "x", "y", 5, 6, 7, Reason.POOL, 1.5)]),
    (5.0, SlotsReported("e", 4.5, (SlotReport(0, True, None), SlotReport(1, False, 9))), []),
    (6.0, Tick(), []),
    (7.0, EngineLost("e", "exit 1"), []),
]


def written(path: Path, entries: list[Entry], **how: int) -> Path:
    journal = Journal(path, **how)
    for entry in entries:
        journal.write(*entry)
    journal.close()
    return path


def test_every_kind_of_event_and_action_comes_back_equal(tmp_path: Path) -> None:
    assert list(read(written(tmp_path / "j", EVERY_KIND))) == EVERY_KIND


def test_a_growing_chat_takes_room_only_for_what_is_new(tmp_path: Path) -> None:
    turns = [request(f"t{n}", pack(range(10_000 + 10 * n))) for n in range(20)]
    entries: list[Entry] = [(float(n), RequestArrived(turn), []) for n, turn in enumerate(turns)]
    path = written(tmp_path / "j", entries)
    assert list(read(path)) == entries
    assert path.stat().st_size < 10_000 * 4 * 1.5 + 20 * 400


def test_prompts_are_remembered_alike_by_writer_and_reader(tmp_path: Path) -> None:
    """Ids that come again, and more prompts than are remembered."""
    draw = random.Random(7)
    entries: list[Entry] = []
    for n in range(300):
        ids = [draw.randrange(3) for _ in range(draw.randrange(400))]
        entries.append((n, RequestArrived(request(f"r{draw.randrange(60)}", pack(ids))), []))
    assert list(read(written(tmp_path / "j", entries))) == entries


def test_replayed_events_give_the_same_actions(tmp_path: Path) -> None:
    scheduler, journal = Scheduler({"p": Params()}), Journal(tmp_path / "j")

    def feed(event: Event, now: float) -> list[Action]:
        actions = scheduler.handle(event, now)
        journal.write(now, event, actions)
        return actions

    draw = random.Random(3)
    feed(EngineReady("e", "p", (8192,) * 3, None, True), 0.0)
    now, chats, running = 0.0, [[n] * 50 for n in range(5)], dict[str, int]()
    for n in range(200):
        now += draw.random()
        chat = draw.choice(chats)
        chat += [draw.randrange(9) for _ in range(draw.randrange(1, 60))]
        arrived = RequestArrived(replace(request(f"r{n}", pack(chat)), cache_prompt=True))
        for action in feed(arrived, now) + feed(Tick(), now):
            if isinstance(action, Dispatch):
                running[action.id] = len(chat)
        if running and draw.random() < 0.8:
            id, n_prompt = running.popitem()
            now += draw.random()
            for action in feed(RequestFinished(id, n_prompt, n_prompt // 2, 5, None), now):
                if isinstance(action, Dispatch):
                    running[action.id] = len(chat)
    journal.close()

    again = Scheduler({"p": Params()})
    replayed = list(read(tmp_path / "j"))
    assert [again.handle(event, now) for now, event, _ in replayed] == [a for *_, a in replayed]
    assert sum(isinstance(a, Dispatch) for *_, actions in replayed for a in actions) > 50


@pytest.mark.parametrize("was_there", [False, True])
def test_only_the_owner_may_read_it(tmp_path: Path, was_there: bool) -> None:
    """It holds prompts."""
    path = tmp_path / "j"
    if was_there:
        path.write_text("old")
        path.chmod(0o644)
    written(path, EVERY_KIND)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(read(path)) == EVERY_KIND


def test_at_its_size_limit_it_ends_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVERY_KIND * 100, max_bytes=5000)
    lines = path.read_bytes().splitlines()
    assert orjson.loads(lines[-1]) == {"end": "max_bytes 5000 reached"}
    assert path.stat().st_size < 5100
    kept = list(read(path))
    assert kept == (EVERY_KIND * 100)[: len(kept)]
    assert len(kept) == len(lines) - 2


def test_after_a_crash_the_whole_lines_are_read(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVERY_KIND)
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:5]) + whole[5][:20])
    assert list(read(path)) == EVERY_KIND[:4]


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("hello\n", ":1: "),
        ("{}\n", ":1: not a slotwise journal"),
        ('{"slotwise_journal":1}\n{"t":0,"e":["Nope",{}],"a":[]}\n', ":2: unknown event"),
        ('{"slotwise_journal":1}\n{"t":0}\n', ":2: "),
    ],
)
def test_a_file_that_is_no_journal_is_named_with_its_line(
    tmp_path: Path, content: str, where: str
) -> None:
    path = tmp_path / "j"
    path.write_text(content)
    with pytest.raises(ValueError, match=where):
        list(read(path))


def test_a_disk_that_fails_ends_the_journal_and_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(os, "fchmod", lambda *_: None)  # a device keeps its mode
    journal = Journal(full)
    for entry in EVERY_KIND * 200:
        journal.write(*entry)
    journal.close()
    journal.write(*EVERY_KIND[0])
    assert "cannot be written" in caplog.text

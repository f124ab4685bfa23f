"""Engines come and go; what the snapshot tells of them."""

from __future__ import annotations

import json

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import EngineLost, EngineReady, Failure, RequestProgressed
from tests.proxy.script import arrived, dispatches, failed, finished, scheduler, serve, text, turn


def test_requests_wait_for_an_engine_and_go_when_it_is_ready() -> None:
    s = scheduler(slots=1)
    s.handle(EngineLost("e", "crashed"), 1)
    assert dispatches(s.handle(turn("a", "a", 1), 2)) == []
    waiting = s.waiting_for("a", 2)
    assert waiting is not None
    assert waiting.reason is Reason.ENGINE_LOADING
    assert dispatches(s.handle(EngineReady("e", "p", (4096,), None, True), 9)) == [("a", 0, "new")]


def test_a_restarted_engine_holds_nothing_and_old_requests_do_not_touch_it() -> None:
    s = scheduler(slots=1)
    serve(s, turn("a1", "a", 1), 0)
    s.handle(turn("a2", "a", 2), 1)
    s.handle(EngineLost("e", "crashed"), 2)
    s.handle(EngineReady("e", "p", (100_000,), None, True), 3)
    s.handle(failed("a2", Failure.ENGINE_LOST), 4)
    assert [(x.state, x.resident) for x in s.slots()] == [("idle", 0)]


def test_an_engine_that_does_not_keep_pins_is_served_without_them() -> None:
    s = scheduler(slots=2, pins=False)
    assert dispatches(s.handle(turn("a", "a", 1), 0)) == [("a", -1, "unpinned")]
    assert dispatches(s.handle(turn("b", "b", 1), 0)) == [("b", -1, "unpinned")]
    assert dispatches(s.handle(turn("c", "c", 1), 0)) == []
    assert dispatches(s.handle(finished("a"), 1)) == [("c", -1, "unpinned")]


def test_the_snapshot_is_plain_data_without_prompts() -> None:
    s = scheduler(slots=2, max_running=1)
    s.handle(turn("a", "a", 1), 0)
    s.handle(turn("b", "b", 1), 1)
    found = json.loads(json.dumps(s.snapshot(3)))
    assert found["p"]["waiting"][0]["id"] == "b"
    assert found["p"]["waiting"][0]["waited_s"] == 2
    assert found["p"]["peak_running"] == 1


def test_the_snapshot_says_what_each_slot_is_doing_and_what_it_holds() -> None:
    def parts() -> list[object]:
        slot = s.snapshot(5)["p"]["engines"]["e"]["slots"][0]  # type: ignore[index]
        names = ("text", "since_s", "prompt", "cached", "computed", "answer", "resident")
        return [slot[name] for name in names]

    s = scheduler(slots=1)
    assert parts() == ["empty", 5, 0, 0, 0, 0, 0]
    long = arrived("a", text(("head", 3000)))
    s.handle(long, 1)
    s.handle(RequestProgressed("a", 2048, 500), 2)
    assert parts() == ["reading 2,048 of 3,000", 4, 3000, 500, 1548, 0, 2048]
    s.handle(RequestProgressed("a", 3000, 500), 3)
    assert parts() == ["answering", 4, 3000, 500, 2500, 0, 3000]
    s.handle(finished("a", 3000, 499, out=11), 4)
    assert parts() == ["idle", 1, 3000, 499, 2501, 10, 3010]

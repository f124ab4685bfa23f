"""The gate on memory in the running proxy: a scripted meminfo, a stub engine, real clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.policies.admission import MIB, Growth, Limits
from slotwise.policies.params import Params
from slotwise.proxy.core.memory import MemoryRules
from slotwise.proxy.memory.meminfo import MemInfo
from slotwise.proxy.memory.watch import MemoryWatch
from slotwise.proxy.serving.served import ServedProfile
from tests.clients import words
from tests.running_proxy import RunningProxy, run_proxy
from tests.scripted_meminfo import GIB, ScriptedMeminfo
from tests.support import StubServer, wait_until

LIMITS = Limits(floor_gib=15, hard_floor_gib=10, stale_s=1.5)


@dataclass
class World:
    memory: ScriptedMeminfo
    proxy: RunningProxy
    stub: StubServer

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = self.proxy.client.get("/slotwise/status").json()["memory"]
        return told

    def until(self, gib: float | None) -> None:
        """The proxy has read this much."""
        wanted = None if gib is None else round(gib * 2**20) * 1024  # meminfo's unit
        wait_until(lambda: self.status()["available_bytes"] == wanted, what=f"{gib} GiB read")

    def say(self, gib: float) -> None:
        self.memory.say(gib)
        self.until(gib)

    def waiting(self) -> list[str]:
        """The reason of everybody who waits."""
        return [
            w["reason"]
            for p in self.proxy.client.get("/slotwise/status").json()["profiles"].values()
            for w in p["waiting"]
        ]


@contextmanager
def world(
    folder: Path, stub: StubServer, gib: float, growth: Growth | None = None, **rules: Any
) -> Iterator[World]:
    params = replace(Params(), **rules)
    profile = ServedProfile("p", params=params, growth=growth or Growth(scratch_bytes=0))
    with ScriptedMeminfo(folder / "meminfo", gib) as memory:
        watch = MemoryWatch(MemInfo(memory.path, "off", stale_s=LIMITS.stale_s), sample_s=0.05)
        options = {"memory": MemoryRules(LIMITS), "watch": watch}
        with run_proxy(
            stub, profile=profile, driver_options=options, first_comment_s=1.0, comment_every_s=0.1
        ) as proxy:
            proxy.inside(proxy.driver.memory.start)
            yield World(memory, proxy, stub)


def streamed(url: str, lines: list[str]) -> dict[str, str]:
    """A streaming chat; every line is noted as it comes. Returns the headers."""
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 4}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
        lines.extend(response.iter_lines())
        return dict(response.headers)


@pytest.mark.slow
def test_a_stream_that_waits_is_told_why_and_is_served_when_there_is_room(
    tmp_path: Path, two_slots: StubServer
) -> None:
    with world(tmp_path, two_slots, gib=14.2) as w:
        lines: list[str] = []
        headers: dict[str, str] = {}
        client = threading.Thread(target=lambda: headers.update(streamed(w.proxy.url, lines)))
        client.start()
        wait_until(lambda: w.waiting() == ["memory"])
        assert two_slots.requests() == []
        wait_until(lambda: len([line for line in lines if "waiting" in line]) >= 2)
        w.say(20)
        client.join(10)
        told = [line for line in lines if line.startswith(": waiting: memory")]
        assert set(told) == {
            ": waiting: memory is almost full "
            "(MemAvailable 14.2 GiB, floor 15.0, this request needs 1 MiB)"
        }
        assert headers["x-slotwise-wait"] == "memory"
        assert lines[-2] == "data: [DONE]"
        metrics = w.proxy.metrics()
        assert metrics['slotwise_admissions_total{result="waited"}'] == 1
        assert metrics['slotwise_admissions_total{result="admitted"}'] == 0
        assert metrics["slotwise_memory_available_bytes"] == 20 * GIB
        assert metrics["slotwise_memory_floor_bytes"] == 15 * GIB
        assert metrics["slotwise_memory_hard_floor_bytes"] == 10 * GIB
        assert metrics["slotwise_memory_reserved_bytes"] == 0
        assert metrics["slotwise_memory_sample_age_seconds"] < 5


def test_a_whole_answer_is_refused_after_the_queues_time_with_its_own_code(
    tmp_path: Path, two_slots: StubServer
) -> None:
    with world(tmp_path, two_slots, gib=14, max_wait_s=0.5) as w:
        answer = w.proxy.chat("hello")
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("memory_wait_timeout", "unavailable_error")
        assert "MemAvailable 14.0 GiB, floor 15.0" in error["message"]
        assert answer.headers["retry-after"] == "30"
        assert answer.headers["x-slotwise-wait"] == "memory"
        assert w.proxy.metrics()['slotwise_admissions_total{result="timed_out"}'] == 1
        w.say(20)
        served = w.proxy.chat("hello")
        assert served.status_code == 200
        assert "x-slotwise-wait" not in served.headers


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frozen", "vanished", "garbage"])
def test_a_file_that_lies_admits_nothing_raises_nothing_and_is_said(
    tmp_path: Path, two_slots: StubServer, how: str
) -> None:
    with world(tmp_path, two_slots, gib=50, max_wait_s=0.5) as w:
        assert w.proxy.chat("hello").status_code == 200
        if how == "frozen":
            w.memory.freeze()
        elif how == "vanished":
            w.memory.vanish()
        else:
            w.memory.write("MemAvailable: many kB\n")
        w.until(None)
        assert w.status()["problem"]
        assert w.status()["parts"] == {}
        answer = w.proxy.chat("hello")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "memory_wait_timeout")
        assert w.proxy.client.get("/health").status_code == 200
        assert w.proxy.metrics()["slotwise_memory_available_bytes"] == 0
        w.memory.say(50)
        w.until(50)
        assert w.proxy.chat("hello").status_code == 200
        assert w.status()["problem"] is None


def test_a_request_that_does_not_fit_has_an_idle_slot_emptied_and_goes_on(
    tmp_path: Path, two_slots: StubServer
) -> None:
    growth = Growth(checkpoint_bytes=100 * MIB, scratch_bytes=0)
    with world(tmp_path, two_slots, gib=20, growth=growth) as w:
        assert w.proxy.chat(words(200)).status_code == 200
        w.say(14.9)
        answers: list[httpx.Response] = []
        client = threading.Thread(target=lambda: answers.append(w.proxy.chat(words(100))))
        client.start()
        key = 'slotwise_reclaims_total{level="checkpoints",result="too_little"}'
        wait_until(lambda: w.proxy.metrics()[key] == 1)
        assert w.status()["skipped"]
        assert {s["resident"] for s in _slots(w)} == {0}
        wait_until(lambda: {s["state"] for s in _slots(w)} == {"idle"})
        w.say(20)
        client.join(10)
        assert [a.status_code for a in answers] == [200]


def _slots(w: World) -> list[dict[str, Any]]:
    (engine,) = w.proxy.client.get("/slotwise/status").json()["profiles"]["p"]["engines"].values()
    slots: list[dict[str, Any]] = engine["slots"]
    return slots


def test_the_parts_add_up_to_what_is_used(tmp_path: Path, two_slots: StubServer) -> None:
    with world(tmp_path, two_slots, gib=50) as w:
        wait_until(lambda: w.status()["parts"].get("slotwise"))
        told = w.status()
        parts = told["parts"]
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == told["total_bytes"] - told["available_bytes"]
        assert parts["slotwise"] > 10 * MIB
        w.memory.say(127.999)  # a figure that is newer than the parts
        w.until(127.999)
        parts = w.status()["parts"]
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == 128 * GIB - w.status()["available_bytes"]


def test_memory_that_nobody_watches_is_not_stale(stub: StubServer) -> None:
    with run_proxy(stub) as proxy:
        assert proxy.metrics()["slotwise_memory_sample_age_seconds"] == 0

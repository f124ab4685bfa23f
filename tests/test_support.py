"""The test support fails where it must: a helper that cannot fail proves nothing."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
import uvloop

from tests.clients import chat, post
from tests.running_proxy import run_proxy
from tests.support import (
    Process,
    Slotwise,
    StubServer,
    attach_profile,
    open_fds,
    trace,
    wait_until,
    wait_until_async,
)


def test_waiting_ends_at_its_bound_and_says_for_what() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: a miracle"):
        wait_until(lambda: False, timeout_s=0.1, what="a miracle")
    with pytest.raises(AssertionError, match="a miracle"):
        asyncio.run(wait_until_async(lambda: False, timeout_s=0.1, what="a miracle"))
    assert time.monotonic() - began < 5


def test_a_missing_trace_skips_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLOTWISE_TRACES", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=str(tmp_path / "some.jsonl")):
        trace("some.jsonl")
    (tmp_path / "some.jsonl").touch()
    assert trace("some.jsonl") == tmp_path / "some.jsonl"


def test_a_process_that_ends_instead_of_getting_ready_is_told_with_its_output() -> None:
    with (
        Process([sys.executable, "-c", "raise SystemExit('no luck')"]) as process,
        pytest.raises(AssertionError, match="no luck"),
    ):
        process.wait_for_line("ready")


def test_a_stopped_process_is_gone_even_if_it_ignores_sigterm() -> None:
    script = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True);"
    with Process([sys.executable, "-c", script + "time.sleep(60)"]) as process:
        process.wait_for_line("up")
        assert process.stop(timeout_s=0.1) == -9


def test_a_proxy_in_a_thread_serves_and_leaves_nothing_behind(two_slots: StubServer) -> None:
    uvloop.run(asyncio.sleep(0))  # what the first loop of a process opens for all that follow
    before = open_fds()
    with run_proxy(two_slots) as proxy:
        tasks = proxy.tasks()
        assert proxy.chat("hello").status_code == 200
        assert [r["body"]["id_slot"] for r in two_slots.requests()] == [1]
        wait_until(lambda: proxy.tasks() <= tasks + 1)  # one per open keep-alive connection
        assert proxy.metrics()['slotwise_requests_total{code="200",profile="p",rule="new"}'] == 1
    wait_until(lambda: open_fds() <= before)


@pytest.mark.slow
def test_slotwise_serves_as_a_process_of_its_own(stub: StubServer, tmp_path: Path) -> None:
    arguments = (attach_profile(tmp_path, stub.url), "--state-dir", tmp_path / "state")
    with Slotwise(*arguments) as slotwise:
        assert post(slotwise, chat(model="p")).status_code == 200
        assert slotwise.stop() == 0

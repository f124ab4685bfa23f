"""Engines are started, told about, and started again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from slotwise.launcher.process import supervisor
from slotwise.launcher.process.supervisor import (
    Backoff,
    EngineEvents,
    EngineSpec,
    LossCause,
    Supervisor,
)
from tests.launcher import children
from tests.launcher.heard import Heard


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "FIRST_DELAY_S", 0.01)


def _spec(directory: Path, plan: str, start_timeout_s: float = 20) -> EngineSpec:
    (directory / "plan").write_text(plan)
    server = children.script(directory, "server.py", children.SERVER)
    return EngineSpec(
        name="fake",
        argv=lambda port: [sys.executable, str(server), str(directory), str(port)],
        env=lambda key: dict(os.environ) | {"LLAMA_API_KEY": key},
        directory=directory / "engine",
        start_timeout_s=start_timeout_s,
    )


def _run(spec: EngineSpec, scenario: Callable[[Supervisor, Heard], Awaitable[None]]) -> Heard:
    async def main() -> Heard:
        heard = Heard()
        engines = Supervisor([spec], heard)
        engines.start()
        try:
            await scenario(engines, heard)
        finally:
            await engines.stop()
        return heard

    others = _children()  # of tests before
    heard = asyncio.run(main())
    assert not _children() - others
    return heard


def _children() -> set[int]:
    """The process ids of all that these tests started."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_three_exits_then_ready(tmp_path: Path) -> None:
    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("ready")

    heard = _run(_spec(tmp_path, "exit exit exit well"), scenario)
    lost = [text for kind, text in heard.events if kind == "lost"]
    assert lost == ["exited with code 1 while it started: error: no luck today"] * 3
    assert heard.causes == [LossCause.NOT_STARTED] * 3
    assert [kind for kind, _ in heard.events][-1] == "ready"


def test_an_engine_that_is_loading_is_waited_for_and_told_about(tmp_path: Path) -> None:
    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("ready")

    heard = _run(_spec(tmp_path, "slow"), scenario)
    assert heard.count("lost") == 0
    assert any(text.startswith("loading the model") for _, text in heard.events)


@pytest.mark.slow
def test_an_engine_that_never_gets_healthy_is_given_up_at_its_limit(tmp_path: Path) -> None:
    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("ready")

    heard = _run(_spec(tmp_path, "sick well", start_timeout_s=1.5), scenario)
    assert ("lost", "not ready within start_timeout_s, 1.5 s") in heard.events


def test_a_hung_engine_is_restarted_by_name(tmp_path: Path) -> None:
    async def scenario(engines: Supervisor, heard: Heard) -> None:
        await heard.until("ready")
        engines.restart("fake", "no byte for 300 s")
        await heard.until("ready", 2)

    heard = _run(_spec(tmp_path, "well"), scenario)
    assert ("lost", "restarted: no byte for 300 s") in heard.events
    first, second = (text for kind, text in heard.events if kind == "ready")
    assert first != second


def _engine_pid(spec: EngineSpec) -> int:
    pid: int = json.loads((spec.directory / "engine.pid").read_text())["pid"]
    return pid


def test_an_engine_that_dies_while_it_serves_is_lost_then_ready_again(tmp_path: Path) -> None:
    spec = _spec(tmp_path, "well")

    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("ready")
        psutil.Process(_engine_pid(spec)).kill()
        await heard.until("ready", 2)

    heard = _run(spec, scenario)
    (lost,) = [text for kind, text in heard.events if kind == "lost"]
    assert lost.startswith("was ended by SIGKILL while it served")


def test_a_ready_engine_that_is_refused_is_started_again(tmp_path: Path) -> None:
    async def scenario(_: Supervisor, heard: Heard) -> None:
        heard.refuse = True
        await heard.until("lost")
        heard.refuse = False
        await heard.until("ready", 2)

    heard = _run(_spec(tmp_path, "well"), scenario)
    assert any("pins do not hold" in text for kind, text in heard.events if kind == "lost")


def test_a_program_that_cannot_be_run_is_told_and_tried_again(tmp_path: Path) -> None:
    spec = EngineSpec("none", lambda port: ["/nowhere/llama"], lambda key: {}, tmp_path / "engine")

    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("lost", 2)

    heard = _run(spec, scenario)
    assert any("could not be started" in text for kind, text in heard.events if kind == "lost")


def test_two_do_not_run_one_engine_from_one_directory(tmp_path: Path) -> None:
    spec = _spec(tmp_path, "well")

    async def scenario(_: Supervisor, heard: Heard) -> None:
        with pytest.raises(supervisor.InUseError, match=f"pid {os.getpid()}"):
            Supervisor([spec], heard)

    _run(spec, scenario)
    Supervisor([spec], _listener_of_nothing())._unlock()


def _listener_of_nothing() -> EngineEvents:
    async def make() -> Heard:
        return Heard()

    return asyncio.run(make())


def test_an_engine_that_aborts_while_it_starts_is_told_by_its_assertion_not_by_the_debugger(
    tmp_path: Path,
) -> None:
    spec = _spec(tmp_path, "exit")
    trace = [f"#{n}  0x00007fee22311e71 in frame_{n} ()" for n in range(140)]
    said = ["llama-context.cpp:1: GGML_ASSERT(n > 0) failed", *trace, "Fatal Python error: Aborted"]
    (tmp_path / "say").write_text("\n".join(said))

    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("lost")

    heard = _run(spec, scenario)
    lost = [text for kind, text in heard.events if kind == "lost"]
    assert lost[0].endswith("while it started: llama-context.cpp:1: GGML_ASSERT(n > 0) failed")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('W srv operator(): got exception: {"error": "Failed to parse: MY SECRET PROMPT"}', ""),
        ("GGML_ASSERT(n_tokens > 0) failed", ": GGML_ASSERT(n_tokens > 0) failed"),
    ],
)
def test_the_reason_of_a_crash_holds_no_word_of_a_client(
    tmp_path: Path, said: str, told: str
) -> None:
    spec = _spec(tmp_path, "well")
    (tmp_path / "say").write_text(said)

    async def scenario(_: Supervisor, heard: Heard) -> None:
        await heard.until("ready")
        psutil.Process(_engine_pid(spec)).kill()
        await heard.until("lost")

    heard = _run(spec, scenario)
    lost = [text for kind, text in heard.events if kind == "lost"]
    assert lost[0] == f"was ended by SIGKILL while it served{told}"


def test_a_failure_is_tried_again_later_and_later_up_to_a_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # the delays as they are
    backoff = Backoff()
    assert [backoff.after(0.0) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert Backoff(failures=100_000).after(0.0) == supervisor.LONGEST_DELAY_S


def test_an_engine_that_was_stable_starts_over_with_a_short_delay() -> None:
    backoff = Backoff(failures=6)
    backoff.after(supervisor.STABLE_AFTER_S)
    assert backoff.failures == 1


def test_an_engine_that_dies_soon_after_each_start_waits_longer_each_time() -> None:
    backoff = Backoff(failures=6)
    backoff.after(1.0)
    assert backoff.failures == 7

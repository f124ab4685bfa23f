"""Fixtures for tests on a real engine with the tiny model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slotwise.launcher.model import tiny_model
from tests.engine import engines

StartEngine = Callable[..., engines.RunningEngine]


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model; its tokenizer.json lies beside it."""
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=engines.commands().items(), ids=lambda item: item[0])
def engine_command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """How to start an engine: embedded, and llama-server where PATH has one."""
    command: tuple[str, ...] = request.param[1]
    return command


@pytest.fixture
def start_engine(
    engine_command: tuple[str, ...], tiny_gguf: Path, tmp_path: Path
) -> Iterator[StartEngine]:
    """``start_engine(*flags)``: an engine with one thread; all are stopped after the test."""
    running: list[engines.RunningEngine] = []

    def start(*flags: str) -> engines.RunningEngine:
        log = tmp_path / f"engine-{len(running)}.log"
        running.append(engines.start(engine_command, tiny_gguf, log, "-t", "1", *flags))
        return running[-1]

    yield start
    for engine in running:
        engine.stop()

"""What many tests of the proxy share: a stub engine, the tiny model, counters, sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from slotwise.launcher.model import gguf_header, tiny_model
from slotwise.proxy.core.events import EngineReady
from slotwise.proxy.telemetry.metrics import Metrics
from slotwise.proxy.tokens.local_encoder import LocalEncoder, from_vocabulary
from slotwise.proxy.tokens.vocabulary import Vocabulary
from tests.proxy.conversations import Proxy
from tests.support import StubServer

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def _kept() -> Iterator[list[StubServer]]:
    """The stub that is running, last; a test may have ended those before it."""
    kept: list[StubServer] = []
    yield kept
    for stub in kept:
        stub.__exit__()


@pytest.fixture
def stub(_kept: list[StubServer]) -> StubServer:
    """A stub engine with its defaults: 4 slots of 8192 tokens, everything at once."""
    if not _kept or _kept[-1].popen.poll() is not None:
        _kept.append(StubServer())
    return _kept[-1].as_new()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's GGUF."""
    return tiny_model.build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def encoder(tiny: Path) -> LocalEncoder:
    """Its tokenizer, made from the vocabulary in the file."""
    fields = gguf_header.read_vocabulary(tiny)
    assert fields is not None
    return from_vocabulary(Vocabulary(**fields))


@pytest.fixture
def proxy() -> Proxy:
    """A table of sessions that has seen nothing."""
    return Proxy()


@pytest.fixture
def metrics() -> Metrics:
    """The counters of one profile, whose engine of two slots is ready."""
    metrics = Metrics(["p"])
    metrics.observe(EngineReady("p-0", "p", (100, 100), None, pins=True), [], now=0)
    return metrics


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine in the standard loop and in the one that serves."""

    def in_loop(work: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(work, 20))

    return in_loop

"""The stub engine of the proxy's tests: one process, as new for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import StubServer


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

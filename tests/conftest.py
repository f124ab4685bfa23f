"""Fixtures that any test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import StubServer, traces_dir


def pytest_report_header() -> str:
    found = traces_dir().is_dir()
    return f"traces: {traces_dir()}" + ("" if found else " (not there: tests on them are skipped)")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stub() -> Iterator[StubServer]:
    """A stub engine with its defaults: 4 slots of 8192 tokens, everything at once."""
    with StubServer() as stub:
        yield stub


@pytest.fixture(scope="session")
def _shared_stub() -> Iterator[StubServer]:
    with StubServer(**_TWO_SLOTS) as stub:
        yield stub


@pytest.fixture
def two_slots(_shared_stub: StubServer) -> Iterator[StubServer]:
    """A stub engine of 2 slots of 1024 tokens, empty, behaving well: one process for all tests."""
    yield _shared_stub.as_new(**_TWO_SLOTS)
    _shared_stub.as_new(**_TWO_SLOTS)


_TWO_SLOTS = {"slots": 2, "ctx": 2048, "slot_save_path": "/unused"}

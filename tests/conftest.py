"""Fixtures that any test may use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest

from tests.stub_config import Config
from tests.support import StubServer, traces_dir, wait_until


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
    stub = _shared_stub
    _reset(stub)
    yield stub
    _reset(stub)


def _reset(stub: StubServer) -> None:
    settings = {f.name: f.default for f in fields(Config)} | _TWO_SLOTS
    stub.configure(**settings)
    wait_until(lambda: not stub.busy(), what="idle slots of the shared stub")
    stub.empty()
    stub.clear()


_TWO_SLOTS = {"slots": 2, "ctx": 2048, "slot_save_path": "/unused"}

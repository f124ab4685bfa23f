"""A profile that tests change, and an address where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.written import gguf


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, Any]:
    """A profile without a fault, as data."""
    gguf(tmp_path / "model.gguf")
    return {"name": "one", "server": {"model": "model.gguf", "parallel": 4, "ctx_size": 8192}}


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL whose port is taken, so that no other process gets it, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"

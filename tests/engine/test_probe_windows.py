"""The probe on a real model that cannot roll back: kept slots are not taken for cleared ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.engine.probe import ProbeResult, probe
from tests.engine import engines, reshaped

WINDOW = 512  # wider than the probe's prompt, so the engine goes back to a checkpoint
FLAGS = ("-np", "2", "-c", "4096", "-b", "512", "-ub", "128", "-t", "1", "--no-warmup")
SPLIT = ("--no-kv-unified", "--no-cache-idle-slots", "--cache-ram", "0", "--slots")


def _probed(url: str) -> ProbeResult:
    async def run() -> ProbeResult:
        client = EngineClient(url, None, timeout_s=30)
        try:
            return await probe(client)
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.slow
def test_a_sliding_window_that_resumes_from_a_checkpoint_keeps_its_pins(tmp_path: Path) -> None:
    model = reshaped.windowed(tmp_path, WINDOW)
    engine = engines.start(engines.EMBEDDED, model, tmp_path / "log", *FLAGS, *SPLIT)
    try:
        result = _probed(engine.url)
    finally:
        engine.stop()
    assert result.pins, result.text

"""An engine that somebody else runs is in use while it answers, and asked again when not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from slotwise.launcher.process.supervisor import Attachment, LossCause
from tests.engine.engines import free_port
from tests.launcher import children
from tests.launcher.heard import Heard

KEY = "the-engine-key"


def _server(directory: Path, port: int) -> subprocess.Popen[bytes]:
    (directory / "plan").write_text("well")
    script = children.script(directory, "server.py", children.SERVER)
    return subprocess.Popen(
        [sys.executable, str(script), str(directory), str(port)],
        env=dict(os.environ) | {"LLAMA_API_KEY": KEY},
        stdout=subprocess.DEVNULL,
    )


def test_it_is_ready_lost_and_ready_again_as_the_engine_comes_and_goes(tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> Heard:
        heard = Heard()
        far = Attachment("far", f"http://127.0.0.1:{port}/", KEY, heard, pause_s=0.02)
        far.start()
        await heard.until("starting", 2)  # told that nothing listens yet
        engine = _server(tmp_path, port)
        try:
            await heard.until("ready")
            engine.kill()
            engine.wait(10)
            await heard.until("lost")
            engine = _server(tmp_path, port)
            await heard.until("ready", 2)
            far.restart("no byte for 300 s")
            await heard.until("ready", 3)
        finally:
            engine.kill()
            engine.wait(10)
            await far.stop()
        return heard

    heard = asyncio.run(scenario())
    assert heard.causes == [LossCause.SILENT, LossCause.HUNG]
    assert ("ready", f"http://127.0.0.1:{port}") in heard.events


def test_a_wrong_key_is_told_and_never_ready(tmp_path: Path) -> None:
    port = free_port()

    async def scenario() -> Heard:
        heard = Heard()
        far = Attachment("far", f"http://127.0.0.1:{port}", "wrong", heard, pause_s=0.02)
        engine = _server(tmp_path, port)
        far.start()
        try:
            async with asyncio.timeout(20):
                while not any("/slots answers with status 401" in text for _, text in heard.events):
                    await asyncio.sleep(0.01)
        finally:
            engine.kill()
            engine.wait(10)
            await far.stop()
        return heard

    assert asyncio.run(scenario()).count("ready") == 0

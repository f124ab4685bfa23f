"""Images and audio before a real engine that takes none: its own words, and nothing else breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.conftest import StartEngine
from tests.proxy.shell import chat, proxy

CHAT = "/v1/chat/completions"
PARTS: dict[str, dict[str, Any]] = {
    "data": {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    "url": {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x.png"}},
    "audio": {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
    "malformed": {"type": "image_url"},
    "unknown": {"type": "hologram", "hologram": "QUJD"},
}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_without_eyes_and_ears_says_so_itself(
    start_engine: StartEngine, stream: bool
) -> None:
    engine = start_engine("-np", "1", "-c", "2048")

    async def run() -> None:
        async with proxy(engine.url) as p:
            for name, part in PARTS.items():
                asked = chat("see", stream=stream)
                asked["messages"][0]["content"] = [{"type": "text", "text": "see"}, part]
                ours, theirs = await p.client.post(CHAT, json=asked), engine.post(CHAT, asked)
                assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
                assert ours.status_code >= 400, name
            assert (await p.client.post(CHAT, json=chat("and now"))).status_code == 200

    asyncio.run(run())

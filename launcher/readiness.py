"""Is a llama-server there, and does it serve: ``/health`` says 200 and ``/slots`` replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
REPLY_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at the engine gave."""

    ready: bool
    text: str


def client(url: str, api_key: str) -> httpx.AsyncClient:
    """A client for one engine. No proxy from the environment stands between us and loopback."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=REPLY_LIMIT_S, trust_env=False)


async def look(engine: httpx.AsyncClient) -> Seen:
    """One look; never raises for what the engine does or fails to do."""
    try:
        health = await engine.get("/health")
        if health.status_code != 200:
            loading = health.status_code == 503
            return Seen(False, "loading the model" if loading else f"/health: {health.status_code}")
        slots = await engine.get("/slots")
        if slots.status_code != 200 or not isinstance(slots.json(), list):
            return Seen(False, f"/slots answers with status {slots.status_code}")
    except httpx.TimeoutException:
        return Seen(False, f"no answer within {REPLY_LIMIT_S:g} s")
    except httpx.HTTPError:
        return Seen(False, "not listening yet")
    except ValueError:
        return Seen(False, "/slots does not answer with JSON")
    return Seen(True, "ready")


async def until_ready(url: str, api_key: str, told: Callable[[str], None]) -> None:
    """Returns once the engine is ready; ``told`` hears each change. The caller sets the bound."""
    pause_s, last = FIRST_PAUSE_S, ""
    async with client(url, api_key) as engine:
        while True:
            seen = await look(engine)
            if seen.ready:
                return
            if seen.text != last:
                told(seen.text)
                last = seen.text
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)

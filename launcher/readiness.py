"""Is a llama-server there, and does it serve: ``/health`` says 200 and ``/slots`` replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
REPLY_LIMIT_S = 10.0


def client(url: str, api_key: str) -> httpx.AsyncClient:
    """A client for one engine. No proxy from the environment stands between us and loopback."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=REPLY_LIMIT_S, trust_env=False)


async def healthy(engine: httpx.AsyncClient) -> tuple[bool, str]:
    """Whether ``/health`` says 200, and in words what it said; never raises for the engine."""
    status, _ = await _get(engine, "/health")
    if status == 503:
        return False, "loading the model"
    return status == 200, _words("/health", status)


async def serving(engine: httpx.AsyncClient) -> tuple[bool, str]:
    """Whether it is healthy and ``/slots`` replies, and in words what it said."""
    well, text = await healthy(engine)
    if not well:
        return False, text
    status, slots = await _get(engine, "/slots")
    if status == 200 and not isinstance(slots, list):
        return False, "/slots does not answer with a list"
    return status == 200, _words("/slots", status)


async def _get(engine: httpx.AsyncClient, path: str) -> tuple[int | str, object]:
    """Status and JSON, or in words why there is no answer."""
    try:
        response = await engine.get(path)
        return response.status_code, response.json()
    except httpx.TimeoutException:
        return f"no answer within {REPLY_LIMIT_S:g} s", None
    except httpx.HTTPError:
        return "not listening", None
    except ValueError:
        return response.status_code, None


def _words(path: str, status: int | str) -> str:
    return status if isinstance(status, str) else f"{path} answers with status {status}"


async def until_ready(url: str, api_key: str, told: Callable[[str], None]) -> None:
    """Returns once the engine is ready; ``told`` hears each change. The caller sets the bound."""
    pause_s, last = FIRST_PAUSE_S, ""
    async with client(url, api_key) as engine:
        while True:
            ready, text = await serving(engine)
            if ready:
                return
            if text != last:
                told(text)
                last = text
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)

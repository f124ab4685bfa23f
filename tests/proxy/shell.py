"""The proxy's shell under test: an engine as a process, the proxy in this loop, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import uvicorn

from slotwise.policies.params import Params
from slotwise.proxy.api.app import create_app
from slotwise.proxy.core.events import Action, Dispatch, Event, RequestFailed, RequestFinished
from slotwise.proxy.engine.pace import Pace
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.running_proxy import samples
from tests.support import wait_until_async

CHAT = "/v1/chat/completions"
LONG = "word " * 3000
TIMEOUT_S = 20.0


class Recorder:
    """A journal that keeps what it is given."""

    def __init__(self) -> None:
        self.entries: list[tuple[Event, list[Action]]] = []

    def write(self, now: float, event: Event, actions: Any) -> None:
        self.entries.append((event, list(actions)))

    def close(self) -> None:
        pass

    def events(self, kind: type) -> list[Any]:
        return [event for event, _ in self.entries if isinstance(event, kind)]

    def actions(self, kind: type) -> list[Any]:
        return [a for _, actions in self.entries for a in actions if isinstance(a, kind)]


@dataclass
class Proxy:
    """A running proxy and the ways to look at it."""

    driver: Driver
    journal: Recorder
    url: str
    client: httpx.AsyncClient

    async def until_idle(self) -> None:
        """Every slot shown idle, nothing waiting."""
        await wait_until_async(
            lambda: all(s.state == "idle" for s in self.driver.scheduler.slots())
        )


def queue(**changes: Any) -> Params:
    return replace(Params(max_running=4), **changes)


@contextlib.asynccontextmanager
async def proxy(
    engine_url: str,
    *,
    params: Params | None = None,
    keys: dict[str, str] | None = None,
    up: bool = True,
    aliases: tuple[str, ...] = (),
    **options: Any,
) -> AsyncIterator[Proxy]:
    """The proxy before one engine; checks at the end that no task is left."""
    before = asyncio.all_tasks()
    journal = Recorder()
    profile = ServedProfile("main", aliases, params or queue())
    driver = Driver([profile], journal, pace=Pace(between_s=0.1, delay_s=0.02))
    if up:
        assert await driver.engines.up("e0", "main", engine_url, None)
    app = create_app(driver, keys or {}, **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_signals(server))
        serving = asyncio.create_task(server.serve())
        await wait_until_async(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
                yield Proxy(driver, journal, url, client)
        finally:
            await driver.close()
            server.should_exit = True
            await serving
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left: {left}"


@contextlib.contextmanager
def _no_signals(server: uvicorn.Server) -> Iterator[None]:
    """The server runs beside the test, whose signals are pytest's."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    yield


def one_ending_each(journal: Recorder) -> None:
    """Every dispatch has exactly one ending after it, and nothing else has one."""
    ended = sorted(e.id for e in journal.events(RequestFinished) + journal.events(RequestFailed))
    assert ended == sorted(action.id for action in journal.actions(Dispatch))


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **fields}


def told(frame: str) -> Any:
    """What one ``data:`` line of a stream says."""
    return json.loads(frame.removeprefix("data: "))


@contextlib.asynccontextmanager
async def streaming(p: Proxy, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
    """The open answer to a chat request."""
    async with p.client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        yield response


async def hang_up_in(p: Proxy, body: dict[str, Any], reached: Any) -> float:
    """Send it, leave once ``reached`` is true; the moment of leaving."""
    async with httpx.AsyncClient(base_url=p.url, timeout=20) as client:
        sending = asyncio.create_task(client.post(CHAT, json=body))
        await wait_until_async(reached)
        left = time.monotonic()
        sending.cancel()
        await asyncio.wait({sending})
    return left


def counted(p: Proxy, code: str) -> float:
    """How many requests ended with this status, by the proxy's own count."""
    found = samples(p.driver.metrics.exposition()[0].decode())
    name = "slotwise_requests_total{"
    return sum(v for k, v in found.items() if k.startswith(name) and f'code="{code}"' in k)

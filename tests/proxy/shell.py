"""The proxy's shell under test: an engine as a process, the proxy in this loop, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx
import uvicorn

from policies.params import Params, Queue
from proxy.app import create_app
from proxy.driver import Driver, ServedProfile
from proxy.events import Action, Dispatch, Event, RequestFailed, RequestFinished
from proxy.poller import Pace
from tests.stub_config import Config
from tests.support import StubServer, wait_until, wait_until_async

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


def as_new(stub: StubServer) -> StubServer:
    """A stub that served another test, idle and empty, with its defaults."""
    stub.configure(**asdict(Config()))
    wait_until(lambda: not stub.busy())
    stub.configure(slot_save_path="any")
    for id_slot in range(4):
        erased = httpx.post(f"{stub.url}/slots/{id_slot}", params={"action": "erase"})
        erased.raise_for_status()
    stub.configure(slot_save_path="")
    stub.clear()
    return stub


def queue(**changes: Any) -> Params:
    return Params(queue=replace(Queue(max_running=4), **changes))


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
    driver = Driver([profile], journal, pace=Pace(between_s=0.1, delay_s=0.02))  # type: ignore[arg-type]
    if up:
        assert await driver.engine_up("e0", "main", engine_url, None)
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

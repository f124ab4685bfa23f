"""A proxy that serves from a thread of the test's own process, so that a test can look into it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import uvicorn
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from slotwise.policies.params import Params
from slotwise.proxy.api import http_protocol
from slotwise.proxy.api.app import create_app
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.support import START_LIMIT_S, STOP_LIMIT_S, StubServer

T = TypeVar("T")


@dataclass
class RunningProxy:
    """A proxy that serves from a thread of this process, so that a test can look into it."""

    url: str
    driver: Driver
    loop: asyncio.AbstractEventLoop
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def inside(self, look: Callable[[], T]) -> T:
        """The value of ``look`` as the proxy's own loop sees it: no race with what it does."""

        async def run() -> T:
            return look()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(STOP_LIMIT_S)

    def tasks(self) -> int:
        """Tasks in the proxy's loop, the one that counts left out."""
        return self.inside(lambda: len(asyncio.all_tasks(self.loop))) - 1

    def chat(self, content: str, **more: Any) -> httpx.Response:
        """One user turn, whole unless ``stream`` is given."""
        body = {"messages": [{"role": "user", "content": content}], **more}
        return self.client.post("/v1/chat/completions", json=body)

    def metrics(self) -> dict[str, float]:
        """Every sample as ``name{label="value",...}``, labels in alphabetical order."""
        return samples(self.client.get("/metrics").raise_for_status().text)


def samples(exposition: str) -> dict[str, float]:
    """A Prometheus text as ``name{label="value",...}`` -> value."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        for s in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(s.labels.items()))
            found[f"{s.name}{{{labels}}}" if labels else s.name] = s.value
    return found


@contextmanager
def run_proxy(
    *engines: StubServer | str,
    profile: ServedProfile | None = None,
    params: Params | None = None,
    keys: Mapping[str, str] | None = None,
    api_key: str | None = None,
    driver_options: Mapping[str, Any] | None = None,
    **app_options: Any,
) -> Iterator[RunningProxy]:
    """A proxy in front of these engines (or their URLs), all of one profile named ``p``.

    Ready, and with the stubs' logs cleared of its own questions, when the block begins; with no
    engine given it serves without one. Driver and app are closed when it ends.
    """
    served = profile or ServedProfile("p", params=params or Params())
    urls = [engine if isinstance(engine, str) else engine.url for engine in engines]
    thread = _ProxyThread(served, urls, keys or {}, api_key, driver_options or {}, app_options)
    thread.start()
    try:
        proxy = thread.ready.result(START_LIMIT_S)
        for engine in engines:
            if isinstance(engine, StubServer):
                engine.clear()
        with proxy.client:
            yield proxy
    finally:
        thread.stop()
    assert thread.problem is None, f"the proxy ended with {thread.problem!r}"


class _ProxyThread(threading.Thread):
    """Runs driver and app in an event loop of its own until :meth:`stop`."""

    def __init__(
        self,
        served: ServedProfile,
        urls: Sequence[str],
        keys: Mapping[str, str],
        api_key: str | None,
        driver_options: Mapping[str, Any],
        app_options: Mapping[str, Any],
    ) -> None:
        super().__init__(name="proxy", daemon=True)
        self.ready: Future[RunningProxy] = Future()
        self.problem: BaseException | None = None
        self._served = served
        self._urls = urls
        self._keys = keys
        self._api_key = api_key
        self._driver_options = driver_options
        self._app_options = app_options
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._close_pages: Callable[[], None] = lambda: None

    def run(self) -> None:
        try:
            uvloop.run(self._serve())  # the loop of the real command
        except BaseException as problem:
            self.problem = problem
            if not self.ready.done():
                self.ready.set_exception(problem)

    def stop(self) -> None:
        if self._server is not None and self._loop is not None:
            self._server.should_exit = True  # looked at ten times a second
            self._loop.call_soon_threadsafe(self._close_pages)
        self.join(2 * STOP_LIMIT_S)
        assert not self.is_alive(), "the proxy did not stop"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        driver = Driver([self._served], **self._driver_options)
        app = create_app(driver, self._keys, **self._app_options)
        self._close_pages = app.live.close
        settings = uvicorn.Config(
            app,
            http=http_protocol.Protocol,
            log_level="warning",
            timeout_graceful_shutdown=5,
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._server = uvicorn.Server(settings)
            serving = asyncio.create_task(self._server.serve(sockets=[listener]))
            try:
                for n, engine_url in enumerate(self._urls):
                    name = self._served.name
                    up = await driver.engines.up(f"{name}-{n}", name, engine_url, self._api_key)
                    assert up, f"the engine at {engine_url} did not come up"
                self.ready.set_result(RunningProxy(url, driver, asyncio.get_running_loop()))
                await serving
            finally:
                self._server.should_exit = True
                await serving
                await driver.close()

"""The proxy whose cost of being seen is measured: its metrics can be taken out while it runs.

    python -m slotwise.bench.seeing_server http://127.0.0.1:8080

It is the proxy as it serves, before an engine that listens already. ``POST /bench/metrics/off``
gives it metrics that count nothing, ``on`` the real ones again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, cast

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from slotwise.bench.command_line import parser_of
from slotwise.policies.params import Params
from slotwise.proxy.api.app import create_app
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.life import ServedProfile
from slotwise.proxy.telemetry.metrics import Metrics

READY = "measured proxy ready on "
SWITCH = "/bench/metrics/"
PROFILE = "bench"
# Nobody waits for a slot: what is measured is work, not patience.
PARAMS = Params(max_running=8, keep=False)


class Silent:
    """Metrics that count nothing."""

    @property
    def memory(self) -> Silent:
        return self

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *_: object, **__: object) -> None:
        pass


class Switched:
    """The app, and the switch in front of it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._real = driver.metrics
        self._app = create_app(driver, {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if not path.startswith(SWITCH):
            await self._app(scope, receive, send)
            return
        is_on = path.removeprefix(SWITCH) == "on"
        self._driver.metrics = self._real if is_on else cast(Metrics, Silent())
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def serve(engine_url: str) -> None:
    """Until it is ended by a signal."""
    driver = Driver([ServedProfile(PROFILE, params=PARAMS)])
    config = uvicorn.Config(
        Switched(driver), log_level="warning", access_log=False, lifespan="off", proxy_headers=False
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listening]))
        if not await driver.engines.up(PROFILE, PROFILE, engine_url, None):
            raise SystemExit(f"{engine_url} does not answer as an engine does")
        print(f"{READY}http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        await serving
        await driver.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("slotwise.bench.seeing_server", __doc__)
    parser.add_argument("engine", metavar="URL")
    uvloop.run(serve(parser.parse_args(argv).engine))
    return 0


if __name__ == "__main__":
    main()

"""However many sessions, models and keys clients bring, the number of series stays bounded."""

from __future__ import annotations

import asyncio
import re

import pytest

from slotwise.policies.params import Params
from slotwise.policies.prefix import pack
from slotwise.policies.types import Request
from slotwise.proxy.core.events import EngineReady
from slotwise.proxy.engine.sse import Seen
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.proxy.shell import CHAT, chat, proxy
from tests.support import ROOT, StubServer

SESSIONS, MODELS, KEYS = 10_000, 500, 100


def stated() -> int:
    """The limit that docs/metrics.md names, for one profile with four slots."""
    found = re.search(r"fewer than ([\d,]+) series", (ROOT / "docs/metrics.md").read_text())
    assert found is not None
    return int(found[1].replace(",", ""))


def names(exposition: str) -> set[str]:
    """Every series with its labels."""
    return {line.rpartition(" ")[0] for line in exposition.splitlines() if line[:1] != "#"}


def served(driver: Driver, n: int) -> None:
    """A request of its own session, one of the keys, from arrival to its final event."""
    session, key = f"session-{n}", f"key-{n % KEYS}"
    tokens = pack(range(n, n + 40))
    request = Request(f"req-{n}", "main", tokens, 40, 1, 8, True, key, True, session)
    ticket = driver.submit(request)
    assert ticket.dispatch is not None
    seen = Seen()
    seen.prompt_tokens, seen.cached_tokens, seen.completion_tokens = 40, 0, 8
    ticket.finished(seen)


def exposed(driver: Driver) -> set[str]:
    driver.metrics.sync(driver.scheduler.waiting(driver.clock()), driver.scheduler.slots())
    return names(driver.metrics.exposition()[0].decode())


@pytest.mark.slow
def test_sessions_and_keys_add_no_series() -> None:
    async def run() -> None:
        driver = Driver([ServedProfile("main", params=Params(max_running=4))])
        driver.feed(EngineReady("e0", "main", (8192,) * 4, None, True))
        served(driver, 0)
        before = exposed(driver)
        for n in range(1, SESSIONS):
            served(driver, n)
        assert len(before) < stated()
        assert exposed(driver) - before == set()
        assert len(driver.history.records()) > 100  # they were seen
        await driver.close()

    asyncio.run(run())


@pytest.mark.slow
def test_names_of_models_and_keys_add_no_series(stub: StubServer) -> None:
    async def run() -> None:
        keys = {f"name-{n}": f"key-{n}" for n in range(KEYS)}
        async with proxy(stub.url, keys=keys) as p:
            for n in range(MODELS):
                headers = {"Authorization": f"Bearer key-{n % KEYS}"}
                body = chat(model=f"model-{n}")
                assert (await p.client.post(CHAT, json=body, headers=headers)).status_code == 404
            for n in range(KEYS):
                headers = {"Authorization": f"Bearer key-{n}"}
                answer = await p.client.post(CHAT, json=chat(max_tokens=1), headers=headers)
                assert answer.status_code == 200
            series = names((await p.client.get("/metrics", headers=headers)).text)
            assert len(series) < stated()
            told = "\n".join(series)
            assert not re.search(r"model-\d|name-\d|key-\d", told)

    asyncio.run(run())

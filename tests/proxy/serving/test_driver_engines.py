"""The driver and its engines: used once looked at, given up when lost, waited for with a bound."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from slotwise.proxy.core.events import EngineReady, Failure, RequestFailed
from slotwise.proxy.errors import ProxyError
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.proxy.counted import nonzero
from tests.proxy.driven import FAST, made, request
from tests.proxy.shell import Recorder, one_ending_each
from tests.support import StubServer, wait_until_async


def test_a_lost_engine_ends_its_requests_and_wakes_who_waits_for_bytes(stub: StubServer) -> None:
    async def run() -> None:
        journal = Recorder()
        driver = made(journal)
        await driver.engines.up("e0", "main", stub.url, None)
        ticket = driver.submit(request("a"))
        ticket.sent = True
        waiter = driver.submit(request("b"))

        async def wait_for_bytes() -> str:
            try:
                async with asyncio.timeout(None) as guard:
                    ticket.guarded_by(guard)
                    await asyncio.sleep(100)
            except TimeoutError:
                return "woken"
            return "slept"

        reading = asyncio.create_task(wait_for_bytes())
        await asyncio.sleep(0)
        driver.engines.down("e0", "exited", "it crashed")
        assert await asyncio.wait_for(reading, 5) == "woken"
        assert ticket.lost == "it crashed"
        failed = {e.id: e.failure for e in journal.events(RequestFailed)}
        assert failed["a"] is Failure.ENGINE_LOST
        waiter.close()
        one_ending_each(journal)
        assert driver.engines.ready("main") is None
        await driver.close()

    asyncio.run(run())


def test_a_return_counts_once_by_why_the_engine_was_lost_and_a_first_start_not_at_all(
    stub: StubServer,
) -> None:
    async def run() -> None:
        driver = made(Recorder())

        async def start() -> None:
            driver.engines.starting("e0", "main", "loading")
            assert await driver.engines.up("e0", "main", stub.url, None)

        def counted() -> dict[str, float]:
            return nonzero(driver.metrics, "slotwise_engine_restarts_total")

        await start()
        assert counted() == {}
        for _ in range(2):
            driver.engines.down("e0", "exited", "exit code 139")
            await start()
        assert counted() == {"e0/exited": 2}
        assert await driver.engines.up("e0", "main", stub.url, None)  # another one in its place
        assert counted() == {"e0/exited": 2, "e0/other": 1}
        await driver.close()

    asyncio.run(run())


def test_an_engine_that_comes_back_serves_those_who_wait(stub: StubServer) -> None:
    async def run() -> None:
        driver = made(Recorder())
        await driver.engines.up("e0", "main", stub.url, None)
        driver.engines.down("e0", "exited", "exit code 139")
        ticket = driver.submit(request("a"))
        assert await driver.engines.up("e0", "main", stub.url, None)
        assert (await asyncio.wait_for(ticket.decided(), 5)).slot.engine == "e0"
        ticket.close()
        body, _ = driver.metrics.exposition()
        assert b'slotwise_engine_restarts_total{engine="e0",reason="exited"} 1.0' in body
        await driver.close()

    asyncio.run(run())


def test_an_engine_lost_while_it_is_probed_is_not_used() -> None:
    with StubServer(helper_delay_s=1.0) as stub:

        async def run() -> None:
            journal = Recorder()
            driver = made(journal)
            coming = asyncio.create_task(driver.engines.up("e0", "main", stub.url, None))
            await wait_until_async(lambda: "e0" in driver.engines.lives)
            await asyncio.sleep(0.05)
            driver.engines.down("e0", "crash")
            assert await asyncio.wait_for(coming, 5) is False
            assert journal.events(EngineReady) == []
            await driver.close()

        asyncio.run(run())


def test_an_engine_at_work_for_others_is_used_when_it_is_idle() -> None:
    with StubServer(decode_tps=50.0, answer_tokens=25) as stub:

        async def run() -> None:
            journal = Recorder()
            driver = made(journal)
            async with httpx.AsyncClient(base_url=stub.url) as other:
                body = {"prompt": "a", "n_predict": 25}
                theirs = asyncio.create_task(other.post("/completion", json=body))
                await wait_until_async(lambda: bool(stub.busy()))
                assert await driver.engines.up("e0", "main", stub.url, None)
                assert theirs.done()
                await theirs
            assert stub.log()["violations"] == 0
            (ready,) = journal.events(EngineReady)
            assert ready.pins
            await driver.close()

        asyncio.run(run())


def test_an_unproven_slot_is_asked_about_and_no_oftener_than_the_pace() -> None:
    with StubServer(hangup_busy_s=0.6) as stub:

        async def run() -> None:
            driver = made(Recorder())
            await driver.engines.up("e0", "main", stub.url, None)
            stub.clear()
            ticket = driver.submit(request("a"))
            client = driver.engines.client("e0")
            ticket.sent = True
            slot = (await ticket.decided()).slot
            body = {"prompt": [1, 2, 3], "id_slot": slot.id_slot, "stream": True, "n_predict": 500}
            stub.configure(decode_tps=50.0, answer_tokens=500)
            upstream = await client.open("/completion", json.dumps(body).encode())
            upstream.close()
            ticket.close()
            await wait_until_async(lambda: all(s.state == "idle" for s in driver.scheduler.slots()))
            assert stub.busy() == []
            polls = stub.log()["slots_polls"]
            assert len(polls) >= 2
            # The first ones come the sooner the shorter it has taken so far. Seen from the stub
            # single polls may come late, and then close together.
            assert len(polls) - 6 <= (polls[-1] - polls[0]) / FAST.between_s
            await driver.close()

        asyncio.run(run())


def test_an_engine_whose_slots_stay_silent_is_reported_as_hung(stub: StubServer) -> None:
    async def run() -> None:
        driver = made(Recorder())
        told: list[tuple[str, str]] = []
        driver.engines.on_hung = lambda engine, reason: told.append((engine, reason))
        await driver.engines.up("e0", "main", stub.url, None)
        ticket = driver.submit(request("a"))
        ticket.sent = True
        stub.__exit__()  # gone without a word
        ticket.close()
        await wait_until_async(lambda: bool(told))
        assert told[0][0] == "e0"
        assert "5 times in a row" in told[0][1]
        await driver.close()

    asyncio.run(run())


def test_waiting_for_an_engine_has_its_bound_and_says_why() -> None:
    async def run() -> None:
        driver = made(Recorder())
        driver.engines.starting("e0", "main", "loading 40 %")
        with pytest.raises(ProxyError, match=r"e0 starting: loading 40 %") as caught:
            await driver.engines.wait_ready("main", 0.05)
        assert caught.value.status == 503
        assert "Retry-After" in caught.value.headers
        await driver.close()

    asyncio.run(run())


def test_a_start_that_fails_and_is_tried_again_counts_as_a_restart() -> None:
    async def run() -> None:
        driver = made(Recorder())
        driver.engines.starting("e0", "main", "starting")
        driver.engines.down("e0", "not_ready", "no answer within 60 s")
        driver.engines.starting("e0", "main", "starting")
        driver.engines.starting("e0", "main", "loading")
        body, _ = driver.metrics.exposition()
        assert b'slotwise_engine_restarts_total{engine="e0",reason="not_ready"} 1.0' in body
        await driver.close()

    asyncio.run(run())


def test_a_unified_pool_and_given_windows_reach_the_scheduler(stub: StubServer) -> None:
    async def run() -> None:
        journal = Recorder()
        profile = ServedProfile("main", kv_unified=True, windows=(100, 200, 9000, 400, 500))
        driver = Driver([profile], journal, pace=FAST)
        await driver.engines.up("e0", "main", stub.url, None)
        (ready,) = journal.events(EngineReady)
        assert (ready.windows, ready.pool) == ((100, 200, 8192, 400), 8192)
        await driver.close()

    asyncio.run(run())

"""The driver: what happens goes in, what follows is done, and each dispatch ends once."""

from __future__ import annotations

import asyncio
import random

import pytest

from slotwise.proxy.core.events import Dispatch, Failure, RequestCancelled, RequestFailed, Tick
from slotwise.proxy.engine.sse import Seen
from slotwise.proxy.errors import ProxyError
from slotwise.proxy.serving.driver import Driver
from tests.proxy.driven import made, request
from tests.proxy.shell import Recorder, one_ending_each
from tests.support import StubServer, wait_until_async


def test_a_request_is_decided_finished_and_forgotten(stub: StubServer) -> None:
    async def run() -> None:
        journal = Recorder()
        driver = made(journal)
        assert await driver.engines.up("e0", "main", stub.url, None)
        ticket = driver.submit(request("a"))
        dispatch = await ticket.decided()
        assert dispatch.slot.engine == "e0"
        ticket.finished(Seen(prompt_tokens=10, cached_tokens=0, completion_tokens=1))
        ticket.close()
        assert driver._tickets == {}
        one_ending_each(journal)
        await driver.close()

    asyncio.run(run())


def test_a_dispatch_ends_once_whatever_is_said_of_it_later(stub: StubServer) -> None:
    async def run() -> None:
        journal = Recorder()
        driver = made(journal)
        await driver.engines.up("e0", "main", stub.url, None)
        ticket = driver.submit(request("a"))
        ticket.failed(Failure.SILENCE)
        ticket.failed(Failure.TIMEOUT)
        ticket.finished(Seen())
        ticket.close()
        assert [e.failure for e in journal.events(RequestFailed)] == [Failure.SILENCE]
        one_ending_each(journal)
        await driver.close()

    asyncio.run(run())


def test_one_that_was_never_sent_is_said_to_be_so(stub: StubServer) -> None:
    async def run() -> None:
        journal = Recorder()
        driver = made(journal)
        await driver.engines.up("e0", "main", stub.url, None)
        driver.submit(request("a")).close()
        (failed,) = journal.events(RequestFailed)
        assert not failed.started
        assert [s.state for s in driver.scheduler.slots()] == ["idle"] * 4
        await driver.close()

    asyncio.run(run())


def test_random_cancellation_ends_each_dispatch_once_and_loses_no_slot(stub: StubServer) -> None:
    rng = random.Random(7)

    async def serve(driver: Driver, id: str) -> None:
        ticket = driver.submit(request(id, base=rng.randrange(50) * 100))
        try:
            await ticket.decided()
            ticket.sent = rng.random() < 0.7
            await asyncio.sleep(rng.random() * 0.02)
            ticket.finished(Seen(prompt_tokens=10, cached_tokens=0, completion_tokens=1))
        finally:
            ticket.close()

    async def run() -> None:
        journal = Recorder()
        driver = made(journal, max_running=2)
        await driver.engines.up("e0", "main", stub.url, None)
        tasks = []
        for i in range(150):
            tasks.append(asyncio.create_task(serve(driver, f"r{i}")))
            await asyncio.sleep(rng.random() * 0.004)
            victim = rng.choice(tasks)
            victim.cancel()
        await asyncio.wait(tasks, timeout=20)
        assert all(task.done() for task in tasks)
        one_ending_each(journal)
        assert journal.events(RequestCancelled), "none was cancelled while it waited"
        await wait_until_async(
            lambda: all(slot.state == "idle" for slot in driver.scheduler.slots())
        )
        assert driver._tickets == {}
        await driver.close()

    asyncio.run(run())


def test_time_alone_refuses_what_waits_too_long() -> None:
    async def run() -> None:
        journal = Recorder()
        driver = made(journal, request_timeout_s=0.2)
        ticket = driver.submit(request("a"))
        with pytest.raises(ProxyError) as caught:
            await asyncio.wait_for(ticket.decided(), 5)
        assert caught.value.status == 503
        assert journal.events(Tick)
        assert journal.actions(Dispatch) == []
        await driver.close()

    asyncio.run(run())


def test_closing_answers_everybody_who_waits(stub: StubServer) -> None:
    async def run() -> None:
        driver = made(Recorder(), max_running=1)
        loading = asyncio.create_task(driver.engines.wait_ready("main", 30))
        await asyncio.sleep(0)
        await driver.close()
        with pytest.raises(ProxyError, match="shutting down"):
            await asyncio.wait_for(loading, 5)
        driver = made(Recorder(), max_running=1)
        await driver.engines.up("e0", "main", stub.url, None)
        running, queued = driver.submit(request("a")), driver.submit(request("b"))
        waiting = asyncio.create_task(queued.decided())
        await asyncio.sleep(0)
        await driver.close()
        await driver.close()
        with pytest.raises(ProxyError, match="shutting down"):
            await asyncio.wait_for(waiting, 5)
        assert running.lost == "slotwise is shutting down"
        with pytest.raises(ProxyError, match="shutting down"):
            await driver.engines.wait_ready("main", 30)

    asyncio.run(run())

"""An engine that says nothing is judged by its slots: one that stands still has its bound."""

from __future__ import annotations

import asyncio

import pytest

from slotwise.proxy.core.events import Dispatch, Failure, RequestFailed, SlotReport
from slotwise.proxy.engine.slots_poller import StallDetector
from tests.proxy.shell import CHAT, chat, proxy, queue
from tests.support import StubServer, wait_until_async


def test_a_request_that_is_not_streamed_ends_when_the_engine_says_nothing(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.4)) as p:
            stub.configure(stall_after_tokens=2)
            response = await p.client.post(CHAT, json=chat())
            assert response.status_code == 504
            error = response.json()["error"]
            assert error["code"] == "engine_silent"
            assert error["message"] == "the engine sent nothing for 0.4 s"
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.SILENCE
            await p.until_idle()

    asyncio.run(run())


@pytest.mark.slow
def test_one_whose_slot_goes_on_may_take_longer_than_that(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.5)) as p:
            stub.configure(decode_tps=20.0, answer_tokens=30)
            stub.clear()
            response = await p.client.post(CHAT, json=chat(max_tokens=30))
            assert response.status_code == 200
            assert response.json()["usage"]["completion_tokens"] == 30

    asyncio.run(run())


def test_a_slot_that_is_busy_for_ever_makes_the_engine_hung(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.4)) as p:
            told: list[str] = []
            p.driver.engines.on_hung = lambda name, reason: told.append(reason)
            stub.configure(stall_after_tokens=2, hangup_busy_s=60.0)
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=True)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            assert "engine_silent" in (await sending).text
            await wait_until_async(lambda: bool(told))
            (dispatch,) = p.journal.actions(Dispatch)
            assert told[0].startswith(f"slots {dispatch.slot.id_slot} are busy, and no token moved")

    with StubServer() as stub:  # its slot stays busy: none that another test could use
        asyncio.run(run())


def test_an_engine_stands_still_while_slots_are_busy_and_none_of_them_moves() -> None:
    idle, busy = SlotReport(0, False, 5), SlotReport(1, True, 7)
    still = StallDetector(0)
    assert still.seen([idle, busy], 10) == 0
    assert still.seen([idle, busy], 40) == 30
    assert still.seen([SlotReport(0, False, 6), busy], 60) == 50  # an idle one says nothing
    assert still.seen([SlotReport(0, True, 6), busy], 70) == 0  # somebody else's request
    assert still.seen([SlotReport(0, True, 7), busy], 80) == 0
    assert still.seen([SlotReport(0, True, 7), busy], 90) == 10
    assert still.seen([idle, SlotReport(1, True, None)], 100) == 0  # cannot be told
    assert still.seen([idle], 110) == 0
    assert still.seen([idle], 120) == 0  # nothing is at work
    assert still.seen([busy], 130) == 0
    assert still.seen([busy], 1000) == 0  # nobody looked in between

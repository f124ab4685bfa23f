"""An engine that says nothing is judged by its slots: one that stands still has its bound."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest

from proxy.actions import Dispatch
from proxy.engine import EngineClient
from proxy.errors import EngineUnreachableError, UpstreamError
from proxy.events import Failure, RequestFailed, SlotReport
from proxy.standstill import Standstill, stands_still
from tests.proxy.shell import CHAT, chat, proxy, queue
from tests.support import StubServer, wait_until_async


def test_a_request_that_is_not_streamed_ends_when_its_slot_stands_still(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.4)) as p:
            stub.configure(stall_after_tokens=2)
            response = await p.client.post(CHAT, json=chat())
            assert response.status_code == 504
            error = response.json()["error"]
            assert error["code"] == "engine_silent"
            assert error["message"] == "the engine did not go on with it for 0.4 s"
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.SILENCE
            await p.until_idle()

    asyncio.run(run())


def test_one_whose_slot_goes_on_may_take_longer_than_that(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.5)) as p:
            stub.configure(decode_tps=20.0, answer_tokens=30)
            stub.clear()
            response = await p.client.post(CHAT, json=chat(max_tokens=30))
            assert response.status_code == 200
            assert response.json()["usage"]["completion_tokens"] == 30
            looks = stub.log()["slots_polls"]
            assert len(looks) >= 4
            assert looks[-1] - looks[0] > 0.5

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


class Shown(EngineClient):
    """An engine whose ``/slots`` answers come from a list, again and again."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self.looks = 0
        self._answers = cycle(answers)

    async def slots(self) -> Any:
        self.looks += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def slots(*held: int | None) -> list[dict[str, Any]]:
    return [
        {"id": i, "is_processing": True, "n_prompt_tokens": n} if n is not None else
        {"id": i, "is_processing": True}
        for i, n in enumerate(held)
    ]  # fmt: skip


REFUSED = UpstreamError(501, b"", "application/json")
SILENT = EngineUnreachableError("no answer")


@pytest.mark.parametrize(
    ("answers", "id_slot"),
    [
        ([slots(5, 7), slots(5, 8)], 1),
        ([slots(5, 7), slots(5, 8)], -1),
        ([slots(5, 7), SILENT, slots(5, 8)], 1),
        ([slots(5, None)], 1),
        ([REFUSED], 0),
        ([[{"id": 0}]], 0),
        (["no list"], 0),
    ],
    ids=["moves", "any moves", "moves in between", "tells nothing", "501", "odd", "no list"],
)
def test_a_slot_that_moves_or_cannot_be_judged_is_left_alone(
    answers: list[Any], id_slot: int
) -> None:
    async def run() -> None:
        engine = Shown(answers)
        watching = asyncio.create_task(stands_still(engine, id_slot, 0.1, 0.0))
        await wait_until_async(lambda: engine.looks >= 16)  # four times as many as would do
        assert not watching.done()
        watching.cancel()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answers", "id_slot"),
    [([slots(5, 7), slots(5, 8)], 0), ([slots(5, 7)], -1), ([SILENT], 0)],
    ids=["its slot", "all slots", "no answer"],
)
def test_one_that_stands_still_is_found(answers: list[Any], id_slot: int) -> None:
    asyncio.run(asyncio.wait_for(stands_still(Shown(answers), id_slot, 0.1, 0.0), 10))


def test_an_engine_stands_still_while_slots_are_busy_and_none_of_them_moves() -> None:
    idle, busy = SlotReport(0, False, 5), SlotReport(1, True, 7)
    still = Standstill(0)
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

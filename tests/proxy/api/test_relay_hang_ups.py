"""A client that leaves, or stops reading, in any phase leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import psutil
import pytest

from slotwise.proxy.api.app import create_app
from slotwise.proxy.core.events import Dispatch, Failure, RequestCancelled, RequestFailed
from tests.proxy.shell import CHAT, chat, counted, hang_up_in, one_ending_each, proxy, queue
from tests.support import StubServer, wait_until_async


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["loading", "tokenizing", "queued", "silent", "answering"])
def test_a_hang_up_ends_everything_within_a_second(phase: str, stream: bool) -> None:
    """Field report R04."""
    settings: dict[str, Any] = {"answer_tokens": 1000}
    if phase == "answering":
        settings["decode_tps"] = 100.0

    async def run(stub: StubServer) -> None:
        async with proxy(stub.url, params=queue(max_running=1), up=phase != "loading") as p:
            stub.configure(silent=phase in ("silent", "queued"))
            stub.configure(helper_delay_s=0.4 if phase == "tokenizing" else 0.0)
            stub.clear()
            body = chat(stream=stream, max_tokens=1000)
            tickets = p.driver._tickets
            reached: dict[str, Any] = {
                "loading": lambda: p.driver.engines._changed._waiters,
                "tokenizing": lambda: stub.log()["helpers"].get("/apply-template"),
                "queued": lambda: len(tickets) == 2,
                "silent": stub.requests,
                "answering": lambda: any(r.get("started") for r in stub.requests()),
            }
            blocker = None
            if phase == "queued":
                blocker = asyncio.create_task(p.client.post(CHAT, json=chat()))
                await wait_until_async(lambda: len(tickets) == 1)
            left = await hang_up_in(p, body, reached[phase])
            await wait_until_async(
                lambda: len(tickets) == (blocker is not None), 1.0, "the ticket closed in 1 s"
            )
            if phase in ("silent", "answering"):
                await wait_until_async(lambda: "closed" in stub.requests()[-1], 1.0)
                assert stub.requests()[-1]["closed"] - left < 1.0
                (failed,) = p.journal.events(RequestFailed)
                assert failed.failure is Failure.CLIENT_GONE
            elif phase == "queued":
                assert len(p.journal.events(RequestCancelled)) == 1
                assert len(stub.requests()) == 1
            else:
                assert stub.requests() == []
            if blocker is not None:
                blocker.cancel()
                await asyncio.wait({blocker})
            stub.configure(silent=False, helper_delay_s=0.0)
            await wait_until_async(lambda: counted(p, "499"), 1.0)
            if phase != "loading":
                await p.until_idle()
                assert (await p.client.post(CHAT, json=chat())).status_code == 200
            one_ending_each(p.journal)
            assert stub.log()["violations"] == 0

    with StubServer(**settings) as stub:
        asyncio.run(run(stub))


def test_a_slot_left_busy_by_a_hang_up_is_not_used_before_it_is_shown_idle() -> None:
    with StubServer(slots=1, decode_tps=200.0, answer_tokens=400, hangup_busy_s=0.5) as stub:

        async def run() -> None:
            async with proxy(stub.url) as p:
                await hang_up_in(p, chat(max_tokens=400), stub.busy)
                response = await p.client.post(CHAT, json=chat(max_tokens=2))
                assert response.status_code == 200
                assert stub.log()["violations"] == 0
                last, again = stub.requests()[-2:]
                assert again["arrived"] >= last["released"]

        asyncio.run(run())


@pytest.mark.slow
def test_streams_closed_at_random_moments_lose_no_slot_no_task_no_file() -> None:
    """The proxy's own end of the long soak: fewer rounds, the same law."""
    rng = random.Random(3)

    async def one(client: httpx.AsyncClient, n: int) -> None:
        sending = asyncio.create_task(client.post(CHAT, json=chat(f"q{n}", stream=n % 3 > 0)))
        await asyncio.sleep(rng.random() * 0.15)
        sending.cancel()
        await asyncio.wait({sending})

    with StubServer(decode_tps=300.0, prefill_tps=3000.0, hangup_busy_s=0.02) as stub:

        async def run() -> None:
            async with proxy(stub.url, params=queue(max_running=3)) as p:
                await p.client.post(CHAT, json=chat())
                fds = psutil.Process().num_fds()
                for _ in range(8):
                    limits = httpx.Limits(max_connections=None)
                    async with httpx.AsyncClient(base_url=p.url, limits=limits) as client:
                        await asyncio.gather(*(one(client, n) for n in range(16)))
                await wait_until_async(lambda: not p.driver._tickets)
                await p.until_idle()
                one_ending_each(p.journal)
                assert len(p.journal.actions(Dispatch)) > 5
                await wait_until_async(lambda: psutil.Process().num_fds() <= fds + 4)
                assert stub.log()["violations"] == 0
                assert (await p.client.post(CHAT, json=chat())).status_code == 200

        asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("at", ["the first bytes", "the end"])
def test_a_client_that_stops_reading_keeps_neither_its_slot_nor_a_task(
    stub: StubServer, at: str
) -> None:
    """Its connection stands, but it takes nothing: after the silence allowed it counts as gone."""
    body = json.dumps(chat(stream=True)).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        is_end = message.get("more_body") is False
        if is_end if at == "the end" else message.get("body"):
            await asyncio.Event().wait()

    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.3)) as p:
            scope = {
                "type": "http",
                "method": "POST",
                "path": CHAT,
                "headers": [],
                "query_string": b"",
                "root_path": "",
                "client": ("127.0.0.1", 1),
            }
            stub.configure(decode_tps=20.0 if at == "the first bytes" else 0.0)
            await asyncio.wait_for(create_app(p.driver, {})(scope, receive, send), 10)
            failures = [failed.failure for failed in p.journal.events(RequestFailed)]
            assert failures == ([Failure.CLIENT_GONE] if at == "the first bytes" else [])
            await p.until_idle()
            assert counted(p, "499") == 1

    asyncio.run(run())

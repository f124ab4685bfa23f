"""Thousands of clients that leave at any moment: nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import random

import httpx
import orjson
import psutil
import pytest

from slotwise.proxy.core.events import Dispatch, RequestCancelled, RequestFailed, RequestFinished
from tests.proxy.shell import Proxy, chat, one_ending_each, proxy, queue
from tests.support import StubServer, wait_until_async

ROUNDS, STREAMS = 200, 32
LONGEST_STAY_S = 0.12


def raw_request(url: httpx.URL, text: str) -> bytes:
    body = orjson.dumps(chat(text, stream=True))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.host}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def leave_early(p: Proxy, rng: random.Random, n: int) -> None:
    """A stream whose client closes its connection after a random while; one in four in the midst of
    its answer, however slow the machine is just now."""
    url = httpx.URL(p.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    # Eight conversations, so that some wait for a home that is at work.
    writer.write(raw_request(url, f"conversation {n % 8} " * (1 + n)))
    stay_s = 10.0 if n % 4 == 3 else rng.random() * LONGEST_STAY_S
    try:
        async with asyncio.timeout(stay_s):
            while data := await reader.read(65536):
                if n % 4 == 3 and b"data:" in data:
                    break
    except TimeoutError:
        pass
    writer.close()


async def until_quiet(p: Proxy) -> None:
    await wait_until_async(lambda: not p.driver._tickets)
    await p.until_idle()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_streams_closed_at_random_moments_leave_nothing_behind() -> None:
    """200 rounds of 32: no slot lost, no task left, no file left open, no pin to a busy slot."""
    rng = random.Random(5)
    settings = {
        "decode_tps": 3000.0,
        "prefill_tps": 20_000.0,
        "hangup_busy_s": 0.01,
        "answer_tokens": 40,
    }

    async def run() -> None:
        async with proxy(stub.url, params=queue(max_running=4)) as p:
            await asyncio.gather(*(leave_early(p, rng, n) for n in range(STREAMS)))
            await until_quiet(p)
            fds, tasks = psutil.Process().num_fds(), len(asyncio.all_tasks())
            for _ in range(ROUNDS):
                await asyncio.gather(*(leave_early(p, rng, n) for n in range(STREAMS)))
                await until_quiet(p)
            await wait_until_async(lambda: len(asyncio.all_tasks()) <= tasks)
            await wait_until_async(lambda: psutil.Process().num_fds() <= fds)
            one_ending_each(p.journal)
            # Every way to end was taken many times, so that each is known to leave nothing.
            for kind in (RequestCancelled, RequestFailed, RequestFinished):
                assert len(p.journal.events(kind)) > ROUNDS // 10, kind
            assert len(p.journal.actions(Dispatch)) > ROUNDS
            assert stub.log()["violations"] == 0
            assert stub.busy() == []

    with StubServer(**settings) as stub:
        asyncio.run(run())

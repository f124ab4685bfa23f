"""The life of a generating request through real sockets: bytes, comments, hang-ups, errors."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest

from policies.params import Window
from policies.types import Reason
from proxy.app import create_app
from proxy.events import Dispatch, Failure, RequestCancelled, RequestFailed, RequestFinished
from tests.proxy.shell import Proxy, as_new, chat, one_ending_each, proxy, queue
from tests.running_proxy import samples
from tests.support import StubServer, wait_until_async

CHAT = "/v1/chat/completions"
VOLATILE = re.compile(rb'"(?:id|created|[a-z_]+_ms|[a-z_]+_per_second)":(?:"[^"]*"|[0-9.e+-]+),?')
LONG = "word " * 3000


@pytest.fixture(scope="module")
def one_stub() -> Iterator[StubServer]:
    with StubServer() as stub:
        yield stub


@pytest.fixture
def stub(one_stub: StubServer) -> StubServer:
    """A stub with its defaults; one process serves all tests of this file."""
    return as_new(one_stub)


def told(frame: str) -> Any:
    return json.loads(frame.removeprefix("data: "))


@asynccontextmanager
async def streaming(p: Proxy, body: dict[str, Any]) -> AsyncIterator[httpx.Response]:
    async with p.client.stream("POST", CHAT, json={**body, "stream": True}) as response:
        yield response


async def hang_up_in(p: Proxy, body: dict[str, Any], reached: Any) -> float:
    """Send it, leave once ``reached`` is true; the moment of leaving."""
    async with httpx.AsyncClient(base_url=p.url, timeout=20) as client:
        sending = asyncio.create_task(client.post(CHAT, json=body))
        await wait_until_async(reached)
        left = time.monotonic()
        sending.cancel()
        await asyncio.wait({sending})
    return left


def counted(p: Proxy, code: str) -> float:
    found = samples(p.driver.metrics.exposition()[0].decode())
    name = "slotwise_requests_total{"
    return sum(v for k, v in found.items() if k.startswith(name) and f'code="{code}"' in k)


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}),
        ("/v1/completions", {"prompt": LONG, "max_tokens": 5}),
        ("/completion", {"prompt": LONG, "n_predict": 5}),
    ],
)
def test_the_bytes_are_the_engines_own(
    stub: StubServer, path: str, fields: dict[str, Any], stream: bool
) -> None:
    body = {**fields, "stream": stream, "cache_prompt": False}

    async def run() -> None:
        async with proxy(stub.url) as p:
            ours = await p.client.post(path, json=body)
            theirs = httpx.post(stub.url + path, json={**body, "id_slot": 3})
            assert VOLATILE.sub(b"", ours.content) == VOLATILE.sub(b"", theirs.content)
            assert ours.headers["content-type"] == theirs.headers["content-type"]
            sent = stub.requests()[-2]["body"]
            assert sent.get("return_progress", False) is stream
            assert type(sent["id_slot"]) is int
            (finished,) = p.journal.events(RequestFinished)
            assert (finished.cached_tokens, finished.completion_tokens) == (0, 5)
            assert finished.prompt_tokens == int(ours.headers["x-slotwise-prompt-tokens"])

    asyncio.run(run())


@pytest.mark.parametrize("usage", ["none", "own_chunk", "in_finish", "real"])
def test_streams_with_any_or_no_usage_pass_and_end_well(stub: StubServer, usage: str) -> None:
    """Field report R25."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(usage=usage, comments=True, chunk_bytes=7)
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
            assert "prompt_progress" not in response.text
            assert len(p.journal.events(RequestFinished)) == 1

    asyncio.run(run())


def test_streamed_or_not_the_same_tokens_are_counted(stub: StubServer) -> None:
    """Field report R69."""

    async def prompt_tokens(stub: StubServer, stream: bool) -> dict[str, float]:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=chat(LONG, stream=stream))
            found = samples((await p.client.get("/metrics")).text)
            return {k: v for k, v in found.items() if "prompt_tokens_total" in k and v}

    streamed = asyncio.run(prompt_tokens(stub, True))
    with StubServer() as another:
        assert asyncio.run(prompt_tokens(another, False)) == streamed
    assert streamed


def test_each_piece_of_a_stream_is_passed_on_at_once(stub: StubServer) -> None:
    """Field report R22."""
    stub.configure(filler_events=10, chunk_gap_s=0.08)

    async def run() -> None:
        async with proxy(stub.url) as p, streaming(p, chat()) as response:
            arrivals = [time.monotonic() async for chunk in response.aiter_raw() if chunk]
            gaps = [b - a for a, b in pairwise(arrivals)]
            assert sum(gap > 0.03 for gap in gaps) >= 8, gaps
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-cache"
            assert "content-encoding" not in response.headers

    asyncio.run(run())


def test_the_headers_tell_slot_rule_and_numbers(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=chat())
            headers = (await p.client.post(CHAT, json=chat())).headers
            assert headers["x-slotwise-slot"] == "e0/0"  # short work sits low
            assert headers["x-slotwise-rule"] == "home"
            assert re.fullmatch(r"shares \d+ of \d+ tokens served there", headers["x-slotwise-why"])
            n = int(headers["x-slotwise-prompt-tokens"])
            assert headers["x-slotwise-expected-cached"] == str(n - 1)
            assert int(headers["x-slotwise-wait-ms"]) < 1000
            assert headers["x-slotwise-request-id"].startswith("req-")
            assert "x-slotwise-max-tokens" not in headers

    asyncio.run(run())


def test_a_limit_beyond_the_window_is_cut_and_the_client_is_told(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat(max_tokens=100_000))
            cut = response.headers["x-slotwise-max-tokens"]
            n = int(response.headers["x-slotwise-prompt-tokens"])
            (dispatch,) = p.journal.actions(Dispatch)
            assert cut == f"100000 -> {dispatch.max_tokens}"
            assert dispatch.max_tokens == 8192 - n - Window().margin
            assert stub.requests()[-1]["body"]["max_tokens"] == dispatch.max_tokens

    asyncio.run(run())


# ---------------------------------------------------------------- waiting


def test_comments_come_from_arrival_until_the_first_byte(stub: StubServer) -> None:
    """Field report R07."""
    stub.configure(prefill_tps=2000.0)

    async def run() -> None:
        settings: dict[str, Any] = {"first_comment_s": 0.1, "comment_every_s": 0.2}
        async with proxy(stub.url, params=queue(max_running=1), **settings) as p:
            first = asyncio.create_task(p.client.post(CHAT, json=chat(LONG, stream=True)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            response = await p.client.post(CHAT, json=chat("b " * 1500, stream=True))
            lines = [line for line in response.text.splitlines() if line.startswith(":")]
            lines = [line for line in lines if line != ": waiting: tokenizing"]  # a busy machine
            said = "max_running, 0 before you (1 request runs, no more at once)"
            assert lines[0] == f": waiting: {said}"
            assert len([line for line in lines if "max_running" in line]) >= 3
            (decided,) = [line for line in lines if line.startswith(": slotwise ")]
            assert re.fullmatch(
                r": slotwise slot=e0/\d rule=\w+ cached=\d+ wait_ms=\d+ why: .+", decided
            ), decided
            after = lines[lines.index(decided) + 1 :]
            assert after
            assert all(re.fullmatch(r": prefill \d+/15\d\d", line) for line in after), after
            data = response.text.splitlines()
            started = next(i for i, line in enumerate(data) if line.startswith("data:"))
            assert not any(line.startswith(":") for line in data[started:])
            assert response.text.endswith("data: [DONE]\n\n")
            assert "x-slotwise-slot" not in response.headers
            await first
            one_ending_each(p.journal)

    asyncio.run(run())


def test_a_quick_answer_has_no_comment(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert ":" not in [line[:1] for line in response.text.splitlines()]

    asyncio.run(run())


def test_a_request_waits_for_an_engine_that_loads(stub: StubServer) -> None:
    async def run() -> None:
        options: dict[str, Any] = {"first_comment_s": 0.05, "comment_every_s": 0.05}
        async with proxy(stub.url, up=False, **options) as p:
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=True)))
            whole = asyncio.create_task(p.client.post(CHAT, json=chat()))
            await asyncio.sleep(0.2)
            assert await p.driver.engine_up("e0", "main", stub.url, None)
            response = await sending
            assert ": waiting: engine_loading\n\n" in response.text
            assert response.text.endswith("data: [DONE]\n\n")
            assert (await whole).status_code == 200

    asyncio.run(run())


def test_the_wait_for_an_engine_ends_with_a_503() -> None:
    async def run() -> None:
        params = queue(queue_timeout_s=0.1)
        async with proxy("", up=False, params=params) as p:
            response = await p.client.post(CHAT, json=chat())
            assert response.status_code == 503
            assert "retry-after" in response.headers
            assert response.json()["error"]["code"] == "engine_loading"

    asyncio.run(run())


# ---------------------------------------------------------------- hang-ups


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
                "loading": lambda: p.driver._changed._waiters,
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


def test_a_client_that_stops_reading_does_not_keep_its_slot(stub: StubServer) -> None:
    """Its connection stands, but it takes nothing: after the silence allowed it counts as gone."""
    body = json.dumps(chat(stream=True)).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
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
            stub.configure(decode_tps=20.0)
            await asyncio.wait_for(create_app(p.driver, {})(scope, receive, send), 10)
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.CLIENT_GONE
            await p.until_idle()
            assert counted(p, "499") == 1

    asyncio.run(run())


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 500, 503])
def test_an_error_before_the_first_byte_keeps_status_and_body(
    stub: StubServer, status: int, stream: bool
) -> None:
    """Field report R10."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(fail_next=1, fail_status=status)
            response = await p.client.post(CHAT, json=chat(stream=stream))
            assert response.status_code == status
            assert response.json()["error"]["message"] == "as told"
            assert response.headers["content-type"] == "application/json"
            (failed,) = p.journal.events(RequestFailed)
            expected = Failure.REFUSED if status == 400 else Failure.ENGINE_ERROR
            assert failed.failure is expected
            await p.until_idle()

    asyncio.run(run())


def test_an_error_after_our_head_is_one_framed_event_and_no_end_marker(stub: StubServer) -> None:
    """Field report R10."""

    async def run() -> None:
        async with proxy(stub.url, first_comment_s=0.05, comment_every_s=0.05) as p:
            stub.configure(fail_next=1, fail_status=400, fail_after_s=0.3)
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.status_code == 200
            (data,) = [ln for ln in response.text.splitlines() if ln.startswith("data:")]
            assert told(data)["error"]["message"] == "as told"
            assert "\n: prefill 0/" in "\n" + response.text.partition("data:")[0]
            assert "[DONE]" not in response.text
            assert response.text.endswith("\n\n")

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_cut_before_any_byte_is_a_502(stub: StubServer, stream: bool) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(fail_next=1, fail_status=0)
            response = await p.client.post(CHAT, json=chat(stream=stream))
            assert response.status_code == 502
            assert response.json()["error"]["code"] == "engine_error"
            assert len(p.journal.events(RequestFailed)) == 1

    asyncio.run(run())


def test_a_stream_cut_in_the_middle_ends_with_an_error_event(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(cut_after_tokens=3)
            response = await p.client.post(CHAT, json=chat(stream=True))
            events = [ln for ln in response.text.splitlines() if ln.startswith("data:")]
            assert told(events[-1])["error"]["code"] == "engine_error"
            assert "[DONE]" not in response.text
            (failed,) = p.journal.events(RequestFailed)
            assert (failed.failure, failed.generated) == (Failure.ENGINE_ERROR, 3)

    asyncio.run(run())


def test_the_engines_own_error_event_passes_and_nothing_is_added(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(error_after_tokens=2)
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.text.count('"error"') == 1
            assert "Compute error." in response.text
            assert "[DONE]" not in response.text
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.ENGINE_ERROR

    asyncio.run(run())


def test_a_silent_engine_ends_the_request_after_its_bound(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(engine_silence_s=0.4)) as p:
            stub.configure(stall_after_tokens=2)
            response = await p.client.post(CHAT, json=chat(stream=True))
            last = [ln for ln in response.text.splitlines() if ln.startswith("data:")][-1]
            assert told(last)["error"]["code"] == "engine_silent"
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.SILENCE

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_has_a_whole_time(stub: StubServer, stream: bool) -> None:
    async def run() -> None:
        async with proxy(stub.url, params=queue(request_timeout_s=0.5)) as p:
            stub.configure(decode_tps=20.0, answer_tokens=1000)
            response = await p.client.post(CHAT, json=chat(stream=stream, max_tokens=1000))
            if stream:
                last = [ln for ln in response.text.splitlines() if ln.startswith("data:")][-1]
                error = told(last)["error"]
            else:
                assert response.status_code == 504
                error = response.json()["error"]
            assert error["code"] == "request_timeout"
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.TIMEOUT

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_a_lost_engine_ends_its_requests_with_an_error(stub: StubServer, stream: bool) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(silent=True)
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=stream)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            await asyncio.sleep(0.05)
            p.driver.engine_down("e0", "exit code 139")
            response = await sending
            assert response.status_code == 503
            assert "exit code 139" in response.json()["error"]["message"]
            (failed,) = p.journal.events(RequestFailed)
            assert failed.failure is Failure.ENGINE_LOST

    asyncio.run(run())


def test_an_engine_lost_in_mid_stream_is_told_in_the_stream(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(decode_tps=30.0, answer_tokens=1000)
            seen = ""
            async with streaming(p, chat(max_tokens=1000)) as response:
                async for text in response.aiter_text():
                    if not seen:
                        p.driver.engine_down("e0", "hung")
                    seen += text
            last = [line for line in seen.splitlines() if line.startswith("data:")][-1]
            assert told(last)["error"]["code"] == "engine_lost"
            assert "[DONE]" not in seen
            one_ending_each(p.journal)

    asyncio.run(run())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_lost_while_it_tokenizes_costs_a_wait_and_no_error(
    stub: StubServer, stream: bool
) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(helper_delay_s=0.3)
            stub.clear()
            sending = asyncio.create_task(p.client.post(CHAT, json=chat(stream=stream)))
            await wait_until_async(lambda: stub.log()["helpers"].get("/apply-template"))
            p.driver.engine_down("e0", "exited")
            stub.configure(helper_delay_s=0.0)
            assert await p.driver.engine_up("e0", "main", stub.url, None)
            assert (await sending).status_code == 200

    asyncio.run(run())


def test_a_refusal_after_our_head_is_one_framed_event(stub: StubServer) -> None:
    async def run() -> None:
        params = queue(max_running=1, request_timeout_s=0.5)
        options: dict[str, Any] = {"first_comment_s": 0.05, "comment_every_s": 0.1}
        async with proxy(stub.url, params=params, **options) as p:
            stub.configure(silent=True)
            first = asyncio.create_task(p.client.post(CHAT, json=chat(stream=True)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            second = await p.client.post(CHAT, json=chat("two", stream=True))
            events = [ln for ln in second.text.splitlines() if ln.startswith("data:")]
            assert ": waiting: max_running" in second.text
            assert len(events) == 1
            assert "error" in told(events[0])
            assert "request_timeout" in (await first).text
            one_ending_each(p.journal)

    asyncio.run(run())


def test_a_prompt_longer_than_every_window_is_a_400_with_both_numbers(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat("word " * 9000, stream=True))
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["type"] == "exceed_context_size_error"
            assert error["n_ctx"] == 8192
            assert error["n_prompt_tokens"] > 9000
            assert stub.requests()[3:] == []  # the probe's three, and no more

    asyncio.run(run())


def test_the_series_know_who_waits_and_for_what(stub: StubServer) -> None:
    stub.configure(decode_tps=50.0, answer_tokens=1000)

    async def run() -> None:
        async with proxy(stub.url, params=queue(max_running=1)) as p:
            one = asyncio.create_task(p.client.post(CHAT, json=chat(max_tokens=40)))
            await wait_until_async(lambda: p.journal.actions(Dispatch))
            two = asyncio.create_task(p.client.post(CHAT, json=chat("two", max_tokens=1)))
            await wait_until_async(lambda: len(p.driver._tickets) == 2)
            found = samples((await p.client.get("/metrics")).text)
            waiting = 'slotwise_requests_waiting{profile="main",reason="max_running"}'
            assert found[waiting] == 1
            assert found['slotwise_requests_running{engine="e0"}'] == 1
            status = (await p.client.get("/slotwise/status")).json()
            (waits,) = status["profiles"]["main"]["waiting"]
            assert waits["reason"] == Reason.MAX_RUNNING
            await one
            await two

    asyncio.run(run())


def test_an_engine_that_does_not_tokenize_is_asked_whether_it_hangs() -> None:
    async def run(engine: StubServer) -> None:
        async with proxy(engine.url) as p:
            told: list[str] = []
            p.driver.on_engine_hung = lambda name, reason: told.append(reason)
            engine.__exit__()  # nobody has said that it is gone
            answer = await p.client.post(CHAT, json=chat("hello"))
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "engine_unreachable"
            await wait_until_async(lambda: bool(told))
            assert "5 times in a row" in told[0]

    with StubServer() as engine:
        asyncio.run(run(engine))

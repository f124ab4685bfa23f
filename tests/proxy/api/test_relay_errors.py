"""Errors and bounds: before the head with their status, after it as one framed event."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from slotwise.proxy.api import generate
from slotwise.proxy.core.events import Dispatch, Failure, RequestFailed
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import EngineUnreachableError
from tests.proxy.shell import CHAT, chat, one_ending_each, proxy, queue, told
from tests.support import StubServer, wait_until_async


@pytest.mark.slow
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


@pytest.mark.parametrize("fault", ["refused", "unreachable"])
def test_a_slot_that_cannot_be_emptied_serves_all_the_same(
    stub: StubServer, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_as_it_is = generate.Forwarding.run

    async def run_emptied(self: generate.Forwarding, dispatch: Dispatch) -> int:
        return await run_as_it_is(self, replace(dispatch, empties=True))

    async def empty(self: EngineClient, id_slot: int) -> bool:
        if fault == "unreachable":
            raise EngineUnreachableError("no answer")
        return False

    monkeypatch.setattr(generate.Forwarding, "run", run_emptied)
    monkeypatch.setattr(EngineClient, "empty", empty)

    async def run() -> None:
        async with proxy(stub.url) as p:
            response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
            assert p.journal.events(RequestFailed) == []

    asyncio.run(run())
    assert "was not emptied for" in caplog.text


def test_a_stream_kept_open_behind_its_end_is_ended(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "_TAIL_S", 0.3)

    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.configure(end_late_s=8.0)
            async with asyncio.timeout(5):
                response = await p.client.post(CHAT, json=chat(stream=True))
            assert response.text.endswith("data: [DONE]\n\n")
            assert p.journal.events(RequestFailed) == []

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

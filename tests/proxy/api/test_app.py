"""The routes: what is answered, passed on, refused; keys; nothing internal leaks."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import openai
import pytest

from slotwise.proxy.api.app import GENERATING, NOT_PLACED, create_app
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile
from tests.proxy.shell import CHAT, chat, proxy, queue
from tests.support import StubServer

SECRET = "sk-very-secret-0001"


def test_models_are_the_engines_with_our_names_and_the_usable_window(stub: StubServer) -> None:
    """Field report R64."""

    async def run() -> None:
        async with proxy(stub.url, aliases=("gpt-4",)) as p:
            for path in ("/v1/models", "/models"):
                answer = (await p.client.get(path)).json()
                assert [entry["id"] for entry in answer["data"]] == ["main", "gpt-4"]
                assert all(entry["meta"]["n_ctx"] == 8192 for entry in answer["data"])
                assert answer["data"][0]["meta"]["n_ctx_train"] == 131072
            for name in ("main", "gpt-4"):
                assert (await p.client.get(f"/v1/models/{name}")).json()["id"] == name
                assert (await p.client.post(CHAT, json=chat(model=name))).status_code == 200
            assert (await p.client.get("/v1/models/other")).status_code == 404
            p.driver.engines.down("e0", "restart")
            answer = (await p.client.get("/v1/models")).json()
            assert answer["data"][0]["meta"]["n_ctx"] == 8192

    asyncio.run(run())


def test_models_are_listed_before_any_engine_is_there() -> None:
    async def run() -> None:
        async with proxy("", up=False, aliases=("gpt-4",)) as p:
            answer = (await p.client.get("/v1/models")).json()
            assert [entry["id"] for entry in answer["data"]] == ["main", "gpt-4"]
            assert answer["object"] == "list"

    asyncio.run(run())


def test_alive_is_not_ready() -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            p.driver.engines.starting("e0", "main", "loading")
            assert (await p.client.get("/health")).status_code == 200
            response = await p.client.get("/health/ready")
            assert response.status_code == 503
            told = response.json()["profiles"]["main"]
            assert told == {
                "ready": False,
                "engines": {"e0": {"state": "starting", "text": "loading"}},
            }
            for method, path in (("GET", "/props"), ("POST", "/tokenize")):
                response = await p.client.request(method, path, json={"content": "x"})
                assert response.status_code == 503
                assert "e0 starting: loading" in response.json()["error"]["message"]

    asyncio.run(run())


def test_helpers_are_passed_on_as_they_are(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            assert (await p.client.get("/health/ready")).status_code == 200
            for path, body in (
                ("/tokenize", {"content": "a b", "with_pieces": True}),
                ("/detokenize", {"tokens": [1]}),
                ("/apply-template", {"messages": [{"role": "user", "content": "x"}]}),
                ("/apply-template", {"messages": "x"}),
            ):
                ours = await p.client.post(path, json=body)
                theirs = httpx.post(stub.url + path, json=body)
                assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
            assert (await p.client.get("/props")).json()["total_slots"] == 4
            assert (await p.client.get("/props?model=other")).status_code == 404
            assert (await p.client.post("/tokenize", content=b"{")).status_code == 400

    asyncio.run(run())


def test_what_is_not_placed_is_a_501_that_names_what_works(stub: StubServer) -> None:
    below = ("/v1/audio/transcriptions", "/slots/0", "/v1/messages/count_tokens", "/api/chat")

    async def run() -> None:
        async with proxy(stub.url) as p:
            stub.clear()
            for path in (*NOT_PLACED, *below):
                response = await p.client.post(path, json={})
                assert response.status_code == 501, path
                assert CHAT in response.json()["error"]["message"]
            assert stub.requests() == []
            reached = {path.partition("?")[0] for path in stub.log()["helpers"]}
            assert not reached.intersection((*NOT_PLACED, *below))

    asyncio.run(run())


def test_unknown_paths_and_methods_are_told_in_the_same_shape() -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            response = await p.client.get("/nope")
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "not_found"
            for path in GENERATING:
                response = await p.client.get(path)
                assert (response.status_code, response.headers["allow"]) == (405, "POST")
                assert response.json()["error"]["code"] == "method_not_allowed"
                assert response.headers["x-slotwise-request-id"].startswith("req-")

    asyncio.run(run())


def test_with_keys_only_health_is_open_and_a_keys_name_is_who_asks(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, keys={"ann": SECRET, "bob": "other"}) as p:
            for path in ("/health", "/health/ready"):
                assert (await p.client.get(path)).status_code == 200
            # The page holds nothing of anybody and asks for the key itself; so it is led to.
            assert (await p.client.get("/")).headers["location"] == "slotwise/"
            for path in ("/v1/models", "/metrics", "/slotwise/status", "/props", "/nope"):
                response = await p.client.get(path)
                assert response.status_code == 401, path
                assert response.json()["error"]["type"] == "authentication_error"
            for headers in (
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {SECRET}"},
                {"Authorization": SECRET},
                {"X-Api-Key": "ann"},
                {"X-Api-Key": ""},
            ):
                assert (await p.client.post(CHAT, headers=headers, json=chat())).status_code == 401
            good: list[dict[str, str]] = [
                {"Authorization": f"Bearer {SECRET}"},
                {"authorization": f"bearer {SECRET}"},
                {"X-Api-Key": SECRET},
            ]
            for headers in good:
                assert (await p.client.post(CHAT, headers=headers, json=chat())).status_code == 200
            sent = stub.requests()[-1]["headers"]
            assert SECRET not in json.dumps(sent)
            arrived = p.journal.entries
            keys = {e.request.key for e, _ in arrived if hasattr(e, "request")}
            assert keys == {"ann"}
            for path in ("/metrics", "/slotwise/status"):
                text = (await p.client.get(path, headers=good[0])).text
                assert SECRET not in text

    asyncio.run(run())


def test_without_keys_the_clients_address_is_who_asks(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            headers = {"Authorization": "Bearer sk-anything", "X-Conversation-Id": "c1"}
            await p.client.post(CHAT, json=chat(), headers=headers)
            (key,) = {e.request.key for e, _ in p.journal.entries if hasattr(e, "request")}
            assert key == "127.0.0.1"
            sent = stub.requests()[-1]["headers"]
            assert "x-conversation-id" not in sent
            assert "sk-anything" not in json.dumps(sent)

    asyncio.run(run())


def test_an_unexpected_error_is_a_500_without_a_traceback(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:

            def broken(*_: object) -> Any:
                raise ZeroDivisionError("inner detail")

            p.driver.submit = broken  # type: ignore[assignment,method-assign]
            p.driver.scheduler.slots = broken  # type: ignore[method-assign]
            for response in (
                await p.client.post(CHAT, json=chat()),
                await p.client.post(CHAT, json=chat(stream=True)),
                await p.client.get("/metrics"),
            ):
                assert response.status_code == 500
                assert response.json()["error"]["code"] == "internal_error"
                assert "inner detail" not in response.text
            del p.driver.scheduler.slots

    asyncio.run(run())
    assert caplog.text.count("inner detail") >= 3


def test_the_status_page_holds_no_word_of_a_prompt(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            await p.client.post(CHAT, json=chat("xylophone"))
            status = await p.client.get("/slotwise/status")
            assert "xylophone" not in status.text
            told = status.json()
            assert told["engines"]["e0"]["pins"] is True
            assert told["tokens"]["prompts"]["max_bytes"] > 0

    asyncio.run(run())


def test_two_profiles_are_told_apart_by_model() -> None:
    async def run() -> None:
        profiles = [ServedProfile("a", params=queue()), ServedProfile("b", aliases=("c",))]
        driver = Driver(profiles)
        app = create_app(driver, {})
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            response = await client.post(CHAT, json=chat())
            assert response.status_code == 400
            assert "expected one of a, b" in response.json()["error"]["message"]
            response = await client.post(CHAT, json=chat(model="z"))
            assert response.status_code == 404
            assert "expected one of a, b, c" in response.json()["error"]["message"]
        await driver.close()

    asyncio.run(run())


def test_the_openai_client_chats_streams_and_lists(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, keys={"ann": SECRET}) as p:
            client = openai.AsyncOpenAI(base_url=f"{p.url}/v1", api_key=SECRET, max_retries=0)
            messages: Any = [{"role": "user", "content": "hi"}]
            whole = await client.chat.completions.create(
                model="main", messages=messages, max_tokens=5
            )
            parts = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="main",
                    messages=messages,
                    max_tokens=5,
                    stream=True,
                    stream_options={"include_usage": True},
                )
            ]
            text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
            assert text == whole.choices[0].message.content
            assert parts[-1].usage
            assert parts[-1].usage.completion_tokens == 5
            assert [model.id async for model in client.models.list()] == ["main"]
            with pytest.raises(openai.NotFoundError, match="expected one of main"):
                await client.chat.completions.create(model="gpt-9", messages=messages)
            await client.close()

    asyncio.run(run())


def test_a_half_sent_head_does_not_hold_the_port(stub: StubServer) -> None:
    """A client that connects and says nothing takes nothing from the others."""

    async def run() -> None:
        async with proxy(stub.url) as p:
            host, port = p.url.removeprefix("http://").split(":")
            silent = [socket.create_connection((host, int(port))) for _ in range(20)]
            assert (await p.client.post(CHAT, json=chat())).status_code == 200
            for one in silent:
                one.close()

    asyncio.run(run())

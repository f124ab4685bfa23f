"""Web pages of other origins: none may read an answer that was not named, and never our state."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from slotwise.proxy.api.cors import origin_of
from tests.proxy.shell import CHAT, chat, proxy
from tests.support import StubServer

PAGE, OTHER = "http://localhost:3000", "https://evil.example"
ALLOWED = "access-control-allow-origin"
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def test_without_the_option_no_page_may_read_an_answer(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            answer = await p.client.get("/v1/models", headers={"Origin": PAGE})
            asked = await p.client.options(CHAT, headers={"Origin": PAGE, **ASK})
            assert ALLOWED not in answer.headers
            assert ALLOWED not in asked.headers
            assert asked.status_code == 405

    asyncio.run(run())


def test_a_named_origin_may_ask_without_a_key_and_use_the_models_with_one(stub: StubServer) -> None:
    async def run() -> None:
        keys = {"page": "sk-page"}
        async with proxy(stub.url, keys=keys, cors_origins=(PAGE,)) as p:
            asked = await p.client.options(CHAT, headers={"Origin": PAGE, **ASK})
            assert asked.status_code == 200
            assert asked.headers[ALLOWED] == PAGE
            assert "POST" in asked.headers["access-control-allow-methods"]
            assert "authorization" in asked.headers["access-control-allow-headers"]
            refused = await p.client.post(CHAT, json=chat(), headers={"Origin": PAGE})
            assert (refused.status_code, refused.headers[ALLOWED]) == (401, PAGE)  # it can be read
            headers = {"Origin": PAGE, "Authorization": "Bearer sk-page"}
            for stream in (False, True):
                answer = await p.client.post(CHAT, json=chat(stream=stream), headers=headers)
                assert (answer.status_code, answer.headers[ALLOWED]) == (200, PAGE)
                assert "X-Slotwise-Slot" in answer.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in answer.headers

    asyncio.run(run())


def test_another_origin_may_not(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, cors_origins=(PAGE,)) as p:
            asked = await p.client.options(CHAT, headers={"Origin": OTHER, **ASK})
            answer = await p.client.get("/v1/models", headers={"Origin": OTHER})
            assert asked.status_code == 400
            assert ALLOWED not in asked.headers
            assert ALLOWED not in answer.headers

    asyncio.run(run())


@pytest.mark.parametrize(
    "path", ["/slotwise/status", "/slotwise/requests", "/slotwise/events", "/metrics"]
)
def test_our_own_state_is_shown_to_no_other_origin(stub: StubServer, path: str) -> None:
    async def run() -> None:
        async with proxy(stub.url, cors_origins=(PAGE,)) as p:
            asked = await p.client.options(path, headers={"Origin": PAGE, **ASK})
            assert ALLOWED not in asked.headers
            async with p.client.stream("GET", path, headers={"Origin": PAGE}) as answer:
                assert answer.status_code == httpx.codes.OK
                assert ALLOWED not in answer.headers

    asyncio.run(run())


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://Localhost:3000/", "http://localhost:3000"),
        ("https://chat.example.org:443", "https://chat.example.org"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("*", "*"),
    ],
)
def test_an_origin_is_taken_as_browsers_write_it(given: str, origin: str) -> None:
    assert origin_of(given) == origin


@pytest.mark.parametrize(
    "given",
    [
        "",
        "localhost:3000",
        "null",
        "ftp://x",
        "http://",
        "http://x/path",
        "http://x?a",
        "http://x:y",
    ],
)
def test_anything_else_is_refused_with_an_example(given: str) -> None:
    with pytest.raises(ValueError, match="expected an origin like http://localhost:3000"):
        origin_of(given)

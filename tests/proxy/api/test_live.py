"""The lanes page's shell and its stream of documents, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from slotwise.proxy.api import lanes_page
from slotwise.proxy.api.status import MOST_LISTENERS, Live
from tests.proxy.shell import CHAT, Proxy, chat, proxy
from tests.support import StubServer, wait_until_async

EVENTS = "/slotwise/events"


@contextlib.asynccontextmanager
async def listening(p: Proxy, **more: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The documents of one stream."""
    async with p.client.stream("GET", EVENTS, **more) as response:
        response.raise_for_status()
        lines = response.aiter_lines()

        async def documents() -> AsyncIterator[dict[str, Any]]:
            async for line in lines:
                if line:
                    yield orjson.loads(line.removeprefix("data: "))

        yield documents()


def test_a_stream_begins_with_the_status_and_goes_on_with_what_changes(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p, listening(p) as documents:
            first = await anext(documents)
            status = (await p.client.get("/slotwise/status")).json()
            assert first.keys() == status.keys()
            assert first["engines"] == status["engines"]
            assert first["requests"] == []
            await p.client.post(CHAT, json=chat("hello"))
            while not (last := await anext(documents))["requests"]:
                pass
            assert last["requests"][0]["rule"] == "new"

    asyncio.run(run())


def test_one_document_is_made_for_all_and_none_for_nobody() -> None:
    made: list[int] = []

    def make(driver: object) -> object:
        made.append(1)
        return {"n": len(made)}

    async def run() -> None:
        async with proxy("", up=False) as p:
            live = Live(p.driver, make)
            sent: list[list[bytes]] = [[], [], []]

            async def one(into: list[bytes]) -> None:
                async def send(message: Any) -> None:
                    into.append(message.get("body", b""))

                async def receive() -> Any:
                    await asyncio.Event().wait()

                await live({"type": "http"}, receive, send)

            tasks = [asyncio.create_task(one(into)) for into in sent]
            await wait_until_async(lambda: all(len(into) > 1 for into in sent))
            assert {into[1] for into in sent} == {b'data: {"n":1}\n\n'}
            live.close()
            await asyncio.wait(tasks, timeout=5)
            assert all(task.done() for task in tasks)
            assert live.listeners == 0
            assert len(made) <= 2  # a second one when the clock's five seconds turned

    asyncio.run(run())


def test_a_page_too_many_is_told_so_and_a_page_that_leaves_makes_room(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p, contextlib.AsyncExitStack() as stack:
            pages = [await stack.enter_async_context(listening(p)) for _ in range(MOST_LISTENERS)]
            assert len([await anext(page) for page in pages]) == MOST_LISTENERS
            refused = await p.client.get(EVENTS)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "too_many_listeners"
            assert refused.headers["retry-after"] == "10"
            await stack.aclose()

            async def again() -> Any:
                async with p.client.stream("GET", EVENTS) as response:
                    return response.status_code == 200

            await wait_until_async(again)

    asyncio.run(run())


def test_the_shell_is_open_and_what_it_shows_is_not(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url, keys={"ann": "secret"}) as p:
            for path in lanes_page.PATHS[1:]:
                assert (await p.client.get(path)).status_code == 200, path
            for path in (EVENTS, "/slotwise/status", "/slotwise/requests", "/slotwise/x"):
                assert (await p.client.get(path)).status_code == 401, path
            async with listening(p, headers={"Authorization": "Bearer secret"}) as documents:
                assert (await anext(documents))["engines"]["e0"]["state"] == "up"

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("path", lanes_page.PATHS[1:])
def test_every_file_of_the_page_comes_with_its_policy(path: str) -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            answer = await p.client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await p.client.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")

    asyncio.run(run())


def test_a_look_at_the_streams_head_is_no_listener() -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            answer = await p.client.head(EVENTS)
            assert (answer.status_code, answer.content) == (200, b"")

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/slotwise", "/"])
def test_the_page_is_found_without_its_last_slash_and_at_the_bare_address(path: str) -> None:
    async def run() -> None:
        async with proxy("", up=False) as p:
            found = await p.client.get(path, follow_redirects=True)
            assert found.url.path == "/slotwise/"
            assert "<h1>" in found.text

    asyncio.run(run())


def test_the_page_asks_nobody_else_and_never_makes_markup_of_what_it_is_told() -> None:
    folder = lanes_page._FOLDER
    for name in lanes_page.FILES:
        text = (folder / name).read_text()
        assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), name
        for maker in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
            assert maker not in text, (name, maker)


def test_an_open_page_does_not_hold_up_the_end(stub: StubServer, tmp_path: Any) -> None:
    from tests.support import Slotwise, attach_profile

    profile = attach_profile(tmp_path, stub.url)
    with (
        Slotwise(profile, "--state-dir", tmp_path) as slotwise,
        httpx.stream("GET", slotwise.url + EVENTS, timeout=30) as page,
    ):
        lines = page.iter_lines()
        assert next(lines).startswith("data: ")
        # requests would get ten seconds: a stop that takes as long is ended by force
        assert slotwise.stop(timeout_s=8) == 0
        assert [line for line in lines if line and not line.startswith("data: ")] == []

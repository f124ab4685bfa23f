"""``slotwise explain`` names the culprit first, from what a real engine computed again."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from slotwise.launcher.cli import command
from slotwise.proxy.api.app import create_app
from slotwise.proxy.chat.normalize import Normalize
from tests.engine.accounts import accounted, send
from tests.engine.conftest import StartEngine
from tests.engine.talk import NO_RAM_CACHE, PINNABLE, words
from tests.proxy import claude_shapes
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Talk, Wire, talk
from tests.running_proxy import RunningProxy
from tests.support import STOP_LIMIT_S

FLAGS = ("-np", "2", "-c", "16384", *PINNABLE, *NO_RAM_CACHE)
AS_THEY_COME = {"normalize": Normalize(billing_header=False)}
SECRET = "dachshund"  # a word of the user's


def clocked(said: Talk, time: str) -> Wire:
    system = f"You are a helpful assistant.\nIt is {time}.\n{words('rules', 100)}"
    return shapes.open_webui(said, chat="c-1", system=system)


def claude(said: Talk, cch: str) -> Wire:
    prompt = claude_shapes.CLAUDE_PROMPT + words("rules", 200)
    return claude_shapes.claude_code_translated(said, cch=cch, prompt=prompt)


def converse(proxy: RunningProxy, shape: Any, *volatile: str) -> list[str]:
    """A turn for each of these values of what a client puts anew into its system text; the ids."""
    said: Talk = []
    ids = []
    for number, value in enumerate(volatile):
        said += talk(words(f"turn{number}", 100))
        told = send(proxy, shape(said, value))
        said += talk("", told.text)[1:]
        ids.append(told.record.id)
    return ids


def explained(
    capsys: pytest.CaptureFixture[str], proxy: RunningProxy, *arguments: str
) -> list[str]:
    """What the command prints, by line."""
    assert command.main(["explain", *arguments, "--url", proxy.url]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_billing_line_that_changes_with_every_request_is_named_first(
    start_engine: StartEngine, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with accounted(start_engine(*FLAGS), tiny_gguf, profile=AS_THEY_COME) as proxy:
        converse(proxy, claude, "00af1", "5be02")
        culprit, where, heads, *rows = explained(capsys, proxy, "--last", "1")
    told = re.fullmatch(
        r"(?P<again>[\d,]+) of (?P<n>[\d,]+) tokens were computed again because the system text "
        r"\(messages\[0\]\) changed at token [\d,]+: "
        r'"(?P<before>.*)" became "(?P<after>.*)"',
        culprit,
    )
    assert told, culprit
    assert "00af1" in told["before"]
    assert "5be02" in told["after"]
    assert "agent of session" in where
    assert heads.split() == ["section", "tokens", "cached", "changed", "new", "lost", "s"]
    by_section = {row.split()[0]: row.split()[1:] for row in rows if row.strip()}
    assert list(by_section) == ["tools", "system", "user", "assistant", "template", "total"]
    assert by_section["total"][0] == told["n"]
    assert by_section["total"][2] == told["again"]
    tokens, cached, changed, *_ = by_section["tools"]
    assert (cached, changed) == (tokens, "-")


@pytest.mark.slow
def test_levelled_by_the_normaliser_the_billing_line_costs_nothing(
    start_engine: StartEngine, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with accounted(start_engine(*FLAGS), tiny_gguf) as proxy:
        converse(proxy, claude, "00af1", "5be02")
        culprit = explained(capsys, proxy, "--last", "1")[0]
    assert re.fullmatch(r"[\d,]+ of [\d,]+ tokens came from the cache; \d+ were new", culprit)


@pytest.mark.slow
def test_a_clock_in_the_system_text_is_named_first_and_by_session(
    start_engine: StartEngine, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with accounted(start_engine(*FLAGS), tiny_gguf) as proxy:
        ids = converse(proxy, clocked, "2026-02-03 09:41", "2026-02-03 09:42", "2026-02-03 09:43")
        record = proxy.inside(lambda: proxy.driver.history.record(ids[2]))
        assert record is not None
        lines = explained(capsys, proxy, "--session", record.session)
        one = explained(capsys, proxy, ids[2])
    culprits = [line for line in lines if " tokens " in line and "messages[0]" in line]
    assert len(culprits) == 2
    assert "the system text (messages[0]) changed at token" in one[0]
    assert re.search(r'"[^"]*42[^"]*" became "[^"]*43[^"]*"$', one[0]), one[0]
    assert one[0] == culprits[1]


@pytest.mark.slow
def test_a_first_turn_that_looked_like_a_side_job_does_not_hide_the_clock(
    start_engine: StartEngine, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def whole(said: Talk, time: str) -> Wire:
        headers, body, path = clocked(said, time)
        return Wire(headers, body | {"stream": False}, path)

    with accounted(start_engine(*FLAGS), tiny_gguf) as proxy:
        ids = converse(proxy, whole, "2026-02-03 09:41", "2026-02-03 09:42")
        kinds = [record.kind for record in proxy.inside(proxy.driver.history.records)]
        culprit = explained(capsys, proxy, ids[1])[0]
    assert kinds == ["chat", "chat"]  # only words prove a side job
    assert "the system text (messages[0]) changed at token" in culprit


# ---------------------------------------------------------------- who may see text


def requests(proxy: RunningProxy, key: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return proxy.client.get("/slotwise/requests", headers=headers)


def requests_from(proxy: RunningProxy, address: str) -> httpx.Response:
    """As a client at another address gets them; a socket has none but loopback to offer."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(proxy.driver, {}), client=(address, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url=proxy.url) as client:
            return await client.get("/slotwise/requests")

    return asyncio.run_coroutine_threadsafe(ask(), proxy.loop).result(STOP_LIMIT_S)


def shows_text(answer: httpx.Response) -> bool:
    """Whether an account shows both sides of a difference, in all of its places or in none."""
    last = answer.raise_for_status().json()["requests"][-1]
    assert last["changed"]["section"] == "user"
    seen = [SECRET in answer.text, "before" in last["changed"], '" became "' in last["lines"][0]]
    assert len(set(seen)) == 1, seen
    return seen[0]


def edited(proxy: RunningProxy, key: str = "") -> None:
    """A chat whose last question is asked otherwise: the user's words are the difference."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    hello = talk(words("hello", 50))
    said = [*hello, *talk("", "hello")[1:]]
    question = words("see", 50)
    asked = [hello, *([*said, *talk(f"{question} {end}")] for end in (SECRET, "poodle"))]
    for messages in asked:
        wire = shapes.open_webui(messages, chat="c-1")
        send(proxy, wire._replace(headers=wire.headers | headers))


@pytest.mark.slow
def test_without_keys_only_a_client_on_this_machine_sees_text(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    with accounted(start_engine(*FLAGS), tiny_gguf) as proxy:
        edited(proxy)
        assert shows_text(requests(proxy))
        assert not shows_text(requests_from(proxy, "10.1.2.3"))
        # a name of somebody else's that leads here, a web server that passes on
        for host in ("example.com", "10.1.2.3:8000", "localhost.example.com"):
            assert not shows_text(proxy.client.get("/slotwise/requests", headers={"Host": host}))
        for host in ("localhost:8000", "[::1]:8000", "127.0.0.2"):
            assert shows_text(proxy.client.get("/slotwise/requests", headers={"Host": host}))


@pytest.mark.slow
def test_with_keys_only_the_one_named_admin_sees_text(
    start_engine: StartEngine, tiny_gguf: Path
) -> None:
    keys = {"ana": "key-of-ana", "admin": "key-of-admin", "administrator": "key-of-another"}
    with accounted(start_engine(*FLAGS), tiny_gguf, keys=keys) as proxy:
        edited(proxy, "key-of-ana")
        assert shows_text(requests(proxy, "key-of-admin"))
        assert not shows_text(requests(proxy, "key-of-ana"))
        assert not shows_text(requests(proxy, "key-of-another"))
        assert requests(proxy).status_code == 401
        assert requests(proxy, "key-of-nobody").status_code == 401

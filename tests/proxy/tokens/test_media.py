"""Images and audio: counted by the engine once, matched by what they are, never looked at.

On a stub with markers and counts of llama-server's form; no multimodal engine takes part.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from slotwise.policies.prefix import Tokens, lcp, pack
from slotwise.policies.types import Section
from slotwise.proxy.engine.client import EngineClient
from slotwise.proxy.errors import UpstreamError
from slotwise.proxy.tokens.media import (
    FIRST_ID,
    MediaPrompts,
    Medium,
    _joined,
    stand_in,
    without_media,
)
from slotwise.proxy.tokens.prompt_encoder import (
    Edges,
    KnownPrompts,
    PromptEncoder,
    SegmentCache,
    TokenizedText,
)
from slotwise.proxy.tokens.segments import Segmenter
from slotwise.proxy.tokens.tokenizer import one_section, sections_of
from tests.proxy.shell import CHAT, proxy
from tests.stub_text import media_tokens
from tests.support import StubServer

COUNT = f"{CHAT}/input_tokens"
ONE, OTHER = "data:image/png;base64,T05F" + "A" * 400, "data:image/png;base64,T1RI" + "A" * 400


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def audio(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def asks(text: str, *media: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*media, {"type": "text", "text": text}]}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# ---------------------------------------------------------------- what stands for a medium


def test_a_few_bytes_stand_for_each_medium_and_texts_stay() -> None:
    fields = {"messages": [asks("what?", image(ONE), audio("SOUND")), says("x")], "tools": []}
    plain, media = without_media(fields)
    assert [medium.message for medium in media] == [0, 0]
    assert [medium.part for medium in media] == [image(ONE), audio("SOUND")]
    assert plain["messages"][1] is fields["messages"][1]
    parts = plain["messages"][0]["content"]
    assert parts[0]["image_url"] == {"url": "data:image/png;base64,AAAA", "detail": "low"}
    assert parts[1]["input_audio"] == {"data": "AAAA", "format": "wav"}
    assert parts[2] == {"type": "text", "text": "what?"}
    assert fields["messages"][0] == asks("what?", image(ONE), audio("SOUND"))


def test_a_request_without_media_is_handed_on_as_it_is() -> None:
    fields = {"messages": [asks("what?"), says("x"), {"role": "user", "content": "y"}]}
    assert without_media(fields) == (fields, [])
    assert without_media(fields)[0] is fields


def _digest(part: dict[str, Any]) -> bytes:
    return without_media({"messages": [asks("", part)]})[1][0].digest


def test_a_medium_is_known_by_its_data_or_its_url() -> None:
    assert _digest(image(ONE)) == _digest(image(ONE.replace("png", "jpeg")))
    parts = [image(ONE), image(OTHER), image("http://a/1"), image("http://a/2"), audio("QQ")]
    parts += [{"type": "image_url", "image_url": "of another form"}, {"type": "image_url"}]
    assert len({_digest(part) for part in parts}) == len(parts)


def test_its_ids_lie_outside_every_vocabulary_and_follow_from_the_digest() -> None:
    one, other = bytes(range(16)), bytes(range(1, 17))
    ids = Tokens(stand_in(one, 7)).ids()
    assert len(ids) == 7
    assert min(ids) >= FIRST_ID
    assert stand_in(one, 7) == stand_in(one, 7)
    assert stand_in(other, 7) != stand_in(one, 7)
    assert lcp(Tokens(stand_in(one, 7)), Tokens(stand_in(other, 7))) == 0


def test_texts_and_media_are_joined_with_their_places() -> None:
    first = TokenizedText("ab", [0, 1, 2], [1, 2, 3], [1], pack([9, 1, 2]))
    last = TokenizedText("cde", [0, 2, 3], [0, 5, 6], [2], pack([3, 4, 5, 6, 7, 8]))
    empty = TokenizedText("", [0], [0], [], pack([]))
    whole = _joined([first, empty, last], "<M>", [pack([70, 71]).packed, pack([80]).packed])
    assert whole.text == "ab<M><M>cde"
    assert whole.tokens.ids() == [9, 1, 2, 70, 71, 80, 3, 4, 5, 6, 7, 8]
    assert whole.ends == [0, 1, 2, 5, 8, 10, 11]
    assert whole.positions == [1, 2, 3, 5, 6, 11, 12]
    assert [whole.ends[i] for i in whole.cuts] == [1, 11]
    assert one_section(whole.tokens)[0].end == 12


class Letters:
    """Encodes a text as its code points."""

    async def encode(self, segments: Sequence[str]) -> list[bytes]:
        return [pack(map(ord, segment)).packed for segment in segments]


def test_the_sections_of_a_prompt_are_known_past_its_media() -> None:
    segmenter = Segmenter({"<s>": 500_000, "<e>": 500_001})
    prompts = PromptEncoder(Letters(), segmenter, Edges(), b"x", SegmentCache(), KnownPrompts())
    known: Any = SimpleNamespace(prompts=prompts)
    shape, media = without_media(
        {"messages": [asks("what is to be seen?", image(ONE)), says("a cat"), asks("a white one?")]}
    )
    first = "<s>user\n<__media__>what is to be seen?<e>"
    text = f"{first}<s>assistant\na cat<e><s>user\na white one?<e><s>assistant\n"

    async def run() -> tuple[TokenizedText, tuple[Section, ...], int | None]:
        tokenized = await MediaPrompts().encode(FakeEngine(), known, "main", text, media)
        return tokenized, *(await sections_of(prompts, tokenized, shape))

    tokenized, sections, first_user_end = asyncio.run(run())
    end = 9 + sum(map(len, ("user\n", "what is to be seen?"))) + 2  # <s> and <e> are one each
    assert tokenized.tokens.ids()[6:15] == Tokens(stand_in(media[0].digest, 9)).ids()
    assert first_user_end == end
    assert [(s.name, s.message) for s in sections[:3]] == [
        ("user", 0),
        ("assistant", 1),
        ("user", 2),
    ]
    assert sections[0].end == end
    assert sections[-1].end == len(tokenized.tokens)


# ---------------------------------------------------------------- through the proxy


def body(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": list(messages), "max_tokens": 4}


@pytest.fixture
def seeing() -> Any:
    with StubServer(mmproj=True, add_bos=True) as stub:
        yield stub


def test_a_conversation_about_an_image_goes_on_where_it_is_held(seeing: StubServer) -> None:
    async def run() -> None:
        async with proxy(seeing.url) as p:
            first = asks("what is to be seen in this picture?", image(ONE))
            opened = await p.client.post(CHAT, json=body(first))
            answer = opened.json()["choices"][0]["message"]
            await p.until_idle()
            again = await p.client.post(CHAT, json=body(first, answer, asks("and behind it?")))
            await p.until_idle()
            changed = asks("what is to be seen in this picture?", image(OTHER))
            other = await p.client.post(CHAT, json=body(changed, answer, asks("and behind it?")))
        records = [record for record in seeing.requests() if record["path"] == CHAT]
        for reply, record in zip((opened, again, other), records, strict=True):
            assert int(reply.headers["X-Slotwise-Prompt-Tokens"]) == record["n_prompt"]
        assert again.headers["X-Slotwise-Slot"] == opened.headers["X-Slotwise-Slot"]
        assert again.headers["X-Slotwise-Rule"] == "home"
        expected = int(again.headers["X-Slotwise-Expected-Cached"])
        assert expected == records[1]["cached"] > media_tokens(ONE)
        assert int(other.headers["X-Slotwise-Expected-Cached"]) < media_tokens(OTHER)
        assert records[0]["body"]["messages"] == [first]  # unchanged to the engine
        assert seeing.log()["helpers"][COUNT] == 2  # once for each of the two

    asyncio.run(run())


def test_several_media_in_one_request_are_each_counted(seeing: StubServer) -> None:
    async def run() -> None:
        async with proxy(seeing.url) as p:
            first = asks("these?", image(ONE), audio("U09VTkQ="), image(OTHER), image(ONE))
            for messages in ([first], [{"role": "system", "content": "s"}, first]):
                reply = await p.client.post(CHAT, json=body(*messages))
                counted = int(reply.headers["X-Slotwise-Prompt-Tokens"])
                assert counted == seeing.requests()[-1]["n_prompt"]
        assert seeing.log()["helpers"][COUNT] == 3

    asyncio.run(run())


def test_a_url_is_never_fetched_by_the_proxy(seeing: StubServer) -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/picture.png"
            async with proxy(seeing.url) as p:
                reply = await p.client.post(CHAT, json=body(asks("this?", image(url))))
                assert reply.status_code == 200
            with pytest.raises(BlockingIOError):
                listener.accept()

    asyncio.run(run())


def test_an_engine_without_eyes_says_so_itself(stub: StubServer) -> None:
    async def run() -> None:
        async with proxy(stub.url) as p:
            asked = body(asks("this?", image(ONE)))
            ours = await p.client.post(CHAT, json=asked)
            theirs = httpx.post(stub.url + CHAT, json=asked)
            assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
            assert "mmproj" in ours.text
            assert (await p.client.post(CHAT, json=body(asks("and now?")))).status_code == 200

    asyncio.run(run())


def test_nothing_of_a_medium_reaches_the_log(
    seeing: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "data:image/png;base64,U0VDUkVU"

    async def run() -> None:
        async with proxy(seeing.url) as p:
            await p.client.post(CHAT, json=body(asks("this?", image(secret), image("http://s/x"))))
            seeing.configure(mmproj=False)
            await p.client.post(CHAT, json=body(asks("this?", image(secret + "AA"))))

    asyncio.run(run())
    assert caplog.records
    assert "U0VDUkVU" not in caplog.text
    assert "http://s/x" not in caplog.text


# ---------------------------------------------------------------- counting


class FakeEngine(EngineClient):
    """Counts 9 tokens for a medium, in a message of 3 tokens."""

    def __init__(self, status: int = 200) -> None:
        self.asked = 0
        self.status = status

    async def call(
        self, method: str, path: str, body: Any = None, timeout_s: float | None = None
    ) -> Any:
        self.asked += 1
        if self.status != 200:
            raise UpstreamError(self.status, b"{}", "application/json")
        return {"input_tokens": 12}

    async def props(self) -> Any:
        return {}

    async def apply_template(self, body: dict[str, Any]) -> str:
        return "a<__media__>bc"

    async def tokenize(
        self, content: Any, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        parts = [content] if isinstance(content, str) else content
        return [t for part in parts for t in (map(ord, part) if isinstance(part, str) else [part])]


def _counted(engine: FakeEngine, prompts: MediaPrompts, n: int) -> list[int]:
    media = [Medium(0, bytes([i % n]) * 16, image("x")) for i in range(2 * n)]

    async def run() -> list[int]:
        asked = [prompts.count(engine, None, "main", medium) for medium in media]
        return list(await asyncio.gather(*asked))

    return asyncio.run(run())


def test_a_medium_is_counted_once_also_by_many_at_a_time() -> None:
    engine, prompts = FakeEngine(), MediaPrompts()
    assert _counted(engine, prompts, 5) == [9] * 10
    assert engine.asked == 5


def test_the_counts_are_kept_within_their_bound() -> None:
    prompts = MediaPrompts(most_counts=3)
    _counted(FakeEngine(), prompts, 10)
    assert len(prompts) == 3


def test_an_engine_too_old_to_count_is_served_with_a_guess() -> None:
    prompts = MediaPrompts()
    assert _counted(FakeEngine(404), prompts, 1) == [256, 256]
    with pytest.raises(UpstreamError):
        _counted(FakeEngine(500), prompts, 1)

"""What the engine has in its RAM cache is known, and expected back after a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import StartEngine
from tests.engine.talk import PINNABLE, RAM_CACHE, Conversation, proxied, words

ONE_SLOT = ("-np", "1", "-c", "16384")


def test_what_was_saved_is_expected_back_to_the_token(start_engine: StartEngine) -> None:
    engine = start_engine(*ONE_SLOT, *PINNABLE, *RAM_CACHE)
    with proxied(engine, cache_tokens=50_000) as proxy:
        chats = [Conversation(proxy, words(name, 600)) for name in ("first", "second", "third")]
        for chat in chats:
            chat.say(words("hello", 100))
        for turn in range(3):
            for chat in chats:
                answer = chat.say(words(f"turn{turn}", 20))
                cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert int(answer.headers["X-Slotwise-Expected-Cached"]) == cached
                assert cached > 600


def test_what_the_cache_had_no_room_for_is_not_expected(start_engine: StartEngine) -> None:
    engine = start_engine(*ONE_SLOT, *PINNABLE, "--cache-ram", "0", "-sps", "0.1")
    with proxied(engine, cache_tokens=50_000) as proxy:
        chats = [Conversation(proxy, words(name, 600)) for name in ("first", "second")]
        for chat in chats:
            chat.say(words("hello", 100))
        expected, cached = [], []
        for turn in range(3):
            for chat in chats:
                answer = chat.say(words(f"turn{turn}", 20))
                usage = answer.json()["usage"]
                cached.append(usage["prompt_tokens_details"]["cached_tokens"])
                expected.append(int(answer.headers["X-Slotwise-Expected-Cached"]))
        assert max(cached) < 100
        assert expected[0] > 600, "it was told of a cache"
        assert min(expected[1:]) < 100, "and believes the engine"


@pytest.mark.slow
@pytest.mark.parametrize("files", [True, False])
def test_what_a_slot_holds_goes_where_the_cache_has_what_is_worth_more(
    start_engine: StartEngine, tmp_path: Path, files: bool
) -> None:
    """Saved, the short conversation would push out the long one that is asked for. An engine
    without a place for files cannot empty a slot, and saves it."""
    place = ("--slot-save-path", f"{tmp_path}/") if files else ()
    engine = start_engine(*ONE_SLOT, *PINNABLE, "--cache-ram", "1", "-sps", "0.1", *place)
    with proxied(engine, cache_tokens=2000) as proxy:
        long, short = Conversation(proxy, words("long", 1300)), Conversation(proxy, words("s", 800))
        long.say(words("hello", 50))
        short.say(words("hello", 50))
        answer = long.say(words("again", 20))
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert (cached > 1300) is files
    assert int(answer.headers["X-Slotwise-Expected-Cached"]) == cached

"""Conversations keep their cache on a real engine; reuse is what the engine itself reports."""

from __future__ import annotations

import pytest

from tests.engine.conftest import StartEngine
from tests.engine.talk import (
    NO_RAM_CACHE,
    PINNABLE,
    RAM_CACHE,
    Conversation,
    cached_share,
    events,
    proxied,
    slot_of,
    user,
    words,
)
from tests.support import wait_until


@pytest.mark.slow
@pytest.mark.parametrize("cache", [NO_RAM_CACHE, RAM_CACHE], ids=["no RAM cache", "RAM cache"])
def test_alternating_conversations_are_read_once(
    start_engine: StartEngine, cache: tuple[str, ...]
) -> None:
    """Field report R01: two conversations of about 700 tokens, A B A B A B."""
    engine = start_engine("-np", "2", "-c", "16384", *PINNABLE, *cache)
    with proxied(engine) as proxy:
        chats = [Conversation(proxy, words(name, 500)) for name in ("first", "second")]
        for chat in chats:
            chat.say(words("hello", 150))
        for turn in range(1, 3):
            shares = [cached_share(chat.say(words(f"turn{turn}", 20))) for chat in chats]
            assert min(shares) > 0.9


def test_a_title_job_does_not_cost_the_conversation_its_cache(start_engine: StartEngine) -> None:
    """Field report R02: the job quotes the chat behind an instruction of its own."""
    engine = start_engine("-np", "2", "-c", "32768", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        main = Conversation(proxy, words("assistant", 800))
        main.say(words("one", 300))
        home = slot_of(main.say(words("two", 300)))
        quoted = "\n".join(str(m["content"]) for m in main.messages[-2:])
        title = proxy.chat(f"Make a title of three words for this chat:\n{quoted}", max_tokens=5)
        assert slot_of(title) != home
        third = main.say(words("three", 50))
        assert (slot_of(third), third.headers["X-Slotwise-Rule"]) == (home, "home")
        assert cached_share(third) > 0.9


def test_a_long_chat_keeps_its_slot_past_unrelated_ones(start_engine: StartEngine) -> None:
    """Field report R09: four short chats between the second and the third turn, four slots."""
    engine = start_engine("-np", "4", "-c", "65536", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        main = Conversation(proxy, words("assistant", 3000))
        main.say(words("one", 200))
        home = slot_of(main.say(words("two", 200)))
        for k in range(4):
            assert slot_of(proxy.chat(words(f"short{k}", 100), max_tokens=3)) != home
        third = main.say(words("three", 20))
        assert slot_of(third) == home
        assert cached_share(third) > 0.98


def test_sub_agents_and_their_parent_keep_apart(start_engine: StartEngine) -> None:
    """Field report R18: the parent's next turn reports full reuse."""
    engine = start_engine("-np", "2", "-c", "32768", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        parent = Conversation(proxy, words("parent", 1500))
        before = parent.say(words("task", 100)).json()["usage"]
        sub = Conversation(proxy, words("explorer", 900))
        shares = [cached_share(sub.say(words(f"step{k}", 60))) for k in range(3)]
        assert min(shares[1:]) > 0.85
        after = parent.say(words("result", 60)).json()["usage"]
        # All of it but the last generated token, which was never fed back.
        whole = before["prompt_tokens"] + before["completion_tokens"] - 1
        assert after["prompt_tokens_details"]["cached_tokens"] == whole


def test_what_was_expected_is_what_the_engine_reports(start_engine: StartEngine) -> None:
    engine = start_engine("-np", "2", "-c", "32768", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        chat = Conversation(proxy, words("assistant", 400))
        for turn in range(5):
            answer = chat.say(words(f"turn{turn}", 50))
            details = answer.json()["usage"]["prompt_tokens_details"]
            assert int(answer.headers["X-Slotwise-Expected-Cached"]) == details["cached_tokens"]
            counted = int(answer.headers["X-Slotwise-Prompt-Tokens"])
            assert counted == answer.json()["usage"]["prompt_tokens"]


@pytest.mark.slow
def test_streamed_and_whole_answers_give_the_same_counters(start_engine: StartEngine) -> None:
    """Field report R69: cached / (cached + evaluated), the same for both forms."""
    counters = {}
    for stream in (False, True):
        engine = start_engine("-np", "2", "-c", "16384", *PINNABLE, *NO_RAM_CACHE)
        with proxied(engine) as proxy:
            for text in (words("a", 300), words("a", 300) + words("b", 40)):
                # A limit that no side job has: by their shape those are whole, never streamed.
                proxy.chat(text, max_tokens=300, temperature=0, stream=stream)
            counters[stream] = {
                name: value
                for name, value in proxy.metrics().items()
                if name.startswith(("slotwise_prompt_tokens_total", "slotwise_requests_total"))
                and value
            }
    assert counters[True] == counters[False]
    assert sum(v for k, v in counters[True].items() if 'source="cached"' in k) > 250
    assert not any('source="unknown"' in k for k in counters[True])


@pytest.mark.slow
def test_the_model_list_tells_the_window_of_a_slot_whatever_the_engine_does(
    start_engine: StartEngine,
) -> None:
    """Field report R64: during a long prefill, and while the engine is gone."""
    engine = start_engine("-np", "2", "-c", "65536", *PINNABLE, *NO_RAM_CACHE)

    def windows() -> set[int]:
        return {m["meta"]["n_ctx"] for m in proxy.client.get("/v1/models").json()["data"]}

    with proxied(engine) as proxy:
        assert windows() == {32768}
        body = {"messages": [user(words("long", 20_000))], "max_tokens": 2, "stream": True}
        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            assert windows() == {32768}
            assert list(events(stream.iter_lines()))
        engine.stop()
        assert windows() == {32768}


def test_a_raw_prompt_is_pinned_and_counted_like_a_chat(start_engine: StartEngine) -> None:
    engine = start_engine("-np", "2", "-c", "16384", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        prompt = words("raw", 600)
        for path in ("/completion", "/v1/completions"):
            proxy.client.post(path, json={"prompt": prompt, "n_predict": 3, "max_tokens": 3})
            prompt += " and then it goes on"
            again = proxy.client.post(path, json={"prompt": prompt, "max_tokens": 3})
            assert again.headers["X-Slotwise-Rule"] == "home"
            assert again.json()["timings"]["cache_n"] > 550


def test_the_prompt_is_only_read_when_the_client_wants_no_cache(start_engine: StartEngine) -> None:
    engine = start_engine("-np", "2", "-c", "16384", *PINNABLE, *NO_RAM_CACHE)
    with proxied(engine) as proxy:
        for _ in range(2):
            answer = proxy.chat(words("a", 300), max_tokens=2, cache_prompt=False)
            assert answer.headers["X-Slotwise-Expected-Cached"] == "0"
            assert cached_share(answer) == 0
        wait_until(lambda: cached_share(proxy.chat(words("a", 300), max_tokens=2)) > 0.9, 5)

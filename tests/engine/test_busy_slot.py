"""The hazard that slotwise exists to keep away: a request pinned to a slot that is at work.

With a RAM cache the engine loads the newcomer's conversation over the one that runs and only then
notices that the slot is busy; the running answer goes on in the other conversation.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine.conftest import StartEngine
from tests.engine.engines import RunningEngine
from tests.engine.talk import PINNABLE, RAM_CACHE, events, proxied, text_of, user, words
from tests.running_proxy import RunningProxy

CLIENTS = 8
_BY_ID = re.compile(r"get_availabl: id +(\d+) \| task (-?\d+) \| selected slot by id")


def pins_to_a_busy_slot(engine: RunningEngine) -> int:
    """How often a pin found its slot at work: the log names the task the slot had then."""
    return sum(task != "-1" for _, task in _BY_ID.findall(engine.log.read_text(errors="replace")))


def pinned(engine: RunningEngine, text: str, slot: int, max_tokens: int) -> dict[str, Any]:
    body = {"messages": [user(text)], "max_tokens": max_tokens, "temperature": 0, "id_slot": slot}
    answer: dict[str, Any] = engine.post("/v1/chat/completions", body).json()
    return answer


@pytest.mark.slow
def test_a_bare_engine_changes_a_running_answer(start_engine: StartEngine) -> None:
    engine = start_engine("-np", "2", "-c", "65536", *PINNABLE, *RAM_CACHE)
    long, other = words("alice", 300), words("bob", 2000)
    alone = pinned(engine, long, 1, 3000)["choices"][0]["message"]["content"]
    pinned(engine, other, 0, 2)
    pinned(engine, words("third", 2500), 0, 2)  # moves bob's conversation into the RAM cache
    body = {"messages": [user(long)], "max_tokens": 3000, "temperature": 0, "id_slot": 0}
    told = ""
    with (
        ThreadPoolExecutor(1) as pool,
        engine.stream("/v1/chat/completions", {**body, "stream": True}) as stream,
    ):
        intruder = None
        for number, event in enumerate(events(stream.iter_lines())):
            told += event["choices"][0]["delta"].get("content") or ""
            if number == 50:
                intruder = pool.submit(pinned, engine, other, 0, 2)
        assert intruder is not None
        intruder.result(60)
    assert pins_to_a_busy_slot(engine) > 0
    assert told[:150] == alone[:150]
    assert told != alone, "this engine no longer has the hazard: law 3 may be relaxed"


@pytest.mark.slow
def test_slotwise_never_pins_to_a_busy_slot(start_engine: StartEngine) -> None:
    """Eight clients at once; conversations of different lengths, so that the RAM cache is used."""
    engine = start_engine("-np", "4", "-c", "65536", *PINNABLE, *RAM_CACHE)
    with proxied(engine, max_running=4) as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda k: _chat(proxy, k), range(CLIENTS)))
    assert "selected slot by id" in engine.log.read_text(errors="replace")
    assert pins_to_a_busy_slot(engine) == 0


@pytest.mark.slow
def test_eight_clients_get_the_answers_they_would_get_alone(start_engine: StartEngine) -> None:
    """One runs at a time, so that batches do not differ and every text must be the same."""
    engine = start_engine("-np", "4", "-c", "65536", *PINNABLE, *RAM_CACHE)
    with proxied(engine, max_running=1) as proxy, ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(lambda k: _chat(proxy, k), range(CLIENTS)))
    fresh = start_engine("-np", "4", "-c", "65536", *PINNABLE, *RAM_CACHE)
    with proxied(fresh, max_running=1) as proxy:
        alone = [_chat(proxy, k) for k in range(CLIENTS)]
    assert together == alone


def _chat(proxy: RunningProxy, client: int) -> list[str]:
    """Three turns of one client; returns what it was told."""
    messages: list[dict[str, Any]] = [user(words(f"client{client}", 150 + 200 * client))]
    told = []
    for turn in range(3):
        body = {"messages": messages, "max_tokens": 40, "temperature": 0}
        answer = proxy.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        told.append(text_of(answer))
        reply = {"role": "assistant", "content": told[-1]}
        messages = [*messages, reply, user(words(f"next{turn}", 30))]
    return told

"""A client that leaves in a long prefill, on a real engine with a neighbour at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.engine.conftest import StartEngine
from tests.engine.engines import RunningEngine
from tests.engine.talk import NO_RAM_CACHE, PINNABLE, events, proxied, user, words
from tests.running_proxy import RunningProxy
from tests.support import wait_until

BATCH = 512
PROMPT_WORDS = 27_000


def slot_state(engine: RunningEngine, slot: int) -> dict[str, Any]:
    state: dict[str, Any] = engine.get("/slots").json()[slot]
    return state


@contextmanager
def leaving(proxy: RunningProxy, body: dict[str, Any]) -> Iterator[httpx.Response]:
    """A stream whose client closes its connection at the end of the block."""
    with (
        httpx.Client(base_url=proxy.url, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as stream,
    ):
        yield stream


class Neighbour(threading.Thread):
    """A stream that generates all the while."""

    def __init__(self, proxy: RunningProxy) -> None:
        super().__init__(daemon=True)
        self.url = proxy.url + "/v1/chat/completions"
        self.tokens = 0
        self.complete = False

    def run(self) -> None:
        body = {"messages": [user("neighbour")], "max_tokens": 8000, "stream": True}
        with httpx.stream("POST", self.url, json=body, timeout=100) as stream:
            for _ in events(stream.iter_lines()):
                self.tokens += 1
        self.complete = True


@pytest.mark.slow
def test_an_abandoned_prefill_stops_and_its_work_is_reused(start_engine: StartEngine) -> None:
    engine = start_engine("-np", "2", "-c", "81920", *PINNABLE, *NO_RAM_CACHE)
    body = {"messages": [user(words("long", PROMPT_WORDS))], "max_tokens": 2, "stream": True}
    with proxied(engine) as proxy:
        neighbour = Neighbour(proxy)
        neighbour.start()
        wait_until(lambda: neighbour.tokens > 3, 20)

        [taken] = [s for s in proxy.inside(proxy.driver.scheduler.slots) if s.request]
        slot = 1 - taken.slot.id_slot

        def processed() -> int:
            """Prompt tokens the engine reported so far."""
            return proxy.inside(proxy.driver.scheduler.slots)[slot].resident

        with leaving(proxy, body) as stream:
            assert stream.headers["X-Slotwise-Slot"] == f"p-0/{slot}"
            wait_until(lambda: processed() >= 8 * BATCH, 30)
        left_at = processed()
        wait_until(lambda: not slot_state(engine, slot)["is_processing"], 10)
        kept = slot_state(engine, slot)["n_prompt_tokens"]
        assert not neighbour.complete, "the neighbour was to be at work all the while"
        assert left_at <= kept <= left_at + 6 * BATCH, "the engine went on for nobody"

        with proxy.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            *_, last = events(stream.iter_lines())
            assert stream.headers["X-Slotwise-Slot"] == f"p-0/{slot}", "the retry goes home"
        assert last["timings"]["cache_n"] == kept
        neighbour.join(60)
        assert neighbour.complete


@pytest.mark.slow
def test_a_slot_whose_client_left_is_not_pinned_before_it_is_shown_idle(
    start_engine: StartEngine,
) -> None:
    engine = start_engine("-np", "1", "-c", "40960", *PINNABLE, *NO_RAM_CACHE)
    body = {"messages": [user(words("long", PROMPT_WORDS))], "max_tokens": 2, "stream": True}
    with proxied(engine) as proxy:
        with leaving(proxy, body):
            wait_until(lambda: slot_state(engine, 0)["is_processing"], 20)
        answer = proxy.chat(words("next", 30), max_tokens=2)
        assert answer.status_code == 200
        assert answer.headers["X-Slotwise-Slot"] == "p-0/0"
    # The log names the task a slot still had when a pin came: there must be none.
    log = engine.log.read_text(errors="replace")
    pins = [line for line in log.splitlines() if "selected slot by id" in line]
    assert pins
    assert all("task -1 |" in line for line in pins)

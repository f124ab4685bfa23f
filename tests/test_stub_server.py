"""The stub engine behaves like llama-server: its slots, its streams, and what its log tells."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.clients import HangingClient, cached, chat, events, post, words
from tests.support import StubServer, wait_until

TIMER_EARLY_S = 0.01  # by which a loop's timer may fire before its time
BUSY = {"prefill_tps": 0.0, "decode_tps": 20.0, "answer_tokens": 40}  # two seconds of answer


# ---------------------------------------------------------------- slots


def test_a_pinned_chat_reuses_prompt_and_answer_but_for_the_last_token(
    two_slots: StubServer,
) -> None:
    first = post(two_slots, chat(id_slot=1, max_tokens=3)).json()
    answer = first["choices"][0]["message"]
    history = [*chat()["messages"], answer, {"role": "user", "content": "more"}]
    second = post(two_slots, {"messages": history, "id_slot": 1})
    n_prompt = first["usage"]["prompt_tokens"]
    assert cached(second) == n_prompt + 3 - 1
    assert [r["slot"] for r in two_slots.requests()] == [1, 1]


def test_an_identical_prompt_evaluates_one_token(two_slots: StubServer) -> None:
    post(two_slots, chat(id_slot=0))
    again = post(two_slots, chat(id_slot=0)).json()
    assert again["timings"]["prompt_n"] == 1
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["timings"]["cache_n"]


def test_a_pin_is_taken_modulo_the_slots(two_slots: StubServer) -> None:
    post(two_slots, chat(id_slot=3))
    assert two_slots.requests()[0]["slot"] == 1


def test_without_a_pin_similarity_wins_then_the_slot_released_longest_ago(
    two_slots: StubServer,
) -> None:
    post(two_slots, chat("alpha " * 50, id_slot=0))
    post(two_slots, chat("beta " * 50, id_slot=1))
    post(two_slots, chat("beta " * 50))
    post(two_slots, chat("gamma " * 80))
    assert [r["slot"] for r in two_slots.requests()] == [0, 1, 1, 0]


def test_a_pin_on_a_busy_slot_waits_and_is_noted(two_slots: StubServer) -> None:
    two_slots.configure(**BUSY)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, two_slots, chat("one", id_slot=0, max_tokens=6))
        wait_until(lambda: two_slots.busy() == [0])
        second = pool.submit(post, two_slots, chat("two", id_slot=0, max_tokens=1))
        assert first.result().status_code == second.result().status_code == 200
    one, two = two_slots.requests()
    assert [r["violation"] for r in (one, two)] == [False, True]
    assert two_slots.log()["violations"] == 1
    assert two["started"] >= one["released"]


def test_slots_tell_how_much_they_hold_and_who_works(two_slots: StubServer) -> None:
    two_slots.configure(**BUSY)
    hanging = HangingClient(two_slots, chat(id_slot=1))
    wait_until(lambda: two_slots.busy() == [1])
    polled = httpx.get(two_slots.url + "/slots").json()
    assert [slot["is_processing"] for slot in polled] == [False, True]
    assert polled[1]["n_prompt_tokens"] >= 10
    assert len(two_slots.log()["slots_polls"]) == 1
    hanging.hang_up()


def test_a_prompt_longer_than_the_window_is_refused_with_both_numbers(
    two_slots: StubServer,
) -> None:
    refused = post(two_slots, chat(words(2000), stream=True))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (2008, 1024)


def test_lose_kv_and_ignore_pins(two_slots: StubServer) -> None:
    two_slots.configure(lose_kv=True, ignore_pins=True)
    body = {"prompt": "hello there", "id_slot": 0}
    answers = [post(two_slots, body, "/completion").json() for _ in range(2)]
    assert [a["timings"]["cache_n"] for a in answers] == [0, 0]
    assert [a["id_slot"] for a in answers] == [1, 1]


# ---------------------------------------------------------------- hang-ups


def test_a_hang_up_frees_the_slot_and_keeps_what_was_computed(two_slots: StubServer) -> None:
    two_slots.configure(prefill_tps=2000.0)
    prompt = chat(words(900), id_slot=0)
    hanging = HangingClient(two_slots, prompt | {"stream": True})
    wait_until(lambda: httpx.get(two_slots.url + "/stub/slots").json()[0]["n_prompt_tokens"])
    hanging.hang_up()
    wait_until(lambda: not two_slots.busy())
    assert two_slots.requests()[0]["ended"] == "client_gone"
    assert two_slots.requests()[0]["closed"] is not None
    assert cached(post(two_slots, prompt)) == 512


def test_a_slot_can_stay_busy_after_a_hang_up(two_slots: StubServer) -> None:
    two_slots.configure(**BUSY, hangup_busy_s=0.5)
    hanging = HangingClient(two_slots, chat(id_slot=0))
    wait_until(lambda: two_slots.busy() == [0])
    hanging.hang_up()
    (gone,) = wait_until(lambda: [r for r in two_slots.requests() if "released" in r])
    assert gone["released"] - gone["closed"] >= 0.5 - TIMER_EARLY_S


def test_a_client_that_leaves_the_queue_never_gets_a_slot(two_slots: StubServer) -> None:
    two_slots.configure(**BUSY)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(post, two_slots, chat("one", id_slot=0, max_tokens=10))
        wait_until(lambda: two_slots.busy() == [0])
        waiting = HangingClient(two_slots, chat("two", id_slot=0))
        wait_until(lambda: len(two_slots.requests()) == 2)
        waiting.hang_up()
        first.result()
    assert two_slots.requests()[1]["ended"] == "client_gone"
    assert "started" not in two_slots.requests()[1]


# ---------------------------------------------------------------- streams


def test_a_stream_ends_with_timings_and_done(two_slots: StubServer) -> None:
    streamed = post(two_slots, chat(stream=True, max_tokens=2))
    told = events(streamed)
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert [e["choices"][0]["finish_reason"] for e in told] == [None, None, None, "length"]
    assert "timings" in told[-1]
    assert "usage" not in told[-1]


def test_progress_events_are_whole_and_leave_the_rest_as_it_was(two_slots: StubServer) -> None:
    prompt = words(700)
    with_progress = events(post(two_slots, chat(prompt, stream=True, return_progress=True)))
    steps = [e["prompt_progress"]["processed"] for e in with_progress if "prompt_progress" in e]
    assert steps == [0, 512, 708]
    rest = [e["choices"] for e in with_progress if "prompt_progress" not in e]
    assert rest == [e["choices"] for e in events(post(two_slots, chat(prompt, stream=True)))]


@pytest.mark.parametrize(
    ("usage", "asked", "choices", "has_usage"),
    [
        ("real", False, 1, False),
        ("real", True, 0, True),
        ("none", True, 1, False),
        ("own_chunk", False, 0, True),
        ("in_finish", False, 1, True),
    ],
)
def test_usage_comes_in_every_way_a_server_sends_it(
    two_slots: StubServer, usage: str, asked: bool, choices: int, has_usage: bool
) -> None:
    two_slots.configure(usage=usage, comments=True)
    streamed = post(two_slots, chat(stream=True, stream_options={"include_usage": asked}))
    last = events(streamed)[-1]
    assert len(last["choices"]) == choices
    assert ("usage" in last) == has_usage
    assert "\n\n: a comment\n\n" in streamed.text


def test_small_chunks_leave_one_by_one(two_slots: StubServer) -> None:
    two_slots.configure(filler_events=5, chunk_gap_s=0.02)
    with httpx.stream("POST", two_slots.url + "/v1/chat/completions", json=chat(stream=True)) as r:
        pieces = list(r.iter_raw())
    assert [len(piece) for piece in pieces[:5]] == [30] * 5


def test_the_streams_bytes_can_be_cut_anywhere(two_slots: StubServer) -> None:
    two_slots.configure(chunk_bytes=7)
    answer = events(post(two_slots, chat(stream=True, temperature=0)))
    two_slots.configure(chunk_bytes=0)
    assert [e["choices"] for e in answer] == [
        e["choices"] for e in events(post(two_slots, chat(stream=True, temperature=0)))
    ]


def test_after_a_stream_the_connection_is_closed_unannounced(two_slots: StubServer) -> None:
    answer = HangingClient(two_slots, chat(stream=True)).read_to_end()
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert b"connection: close" not in answer.lower()

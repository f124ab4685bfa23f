"""The table of conversations: bounds, cost, properties, and recorded conversations."""

from __future__ import annotations

import copy
import random
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.bench.trace import trace
from slotwise.proxy.chat.sessions import Session, SessionTable
from tests import support
from tests.proxy.client_shapes import Talk, Wire, talk, tools, used
from tests.proxy.conversations import FIVE, Proxy, hinted, one, plain

# ---------------------------------------------------------------- bounds


def test_ten_thousand_random_ids_on_one_conversation_are_one_session(proxy: Proxy) -> None:
    draw = random.Random(1)
    first = proxy(hinted(FIVE, "0"))
    found = {proxy(hinted(FIVE, f"{draw.getrandbits(64):x}"), after_s=0.01) for _ in range(10_000)}
    assert found == {Session(first.id, "turns", turns_seen=1, changed_at=None)}
    assert len(proxy.table) == 1


def test_ten_thousand_conversations_leave_a_bounded_table() -> None:
    proxy = Proxy(max_sessions=500)
    for n in range(10_000):
        proxy(hinted(talk(f"question {n}"), f"id {n}"), after_s=0.01)
    assert len(proxy.table) == 500
    assert proxy.table.digests == 500 * 3


def test_the_conversation_used_longest_ago_is_forgotten_first() -> None:
    proxy = Proxy(max_sessions=2)
    a, b = proxy.ids(plain(talk("a")), plain(talk("b")))
    assert proxy(plain(talk("a"))).id == a
    proxy(plain(talk("c")))
    assert proxy(plain(talk("a"))).id == a
    assert proxy(plain(talk("b"))).id != b


def test_long_histories_are_bounded_together_but_the_newest_stays() -> None:
    proxy = Proxy(max_digests=1000)
    for n in range(20):
        proxy(plain(talk(*(f"{n} {turn}" for turn in range(101)))))
    assert 1 <= len(proxy.table) < 20
    assert proxy.table.digests <= 1000
    giant = plain(talk(*(f"turn {turn}" for turn in range(3001))))
    assert one(proxy.ids(giant, giant))
    assert len(proxy.table) == 1


def test_a_conversation_expires_after_half_an_hour_of_silence(proxy: Proxy) -> None:
    first = proxy(plain(FIVE[:3]))
    assert proxy(plain(FIVE[:3]), after_s=1799).id == first.id
    later = proxy(plain(FIVE), after_s=1801)
    assert later.id != first.id
    assert later.basis == "new"
    assert len(proxy.table) == 1


def test_a_clock_that_goes_back_does_no_harm(proxy: Proxy) -> None:
    assert one([proxy(plain(FIVE), after_s=s).id for s in (5, -3, 10)])


@pytest.mark.slow
def test_a_thousand_chats_that_begin_alike_cost_no_search_through_all(proxy: Proxy) -> None:
    chats = [talk("hi", "hello", f"about {n}", "yes?", f"more of {n}") for n in range(1000)]
    ids = [proxy(plain(chat[:3]), after_s=0).id for chat in chats]
    began = time.perf_counter()
    again = [proxy(plain(chat), after_s=0).id for chat in chats]
    assert time.perf_counter() - began < 3.0
    assert again == ids
    assert len(set(ids)) == 1000


def test_a_long_history_costs_little_more_than_a_hash_of_it(proxy: Proxy) -> None:
    said = [*talk("Fix the bug")]
    for n in range(200):
        said += used("read", f"{n} lorem ipsum dolor " * 100, f"c{n}", path=f"{n}.py")
    proxy(plain(said[:-2], "You are an agent. " * 500, tools=tools(*map(str, range(60)))))
    wire = plain(said, "You are an agent. " * 500, tools=tools(*map(str, range(60))))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        proxy(wire)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.02  # 420 kB; 2 ms where nothing else runs


# ---------------------------------------------------------------- properties


def noisy(draw: random.Random, said: Talk) -> Wire:
    """The conversation so far, with everything changed that changes by itself."""
    system = f"You are a helpful assistant. It is {draw.randrange(24)}:{draw.randrange(60)}."
    history = copy.deepcopy(said)
    for message in history:
        if message["role"] == "assistant":
            reasoning = draw.choice([None, "", "hm", f"let me think {draw.random()}"])
            message |= {"reasoning_content": reasoning} if reasoning is not None else {}
        elif draw.random() < 0.3:
            message["content"] += f"\n<system-reminder>{draw.random()}</system-reminder>"
    offered = tools("a", "b", "c", "d")
    draw.shuffle(offered)
    headers = {"x-session-id": f"{draw.random()}"} if draw.random() < 0.5 else {}
    messages = [{"role": "system", "content": system}, *history]
    return Wire(headers, {"messages": messages, "tools": offered})


@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_conversation_keeps_its_id_under_noise_and_shares_it_with_no_other(
    seed: int, conversations: int, turns: int
) -> None:
    draw = random.Random(seed)
    table = SessionTable()
    texts = [[f"turn {n} of {c}" for n in range(2 * turns - 1)] for c in range(conversations)]
    order = [c for c in range(conversations) for _ in range(turns)]
    draw.shuffle(order)
    done: dict[int, int] = defaultdict(int)
    ids: dict[int, set[str]] = defaultdict(set)
    for now, c in enumerate(order):
        said = talk(*texts[c][: 2 * done[c] + 1])
        done[c] += draw.random() < 0.9  # else: the same request again
        wire = noisy(draw, said)
        ids[c].add(table.identify(wire.headers, wire.body, "ann", float(now)).id)
    assert [len(found) for found in ids.values()] == [1] * len(ids)
    assert len(set().union(*ids.values())) == len(ids)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3)), max_size=80))
@settings(max_examples=60, deadline=None)
def test_the_table_keeps_its_bounds_and_its_indexes_whatever_comes(
    requests: list[tuple[int, int, int]],
) -> None:
    table = SessionTable(max_sessions=5, max_digests=60, expire_s=20)
    for now, (text, turns, hint) in enumerate(requests):
        said = talk(*(f"{text if n else 'hi'} {n}" for n in range(2 * turns - 1)))
        headers = {"x-session-id": str(hint)} if hint else {}
        table.identify(headers, {"messages": said}, "ann", float(now))
        assert 1 <= len(table) <= 5
        assert table.digests <= 60
    table.identify({}, {}, "ann", 1e6)
    assert (len(table), table.digests) == (0, 0)
    assert not any((table._by_hint.buckets, table._by_tip.buckets, table._by_first.buckets))


# ---------------------------------------------------------------- recorded conversations


def ids_of_trace(name: str, live: int) -> dict[str, list[str]]:
    """The ids of each recorded conversation's calls, ``live`` conversations interleaved."""
    support.trace(f"{name}.jsonl")
    calls: dict[str, list[trace.Call]] = defaultdict(list)
    for call in trace.read(name):
        calls[call.session].append(call)
    table, ids = SessionTable(), defaultdict(list)
    for now, call in enumerate(interleaved(list(calls.values()), live)):
        body = {"messages": call.messages, "tools": call.tools}
        ids[call.session].append(table.identify({}, body, "ann", float(now)).id)
    return ids


def interleaved(sessions: list[list[trace.Call]], live: int) -> Iterator[trace.Call]:
    waiting = [iter(session) for session in sessions]
    running, waiting = waiting[:live], waiting[live:]
    while running:
        for session in list(running):
            call = next(session, None)
            if call is None:
                running.remove(session)
                running += [waiting.pop(0)] if waiting else []
            else:
                yield call


@pytest.mark.parametrize("live", [1, 8])
@pytest.mark.parametrize("name", ["tau_airline", "miniswe", "sweagent", "sweagent_elide5"])
def test_every_recorded_conversation_has_one_id_of_its_own(name: str, live: int) -> None:
    ids = ids_of_trace(name, live)
    assert {session: len(set(found)) for session, found in ids.items()} == dict.fromkeys(ids, 1)
    assert len({found[0] for found in ids.values()}) == len(ids)


@pytest.mark.parametrize("name", ["oasst", "oasst_seed"])
def test_no_two_recorded_trees_of_chats_share_an_id(name: str) -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for session, found in ids_of_trace(name, live=8).items():
        for id in found:
            owners[id].add(session)
    assert {id: len(sessions) for id, sessions in owners.items()} == dict.fromkeys(owners, 1)

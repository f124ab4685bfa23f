"""What is kept of requests has bounds, and agrees with an engine of full attention."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.policies.attribution import RECOMPUTED
from slotwise.policies.prefix import lcp, pack
from slotwise.proxy.history.computed import Blocks, chain
from slotwise.proxy.history.history import History
from tests.proxy.history_world import BLIND, FIRST, Part, World, by_cause, ids
from tests.proxy.script import PLAIN_COST


def test_the_kept_prompts_stay_within_their_bytes() -> None:
    limit = 20_000
    world = World(keep_bytes=limit)
    for k in range(50):
        world.ask(f"r{k}", [("user", ids(f"c{k}", 500))], f"s{k}")
        assert world.history.kept()["prompt_bytes"] <= limit
    kept = world.history.kept()
    assert 5 <= kept["prompts"] < 10
    again = world.ask("old", [("user", [5, *ids("c0", 499)])], "s0")
    assert by_cause(again) == {"new": 500}  # what it was before is forgotten
    again = world.ask("new", [("user", [6, *ids("c49", 499)])], "s49")
    assert by_cause(again) == {"changed": 500}


def test_a_prompt_larger_than_the_room_is_not_kept() -> None:
    world = World(keep_bytes=1000)
    world.ask("a", FIRST, "s")
    kept = world.history.kept()
    assert (kept["prompts"], kept["prompt_bytes"]) == (0, 0)


@pytest.mark.slow
def test_ten_thousand_requests_leave_bounded_tables() -> None:
    history = History(lambda profile: PLAIN_COST, most_blocks=100)
    world = World(slots=2)
    world.history = history
    for k in range(10_000):
        world.arrive(f"r{k}", [("user", [k, k])], f"s{k}")
        world.finish(f"r{k}")
    assert history.kept()["records"] == 1000
    assert history.kept()["blocks"] <= 100
    assert len(history._displaced) <= 4096
    assert history._open == {}


def test_the_block_record_forgets_the_end_of_a_prompt_before_its_beginning() -> None:
    blocks = Blocks(most=4)
    one, two = pack(ids("one", 256)), pack(ids("two", 128))
    first, second = chain("p", one), chain("p", two)
    blocks.add(first, 256, 256, "a")
    blocks.add(second, 128, 128, "b")
    assert len(blocks) == 4
    assert blocks.longest(first, 256) == (128, "a")
    assert blocks.longest(second, 128) == (128, "b")


def test_only_blocks_that_were_wholly_computed_are_on_record() -> None:
    blocks = Blocks()
    prompt = pack(ids("one", 200))
    digests = chain("p", prompt)
    blocks.add(digests, 200, 191, "a")
    assert blocks.longest(digests, 200) == (128, "a")
    blocks.add(digests, 200, 200, "b")
    assert blocks.longest(digests, 200) == (200, "b")  # the whole prompt, to its end
    longer = chain("p", pack([*ids("one", 200), 1]))
    assert blocks.longest(longer, 201) == (192, "b")


def test_two_profiles_share_no_blocks_and_a_known_beginning_gives_the_same_digests() -> None:
    prompt = pack(ids("one", 300))
    assert not set(chain("p", prompt)) & set(chain("q", prompt))
    assert chain("p", prompt, chain("p", prompt)[:3]) == chain("p", prompt)
    assert chain("p", pack(())) == []


MOVES = st.tuples(st.integers(0, 3), st.integers(1, 90), st.booleans(), st.booleans())


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(slots=st.integers(1, 3), blind=st.booleans(), moves=st.lists(MOVES, max_size=25))
def test_records_agree_with_an_engine_of_full_attention(
    slots: int, blind: bool, moves: list[tuple[int, int, bool, bool]]
) -> None:
    """Conversations that only grow, two at a time: the sums are exact, nothing is the engine's
    fault, nothing changed, and the bound lies between what was reused and what was ever there."""
    world = World(slots, max_running=2, **(BLIND if blind else {}))
    rows: dict[int, list[Part]] = {}
    ever: list[list[int]] = []
    best: dict[str, int] = {}
    for k, (who, size, known, overlap) in enumerate(moves):
        if any(request.key == f"k{who}" for request in world.requests.values()):
            continue  # its last turn still runs or waits
        parts = rows.setdefault(who, [("system", ids("head", 70))])
        parts.append(("user", ids(f"{who}.{k}", size)))
        request = world.arrive(f"r{k}", parts, f"s{who}" if known else "", key=f"k{who}")
        best[request.id] = max((lcp(pack(row), request.tokens) for row in ever), default=0)
        while len(world.requests) > int(overlap):
            id = next(iter(world.running or world.requests))
            ended = world.requests[id]
            answer = ids(f"answer {id}", 1 + size % 7)
            record = world.finish(id, answer)
            rows[int(ended.key[1:])].append(("assistant", answer))
            ever.append([*ended.tokens.ids(), *answer[:-1]])
            counts = by_cause(record)
            assert counts.get("engine", 0) == 0
            assert counts.get("changed", 0) == 0
            assert record.cached is not None
            assert record.bound is not None
            assert record.cached <= record.bound <= max(best[id], record.cached)
            computed = sum(s.tokens for s in record.shares if s.cause in RECOMPUTED)
            assert computed == record.prompt_tokens - counts.get("cached", 0)

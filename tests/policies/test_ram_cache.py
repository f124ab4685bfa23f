"""The mirror of the engine's RAM cache does what the engine does."""

from __future__ import annotations

import random

from slotwise.bench.sim.engine import EngineRamCache
from slotwise.policies.prefix import Tokens, pack
from slotwise.policies.ram_cache import NOTHING, RamCache, SlotContent


def ids(count: int, first: int = 0) -> Tokens:
    return pack(range(first, first + count))


def state(view: Tokens, tail: int = 0) -> SlotContent:
    return SlotContent(view=view, held=len(view), tail=tail, turns=2)


A, B, C = ids(1000), ids(1000, 10_000), ids(1000, 20_000)


def test_a_content_of_which_less_than_half_goes_on_is_saved() -> None:
    ram_cache = RamCache(5000)
    swap = ram_cache.swap(state(A), B)
    assert swap is not None
    assert [s.view for s in swap.states] == [A]
    assert swap.loaded is None


def test_a_conversation_that_goes_on_changes_nothing() -> None:
    assert RamCache(5000).swap(state(A.first(900)), A) is None
    assert RamCache(5000).swap(state(A), A.first(500)) is None


def test_an_empty_slot_saves_and_loads_nothing() -> None:
    assert RamCache(5000, (state(A),)).swap(NOTHING, A) is None


def test_without_a_cache_nothing_is_saved() -> None:
    assert RamCache(0).swap(state(A), B) is None


def test_the_oldest_make_room() -> None:
    ram_cache = RamCache(2500, (state(A), state(B)))
    assert ram_cache.room_for(state(C)) == ((state(B), state(C)), (state(A),))
    swap = ram_cache.swap(state(C), ids(10, 50_000))
    assert swap is not None
    assert [s.view for s in swap.states] == [B, C]


def test_what_does_not_fit_at_all_is_lost_and_disturbs_nobody() -> None:
    ram_cache = RamCache(500, (state(ids(100, 70_000)),))
    assert ram_cache.room_for(state(A)) == (ram_cache.states, (state(A),))
    swap = ram_cache.swap(state(A), B)
    assert swap is not None
    assert swap.states == ram_cache.states


def test_the_entry_that_serves_the_prompt_is_moved_into_the_slot() -> None:
    grown = A.grown(1000, ids(200, 90_000).packed)
    swap = RamCache(5000, (state(A), state(B))).swap(state(C), grown)
    assert swap is not None
    assert swap.loaded is not None
    assert swap.loaded.view == A
    assert [s.view for s in swap.states] == [B, C]


def test_an_entry_of_which_a_quarter_would_not_be_kept_is_not_spent() -> None:
    swap = RamCache(5000, (state(A),)).swap(
        state(B), A.first(200).grown(200, ids(50, 95_000).packed)
    )
    assert swap is not None
    assert swap.loaded is None


def test_the_generated_tail_counts_where_the_prompt_goes_on_past_the_view() -> None:
    kept = state(A, tail=100)
    assert kept.shared(A.grown(1000, ids(300, 90_000).packed)) == 1100
    assert kept.shared(A.first(800)) == 800


def test_an_entry_that_holds_all_of_it_already_is_enough() -> None:
    longer = A.grown(1000, ids(10, 80_000).packed)
    swap = RamCache(5000, (state(longer),)).swap(state(A), B)
    assert swap is not None
    assert [s.view for s in swap.states] == [longer]


def test_it_agrees_with_the_model_of_the_engine_on_random_scripts() -> None:
    rng = random.Random(1)
    heads = [ids(rng.randint(50, 400), 100_000 * n) for n in range(8)]
    for _ in range(50):
        limit = rng.choice([500, 1500, 4000])
        ram_cache, cache = RamCache(limit), EngineRamCache(limit)
        for _ in range(30):
            old, head = rng.choice(heads), rng.choice(heads)
            prompt = head.grown(len(head), ids(rng.randint(1, 50), 2_000_000).packed)
            if old == head:
                continue
            swap = ram_cache.swap(state(old), prompt)
            assert swap is not None
            cache.save(old)
            loaded = cache.load(old, prompt)
            assert (swap.loaded.view if swap.loaded else None) == loaded
            assert [s.view for s in swap.states] == cache.entries
            ram_cache = RamCache(limit, swap.states)


def test_an_emptied_slot_pushes_nothing_out_and_is_given_what_serves_the_prompt() -> None:
    ram_cache = RamCache(2500, (state(A), state(B)))
    grown = A.grown(1000, ids(50, 95_000).packed)
    swap = ram_cache.into_emptied(grown)
    assert swap.loaded is not None
    assert (swap.loaded.view, [s.view for s in swap.states]) == (A, [B])
    assert ram_cache.into_emptied(C) == (ram_cache.states, None)

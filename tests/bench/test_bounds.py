"""The bounds are bounds: nothing that slots can do beats them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotwise.bench.sim import bounds
from slotwise.bench.trace.rows import Row
from slotwise.policies.prefix import Tokens, lcp, pack


def row(ids: list[int], answer: list[int] | None = None) -> Row:
    return Row("s", pack(ids), pack([*ids, *(answer or [])]), 0, 1, 1)


# A two-letter alphabet makes long common prefixes likely.
letters = st.lists(st.integers(0, 1), min_size=1, max_size=6)
workloads = st.lists(st.builds(row, letters, letters), min_size=1, max_size=6)


def best_of_all_choices(rows: list[Row], slots: int) -> int:
    """What the best of all assignments of requests to slots reuses, by trying every one."""
    best = 0
    for choice in product(range(slots), repeat=len(rows)):
        held: list[Tokens | None] = [None] * slots
        reused = 0
        for request, slot in zip(rows, choice, strict=True):
            content = held[slot]
            if content is not None:
                reused += min(lcp(request.prompt, content), len(request.prompt) - 1)
            held[slot] = request.full
        best = max(best, reused)
    return best


def best_of_all_pairs(rows: list[Row]) -> int:
    return sum(
        max(
            (min(lcp(r.prompt, e.full), len(r.prompt) - 1) for e in rows[:n]),
            default=0,
        )
        for n, r in enumerate(rows)
    )


@settings(deadline=None, max_examples=150)
@given(workloads, st.integers(1, 3), st.integers(1, 7))
def test_no_choice_of_slots_beats_the_optimum_and_no_optimum_the_infinite_cache(
    rows: list[Row], slots: int, window: int
) -> None:
    optimum = bounds.slots(rows, slots)
    windowed = bounds.slots(rows, slots, window)
    assert best_of_all_choices(rows, slots) <= optimum <= windowed <= bounds.infinite(rows)


@settings(deadline=None, max_examples=200)
@given(workloads)
def test_the_infinite_cache_finds_the_longest_earlier_prefix(rows: list[Row]) -> None:
    assert bounds.infinite(rows) == best_of_all_pairs(rows)


@settings(deadline=None, max_examples=100)
@given(workloads)
def test_with_one_slot_each_request_follows_the_one_before_it_at_best(rows: list[Row]) -> None:
    assert bounds.slots(rows, 1) >= best_of_all_choices(rows, 1)


def test_one_token_is_always_evaluated() -> None:
    rows = [row([1, 2, 3]), row([1, 2, 3])]
    assert bounds.infinite(rows) == bounds.slots(rows, 1) == 2


def test_two_conversations_on_one_slot_lose_what_two_slots_keep() -> None:
    a, b = [1] * 10, [2] * 10
    rows = [row(a), row(b), row([*a, 3]), row([*b, 3])]
    assert (bounds.slots(rows, 1), bounds.slots(rows, 2), bounds.infinite(rows)) == (0, 20, 20)


def test_what_was_generated_counts_as_held() -> None:
    assert bounds.infinite([row([1, 2], answer=[3, 4]), row([1, 2, 3, 4, 5])]) == 4


def test_no_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="slots: expected at least 1, got 0"):
        bounds.slots([], 0)

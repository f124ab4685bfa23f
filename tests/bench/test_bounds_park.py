"""A cache of so many tokens: what none can beat, and what all reach."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from slotwise.bench.sim import bounds
from slotwise.bench.trace.rows import Row
from slotwise.policies.prefix import BLOCK_TOKENS, pack


def blocks(*letters: str) -> Row:
    """A prompt of whole blocks, and one token more so that all of them can be reused."""
    ids = [ord(letter) for letter in letters for _ in range(BLOCK_TOKENS)]
    prompt = pack([*ids, 1])
    return Row(letters[0], prompt, prompt, 0, 1, 1)


def random_rows(seed: int, count: int = 14) -> list[Row]:
    rng = random.Random(seed)
    return [blocks(*rng.choices("ab", k=rng.randint(1, 4))) for _ in range(count)]


def best_of_all_choices(rows: list[Row], capacity_blocks: int) -> int:
    """Blocks reused by the best of all ways to keep blocks, by trying every one."""
    names = [row.prompt.ids()[::BLOCK_TOKENS][: len(row.prompt) // BLOCK_TOKENS] for row in rows]
    chains = [[tuple(name[: n + 1]) for n in range(len(name))] for name in names]
    reached: dict[frozenset[tuple[int, ...]], int] = {frozenset(): 0}
    for chain in chains:
        later: dict[frozenset[tuple[int, ...]], int] = {}
        for kept, found in reached.items():
            hits = next((n for n, b in enumerate(chain) if b not in kept), len(chain))
            all_of_it = sorted(kept | set(chain))
            for size in range(min(capacity_blocks, len(all_of_it)) + 1):
                for choice in combinations(all_of_it, size):
                    key = frozenset(choice)
                    later[key] = max(later.get(key, 0), found + hits)
        reached = later
    return max(reached.values())


@pytest.mark.parametrize("seed", range(8))
def test_no_way_of_keeping_blocks_beats_the_bound(seed: int) -> None:
    rows = random_rows(seed, 6)
    for capacity in (1, 2, 3):
        best = best_of_all_choices(rows, capacity) * BLOCK_TOKENS
        bound = bounds.park(rows, capacity * BLOCK_TOKENS)
        assert bound >= best
        # Of each prompt less than one block may be credited beside.
        assert bound - best < len(rows) * BLOCK_TOKENS


@pytest.mark.parametrize("seed", range(20))
def test_a_cache_with_room_for_all_is_the_infinite_one(seed: int) -> None:
    rows = random_rows(seed)
    assert bounds.park(rows, 10_000 * BLOCK_TOKENS) == bounds.infinite(rows)


@pytest.mark.parametrize("seed", range(20))
def test_more_room_never_serves_less(seed: int) -> None:
    rows = random_rows(seed)
    found = [bounds.park(rows, n * BLOCK_TOKENS) for n in range(8)]
    assert found == sorted(found)


def test_what_is_used_again_latest_is_forgotten_first() -> None:
    a, b, c = blocks("a", "a"), blocks("b", "b"), blocks("c", "c")
    rest = 2 * (BLOCK_TOKENS - 1)  # credited: b and c may miss less than a block each
    # Room for one of them: a is kept over b, because it is back sooner.
    assert bounds.park([a, b, a, c, b], 2 * BLOCK_TOKENS) == 2 * BLOCK_TOKENS + rest // 2


def test_a_shared_beginning_is_kept_once() -> None:
    rows = [blocks("h", "a"), blocks("h", "b"), blocks("h", "a"), blocks("h", "b")]
    assert bounds.park(rows, 3 * BLOCK_TOKENS) == bounds.infinite(rows)


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        bounds.park([], -1)


def test_the_time_floor_adds_up_what_is_left_of_every_prompt() -> None:
    rows = [blocks("a"), blocks("a", "b")]
    reused = bounds.infinite_each(rows)
    left = [len(row.prompt) - n for row, n in zip(rows, reused, strict=True)]
    assert bounds.time_floor_s(rows, reused, lambda n0, n1: (n1 - n0) / 1000) == pytest.approx(
        sum(left) / 1000
    )


def test_slots_hold_the_longest_rows_of_as_many_sessions_at_most() -> None:
    rows = [blocks("a"), blocks("a", "x"), blocks("b", "x", "y"), blocks("c")]
    longest = [len(row.full) for row in (rows[2], rows[1], rows[3])]
    assert [bounds.largest_residents(rows, n) for n in (1, 2, 3, 9)] == [
        longest[0],
        sum(longest[:2]),
        sum(longest),
        sum(longest),
    ]

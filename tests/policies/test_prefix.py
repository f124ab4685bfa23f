"""Prompts as packed ids, and their longest common prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.policies.prefix import BLOCK_TOKENS, EMPTY, Tokens, lcp, pack


def naive(a: list[int], b: list[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


few_ids = st.lists(st.integers(0, 2), max_size=40)
lengths = st.integers(0, 3 * BLOCK_TOKENS)


@given(lengths, few_ids, few_ids, st.integers(0, 4 * BLOCK_TOKENS))
def test_lcp_equals_the_naive_comparison(
    shared: int, tail_a: list[int], tail_b: list[int], guess: int
) -> None:
    a = [k % 50_000 for k in range(shared)] + tail_a
    b = [k % 50_000 for k in range(shared)] + tail_b
    assert lcp(pack(a), pack(b)) == lcp(pack(a), pack(b), guess) == naive(a, b)


@given(lengths, few_ids, few_ids, st.integers(-3, 3))
def test_a_guess_right_or_wrong_changes_nothing(
    shared: int, tail_a: list[int], tail_b: list[int], off: int
) -> None:
    a = [k % 50_000 for k in range(shared)] + tail_a
    b = [k % 50_000 for k in range(shared)] + tail_b
    right = naive(a, b)
    assert lcp(pack(a), pack(b), max(0, right + off)) == right
    assert lcp(pack(a), pack(b), 10 * right) == right


@given(few_ids, few_ids)
def test_lcp_is_symmetric(a: list[int], b: list[int]) -> None:
    assert lcp(pack(a), pack(b)) == lcp(pack(b), pack(a))


@pytest.mark.parametrize("n", [0, 1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 1000])
def test_a_prompt_shares_all_of_itself(n: int) -> None:
    a = pack(range(n))
    assert lcp(a, a) == lcp(a, pack(range(n))) == n
    assert lcp(a, pack(range(n + 5))) == n


@given(st.integers(0, 2**32 - 1))
def test_one_different_id_is_found_whatever_its_bits(other: int) -> None:
    a = list(range(600))
    b = list(a)
    b[437] = other
    assert lcp(pack(a), pack(b)) == (600 if other == 437 else 437)


@given(lengths, lengths)
def test_first_is_a_prefix(n: int, k: int) -> None:
    a = pack(range(n))
    assert a.first(k).ids() == list(range(min(n, k)))
    assert a.first(k) == pack(range(min(n, k)))
    assert lcp(a.first(k), a) == min(n, k)


def test_ids_come_back_as_they_went_in() -> None:
    assert pack([0, 1, 2**32 - 1]).ids() == [0, 1, 2**32 - 1]
    assert len(EMPTY) == 0
    assert EMPTY.ids() == []


def test_ids_are_packed_little_endian_on_every_machine() -> None:
    assert pack([1, 256]).packed == b"\x01\x00\x00\x00\x00\x01\x00\x00"


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="4 bytes each, got 3"):
        Tokens(b"abc")
    with pytest.raises(OverflowError):
        pack([-1])


def test_equal_prompts_are_equal_and_hash_alike() -> None:
    assert pack([1, 2]) == pack([1, 2]) != pack([1, 3])
    assert len({pack([1, 2]), pack([1, 2]), pack([2])}) == 2


@given(st.lists(st.integers(0, 3), max_size=1500), st.data())
def test_a_prompt_that_goes_on_from_a_known_one_is_the_same_as_one_made_anew(
    ids: list[int], data: st.DataObject
) -> None:
    known = pack([*ids, 9, 9])
    n = data.draw(st.integers(0, len(known)))
    tail = data.draw(st.lists(st.integers(0, 3), max_size=600))
    grown = known.grown(n, pack(tail).packed)
    anew = pack([*known.ids()[:n], *tail])
    assert (grown, lcp(grown, anew), grown._chain) == (anew, len(anew), anew._chain)


def test_a_prompt_cannot_go_on_from_behind_its_end() -> None:
    with pytest.raises(ValueError, match="0 to 2, got 3"):
        pack([1, 2]).grown(3, b"")

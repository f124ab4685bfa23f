"""Displacements that proved wrong are found by the prompt that comes back."""

from __future__ import annotations

from slotwise.policies.affinity import Displacements, Returns, expected_loss_s
from slotwise.policies.params import Cost
from slotwise.policies.ram_cache import SlotContent
from tests.proxy.script import text


def state(name: str, n: int, held: int | None = None) -> SlotContent:
    return SlotContent(view=text((name, n)), held=n if held is None else held, turns=1)


def test_a_prompt_finds_what_was_displaced_of_it_and_when() -> None:
    found = Displacements()
    found.add(state("a", 1000), 5.0, 4)
    found.add(state("b", 1000), 7.0, 4)
    assert found.missed(text(("a", 800), ("q", 9))) == (800, 5.0)
    assert found.missed(text(("c", 800))) == (0, 7.0)


def test_only_what_was_in_the_cache_counts() -> None:
    found = Displacements()
    found.add(state("a", 1000, held=300), 5.0, 4)
    found.add(state("b", 1000, held=0), 5.0, 4)
    assert found.missed(text(("a", 1000))) == (300, 5.0)
    assert found.missed(text(("b", 1000))) == (0, 5.0)


def test_about_as_many_are_remembered_as_there_are_slots() -> None:
    found = Displacements()
    for k in range(7):
        found.add(state(f"s{k}", 100), float(k), 6)
    assert found.missed(text(("s0", 100)))[0] == 0
    assert found.missed(text(("s1", 100)))[0] == 100


def test_rent_is_taken_from_what_a_slot_is_worth_and_no_more() -> None:
    cost, returns = Cost(), Returns()
    free = expected_loss_s(state("a", 9000), 0, 1.0, returns, cost)
    owing = SlotContent(view=text(("a", 9000)), held=9000, turns=1, rent_s=1.0)
    assert free > 1
    assert expected_loss_s(owing, 0, 1.0, returns, cost) == free - 1.0
    owing = SlotContent(view=text(("a", 9000)), held=9000, turns=1, rent_s=1e6)
    assert expected_loss_s(owing, 0, 1.0, returns, cost) == 0.0

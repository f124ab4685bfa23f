"""Rule 5: a new conversation takes the slot where the fewest seconds are lost."""

from __future__ import annotations

from tests.proxy.script import arrived, dispatches, resident, scheduler, serve, text, turn


def test_a_newcomer_takes_the_highest_of_the_empty_slots() -> None:
    s = scheduler(slots=4)
    assert dispatches(s.handle(turn("a", "a", 1), 0)) == [("a", 3, "new")]


def test_one_shot_calls_with_a_shared_preamble_follow_each_other() -> None:
    s = scheduler(slots=4)
    calls = [arrived(f"c{k}", text(("preamble", 5000), (f"c{k}", 800)), 5800) for k in range(5)]
    taken = [serve(s, call, at) for at, call in enumerate(calls)]
    assert taken == [3] * 5


def test_a_newcomer_beside_a_long_conversation_reads_its_head_on_an_empty_slot() -> None:
    s = scheduler(slots=2)
    long = serve(s, arrived("a", text(("head", 8000), ("a", 32_000)), 9000, turns=9), 0)
    newcomer = arrived("b", text(("head", 8000), ("b", 1000)), 9000)
    assert dispatches(s.handle(newcomer, 1)) == [("b", 1 - long, "new")]


def test_a_newcomer_displaces_what_is_least_likely_to_be_missed() -> None:
    s = scheduler(slots=2, guest=False)
    stale = resident(s, "a", 0)
    resident(s, "b", 900)
    newcomer = arrived("c", text(("c", 3000)), 3000)
    assert dispatches(s.handle(newcomer, 1000)) == [("c", stale, "affinity")]


def test_without_affinity_the_least_recently_used_slot_is_taken() -> None:
    s = scheduler(slots=2, affinity=False, guest=False)
    resident(s, "b", 0, n=30_000)
    second = resident(s, "a", 5)
    resident(s, "b", 10, n=30_000)
    assert dispatches(s.handle(arrived("c", text(("c", 3000)), 3000), 20)) == [
        ("c", second, "affinity")
    ]

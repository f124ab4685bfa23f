"""Orders of calls."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slotwise.bench.trace import workload
from slotwise.bench.trace.trace import Call


def calls(sessions: int, turns: int) -> list[Call]:
    return [
        call
        for n in range(sessions)
        for call in workload.conversation(f"s{n}", turns, words_per_turn=3)
    ]


def live_at(order: list[Call], turns: int) -> list[int]:
    """At each position how many sessions have begun and not ended."""
    begun: dict[str, int] = {}
    counts = []
    for call in order:
        begun[call.session] = begun.get(call.session, 0) + 1
        counts.append(sum(done < turns for done in begun.values()))
    return counts


def test_interleaving_keeps_every_call_and_the_order_within_a_session() -> None:
    given = calls(sessions=5, turns=4)
    order = workload.interleave(given, live=3, seed=7)
    assert sorted(order, key=given.index) == given
    for session in workload.sessions(order):
        assert [call.turn for call in session] == [0, 1, 2, 3]


def test_no_more_sessions_are_live_than_asked() -> None:
    order = workload.interleave(calls(sessions=6, turns=5), live=2, seed=1)
    assert max(live_at(order, turns=5)) == 2


def test_one_live_session_means_one_after_the_other() -> None:
    order = workload.interleave(calls(sessions=3, turns=3), live=1, seed=1)
    assert all(len({c.session for c in order[n : n + 3]}) == 1 for n in (0, 3, 6))


def test_the_seed_fixes_the_order() -> None:
    given = calls(sessions=5, turns=4)
    assert workload.interleave(given, 3, 1) == workload.interleave(given, 3, 1)
    assert workload.interleave(given, 3, 1) != workload.interleave(given, 3, 2)


def test_no_live_session_is_refused() -> None:
    with pytest.raises(ValueError, match="live: expected at least 1 session, got 0"):
        workload.interleave([], live=0, seed=1)


def test_a_conversation_grows_by_appending() -> None:
    turns = list(workload.conversation("s", 3, words_per_turn=4, head="rules"))
    for earlier, later in pairwise(turns):
        assert later.messages[: len(earlier.messages) + 1] == [*earlier.messages, earlier.answer()]


def test_each_turn_is_sent_with_its_title_job() -> None:
    groups = workload.conversations_with_titles(count=2, turns=3, words_per_turn=5)
    assert [[call.session for call in group] for group in groups[:2]] == [
        ["chat 0", "chat 0 title 0"],
        ["chat 1", "chat 1 title 0"],
    ]
    assert len(groups) == 6

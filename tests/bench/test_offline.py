"""The choice of slot, compared without an engine."""

from __future__ import annotations

import pytest

from slotwise.bench.sim import bounds
from slotwise.bench.suite import offline
from slotwise.bench.suite.offline import (
    Slot,
    Slotwise,
    llama_server,
    longest_prefix,
    session_pin,
)
from slotwise.bench.trace import trace
from slotwise.bench.trace.rows import Row, total
from slotwise.policies.params import Params
from slotwise.policies.prefix import pack

HEAD = list(range(3000))


def row(session: str, turn: int) -> Row:
    """A conversation behind a head that all share, 1,000 tokens more each turn."""
    start = 10_000 * (1 + int(session[1:] or 0))
    own = list(range(start, start + 1000 * (turn + 1)))
    return Row(session, pack([*HEAD, *own]), pack([*HEAD, *own]), len(HEAD) + 900, turn + 1, 100)


def rows(sessions: int, turns: int) -> list[Row]:
    return [row(f"s{n}", turn) for turn in range(turns) for n in range(sessions)]


def test_llama_servers_rule_takes_the_longest_prefix_above_a_tenth_else_the_oldest() -> None:
    held = row("s0", 0)
    stranger = Row("x", pack([7, 8]), pack([7, 8]), 0, 1, 1)
    slots = [Slot(pack([5] * 50), "b", 3), Slot(held.full, "s0", 9), Slot(pack([6] * 50), "c", 1)]
    assert llama_server(row("s0", 1), slots) == 1
    assert llama_server(stranger, slots) == 2
    barely = Row("y", pack(HEAD[:9] + [1] * 91), pack([1]), 0, 1, 1)
    assert llama_server(barely, slots) == 2
    assert longest_prefix(barely, slots) == 1


def test_a_session_is_pinned_to_the_slot_it_used_while_it_holds_it() -> None:
    slots = [Slot(pack([1]), "s0", 5), Slot(pack([2]), "b", 2)]
    assert session_pin(row("s0", 0), slots) == 0
    assert session_pin(row("s9", 0), slots) == 1


def test_a_shared_head_makes_the_longest_prefix_trample_where_slotwise_does_not() -> None:
    work = rows(sessions=3, turns=6)
    slotwise = offline.reuse(work, 4, Slotwise(4, Params(), think_s=5))
    assert offline.reuse(work, 4, longest_prefix) < 0.75 * slotwise
    # First turns may follow each other on the slot with the head: they share more than they lose.
    assert slotwise > 0.96 * bounds.slots(work, 4)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_rule_beats_the_bound(slots: int) -> None:
    work = rows(sessions=3, turns=4)
    found = offline.compare(work, slots, Params(), think_s=5)
    for rule in ("slotwise", "longest_prefix", "llama_server", "session_pin"):
        assert 0 < float(found[rule]) <= float(found["optimum"]) <= float(found["infinite"]) < 1
    assert float(found["infinite"]) == bounds.infinite(work) / total(work)


def test_a_wrong_policy_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    status = offline.main(["--tokenizer", f"{tmp_path}/none.json", "--policy", "{x: 1}"])
    assert status == 2
    assert "policy.x: unknown key" in capsys.readouterr().err


SESSIONS = "claude_code.blocks"


@pytest.mark.skipif(
    not (trace.traces_dir() / f"{SESSIONS}.jsonl").exists(),
    reason=f"no trace {SESSIONS} in {trace.traces_dir()} ({trace.TRACES_VARIABLE})",
)
@pytest.mark.parametrize(
    ("live", "slots", "least"), [(4, 4, 0.98), (8, 8, 0.98), (8, 4, 0.92), (4, 2, 0.92)]
)
def test_of_recorded_agent_sessions_the_choice_of_slot_keeps_most_of_what_could_be_kept(
    live: int, slots: int, least: float
) -> None:
    shares = []
    for seed in range(1, 6):
        work, timed = offline.block_rows(SESSIONS, live, seed, replaced=False)
        found = offline.reuse(work, slots, Slotwise(slots, Params(), 0, timed))
        shares.append(found / bounds.slots(work, slots))
    assert sum(shares) / len(shares) >= least, shares

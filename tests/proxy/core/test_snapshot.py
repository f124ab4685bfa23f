"""What the status pages say in words."""

from __future__ import annotations

import pytest

from slotwise.policies.attribution import Cause
from slotwise.policies.types import Reason
from slotwise.proxy.core import snapshot


@pytest.mark.parametrize(
    ("reason", "why", "left_s", "said"),
    [
        ("slots_busy", "all 4 slots are at work", None, "all 4 slots are at work"),
        ("home_busy", "p/2 holds 900 tokens of it", 1.2, "home slot busy; may go elsewhere in 2 s"),
        ("home_busy", "p/2 holds 900 tokens of it", None, "home slot busy"),
        ("memory", "memory is almost full (1 GiB)", 4.0, "memory is almost full (1 GiB)"),
        ("not_yet_known", "n is 3", None, "waiting for not yet known: n is 3"),
    ],
)
def test_a_wait_is_said_with_its_figures(
    reason: str, why: str, left_s: float | None, said: str
) -> None:
    assert snapshot.why_it_waits(reason, why, left_s) == said  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", list(Reason))
def test_no_wait_is_said_by_its_label(reason: Reason) -> None:
    said = snapshot.why_it_waits(reason, "the rule's own words", 3.0)
    assert said
    assert "_" not in said


def test_every_cause_has_words() -> None:
    assert len({snapshot.cause(cause) for cause in Cause}) == len(Cause)


@pytest.mark.parametrize(
    ("state", "read", "held", "prompt", "said"),
    [
        ("idle", None, 0, 0, "empty"),
        ("idle", None, 10, 10, "idle"),
        ("running", False, 12288, 30000, "reading 12,288 of 30,000"),
        ("running", True, 30000, 30000, "answering"),
        ("running", None, 0, 30000, "at work"),
        ("unproven", None, 5, 10, "ended early, not shown idle yet"),
    ],
)
def test_what_a_slot_does(state: str, read: bool | None, held: int, prompt: int, said: str) -> None:
    assert snapshot.what_a_slot_does(state, read, held, prompt) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "1 s"), (1.01, "2 s"), (119, "119 s"), (120, "2 min"), (121, "3 min")],
)
def test_a_time_to_come_is_rounded_up(value: float, said: str) -> None:
    assert snapshot.seconds(value) == said

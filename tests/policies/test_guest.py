"""Where a guest sits: whom it costs nothing first, then where it starts soonest."""

from __future__ import annotations

from typing import Any

import pytest

from policies.guest import seat
from policies.params import Params
from policies.types import SlotId, SlotView


def slot(number: int, n: int = 0, **more: Any) -> SlotView:
    held: dict[str, Any] = {"view_len": n, "held": n, "tail": 0, "turns": 5 if n else 0}
    given = {"guest": False, "idle_s": 700.0, **more}
    return SlotView(id=SlotId("e", number), window=100_000, idle=True, **held, **given)


UNUSED = slot(0, 60_000)  # a conversation that lives, for which nobody came in 700 s
GUESTS = slot(0, 300, guest=True)
EMPTY = slot(1)


@pytest.mark.parametrize(
    ("first", "behind_s", "taken"),
    [
        (UNUSED, (0.0, 5.0), 1),  # no start is soon enough for what nobody has to compute again
        (GUESTS, (0.0, 5.0), 0),
        (GUESTS, (0.0, 0.2), 1),  # what is less than a second is none
        (GUESTS, (5.0, 0.0), 1),
    ],
)
def test_a_guest_starts_soonest_where_nobody_feels_its_coming(
    first: SlotView, behind_s: tuple[float, float], taken: int
) -> None:
    assert seat([first, EMPTY], [0, 1], behind_s, Params()) == taken


def test_a_conversation_long_unused_is_a_seat_where_there_is_no_other() -> None:
    assert seat([UNUSED, slot(1, 60_000, idle_s=5.0)], [0, 1], (3.0, 0.0), Params()) == 0

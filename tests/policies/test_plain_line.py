"""How long a plain line is, and that no wait for others is longer than one and a half of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotwise.policies.bounds import bound_s, line_s
from slotwise.policies.params import Cost, Params
from slotwise.policies.prefix import pack
from slotwise.policies.types import Request, WaitingView

COST = Cost(
    prefill_c_s=1.0, prefill_a_s=1e-3, prefill_b_s=0, decode_s=0.1, decode_more_s=0.0
)  # fmt: skip
COST = replace(COST, expected_output=20)
PARAMS = replace(Params(), cost=COST)


def request(n: int, key: str = "k", limit: int | None = None) -> Request:
    return Request("r", "p", pack(range(n)), 0, 1, limit, True, key)


@pytest.mark.parametrize(
    ("ahead", "slots", "seconds"),
    [
        ([], 4, 0.0),
        ([(request(1000), 0.0)], 1, 2 + 2),  # its read and 20 tokens
        ([(request(1000), 3.0)], 1, 1.0),
        ([(request(1000), 9.0)], 1, 0.0),  # it takes longer than was thought
        ([(request(1000, limit=5), 0.0)], 1, 2 + 0.5),
        ([(request(1000), 0.0), (request(3000), 0.0)], 1, 4 + 6),
        # Two generate together in the time of one.
        ([(request(1000), 0.0), (request(3000), 0.0)], 4, 3 + 5),
    ],
)
def test_a_line_is_what_comes_before(
    ahead: list[tuple[Request, float]], slots: int, seconds: float
) -> None:
    assert line_s(request(10), ahead, slots, COST) == pytest.approx(seconds)


def test_a_key_that_sent_many_stands_in_a_line_as_if_keys_took_turns() -> None:
    own = [(request(1000, "many"), 0.0)] * 6
    other = [(request(1000, "few"), 0.0)]
    assert line_s(request(10, "many"), own + other, 1, COST) == pytest.approx(2 * 6 * 4)
    assert line_s(request(10, "few"), own + other, 1, COST) == pytest.approx(7 * 4)


@pytest.mark.parametrize(
    ("line", "seconds"), [(0.0, 2.0), (4.0, 8.0), (100.0, 152.0), (float("inf"), 300.0)]
)
def test_a_wait_is_bounded_by_the_line_and_the_own_read(line: float, seconds: float) -> None:
    waiting = WaitingView(request(1000), 0.0, [], owns=False, line_s=line)
    assert bound_s(300.0, waiting, PARAMS) == pytest.approx(seconds)

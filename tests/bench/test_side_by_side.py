"""Means over pairs of runs, what their error lets be said, and whose order it is."""

from __future__ import annotations

import pytest

from slotwise.bench.suite.reality import Figures, Mean, Pair, order, row


def pair(simulated: float, replayed: float) -> Pair:
    return Pair(Figures(simulated, 0.1, 2.0), Figures(replayed, 0.3, 4.0))


def test_a_mean_has_the_standard_error_of_its_values() -> None:
    # Deviations 1, 0, -1: a variance of 1 over n - 1 = 2; the mean's error is 1 / sqrt(3).
    found = Mean.of([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.error == pytest.approx(0.57735, rel=1e-4)
    assert Mean.of([0.5]) == Mean(0.5, None)


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (0.4, 0.2, "yes"),  # 0.8 at most
        (-0.4, 0.2, "yes"),
        (0.4, 0.4, "open"),  # up to 1.2
        (1.6, 0.4, "open"),  # from 0.8
        (-2.0, 0.4, "no"),
        (0.0, None, "open"),  # one run tells no error
        (0.0, 0.0, "yes"),
    ],
)
def test_within_a_point_is_said_only_where_the_error_allows_it(
    value: float, error: float | None, said: str
) -> None:
    assert Mean(value, error).within(1.0) == said


def test_a_row_says_how_far_apart_the_sides_are_and_how_sure_that_is() -> None:
    told = row("closed loop", "slotwise", [pair(0.60, 0.58), pair(0.62, 0.62)])
    assert (told["runs"], told["simulated"], told["replayed"]) == (2, 0.61, 0.60)
    assert (told["points"], told["± error"], told["within 1"]) == ("1.0", "1.0", "open")
    assert (told["TTFT s simulated"], told["session s replayed"]) == (0.1, 4.0)
    assert row("x", "y", [pair(0.5000, 0.5001)])["points"] == "0.0"
    alone = Figures(0.5, 0.1, None)
    assert row("one at a time", "x", [Pair(alone, alone)])["session s simulated"] is None


def test_arms_are_compared_pair_by_pair_and_ties_are_named() -> None:
    told = order(
        "a setup",
        {
            "best": [pair(0.80, 0.82), pair(0.81, 0.80)],
            "middle": [pair(0.50, 0.20), pair(0.51, 0.21)],
            "lowest": [pair(0.20, 0.50), pair(0.21, 0.51)],
            "also": [pair(0.205, 0.50), pair(0.205, 0.51)],
        },
    )
    assert told == (
        "- a setup: the same order: best > middle; best > lowest; best > also. "
        "tied on a side or on both: lowest / also. "
        "the other way round: middle / lowest; middle / also. "
        # Two seeds each: best is ahead of three, middle behind two; the last two are not apart.
        "Seed by seed 6 of 10 the same way."
    )


def test_a_difference_inside_twice_its_error_is_a_tie() -> None:
    far = {"a": [pair(0.9, 0.9), pair(0.5, 0.9)], "b": [pair(0.5, 0.5), pair(0.5, 0.5)]}
    # 0.2 and an error of 0.2
    told = "- x: every two are tied on a side or on both. Seed by seed 1 of 1 the same way."
    assert order("x", far) == told
    once = {"a": [pair(0.9, 0.9)], "b": [pair(0.5, 0.5)]}
    assert "tied" in order("x", once)  # one run tells no error

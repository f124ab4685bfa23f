"""Whether a claim fits beside what runs: the figures, and the same figures in words."""

from __future__ import annotations

import pytest

from slotwise.launcher.plan.fitting import Headroom, growth_to_come, verdict

GIB = 2**30


def _published() -> Headroom:
    """A box of 128 GB: the engine takes 76.4 of a declared peak of 84.65 GiB."""
    return Headroom(
        available_bytes=round(28.97 * GIB),
        floor_bytes=15 * GIB,
        growth_bytes=growth_to_come(round(84.65 * GIB), round(76.4 * GIB)),
        margin_bytes=4 * GIB,
    )


@pytest.mark.parametrize(
    ("claim_gib", "left_gib", "text"),
    [
        (
            6.5,
            14.22,
            "refused: 28.97 available - 8.25 growth still to come - 6.50 claim = 14.22, "
            "4.78 under floor 15.00 + margin 4.00 = 19.00 (GiB)",
        ),
        (
            3.0,
            17.72,
            "refused: 28.97 available - 8.25 growth still to come - 3.00 claim = 17.72, "
            "above the floor but 1.28 under floor 15.00 + margin 4.00 = 19.00 (GiB)",
        ),
        (
            1.5,
            19.22,
            "fits: 28.97 available - 8.25 growth still to come - 1.50 claim = 19.22, "
            "0.22 above floor 15.00 + margin 4.00 = 19.00 (GiB)",
        ),
    ],
)
def test_the_published_case_of_a_small_model_beside_a_big_one(
    claim_gib: float, left_gib: float, text: str
) -> None:
    told = verdict(round(claim_gib * GIB), _published())
    assert told.fits == text.startswith("fits")
    assert round(told.left_bytes / GIB, 2) == left_gib
    assert told.text == text


def test_what_is_at_its_peak_grows_no_more() -> None:
    assert growth_to_come(5, 7) == 0
    assert Headroom(100, 40, growth_bytes=5, margin_bytes=3).room_bytes == 52


def test_exactly_the_floor_and_the_margin_is_enough() -> None:
    headroom = Headroom(10 * GIB, 2 * GIB, margin_bytes=GIB)
    assert verdict(7 * GIB, headroom).fits
    assert not verdict(7 * GIB + 1, headroom).fits
    plain = verdict(8 * GIB, Headroom(10 * GIB, 2 * GIB))
    assert plain.text == "fits: 10.00 available - 8.00 claim = 2.00, 0.00 above floor 2.00 (GiB)"

"""What others held before a start and ``other`` after it: how a start is judged."""

from __future__ import annotations

import pytest

from slotwise.bench.memory_other import MIB, Machine, Start, machine, main

BEFORE = Machine(used=500 * MIB, on_lists=100 * MIB, processes=50 * MIB)


def start(other: int, free_lists: int = 300, came: int = 0, **how: float) -> Start:
    parts = {"slotwise": 90 * MIB, "p": 90 * MIB}
    parts |= {"other": other * MIB, "free_lists": free_lists * MIB}
    return Start("p", BEFORE, parts, came * MIB, (other - came) * MIB, **how)  # type: ignore[arg-type]


def test_free_pages_are_nobodys_and_who_came_is_taken_off() -> None:
    assert BEFORE.held == 400 * MIB
    assert start(400).ratio == 1
    assert start(400).ratio_without_lists == 1.4
    assert start(700, came=300).off == 0
    assert start(400).faults() == []
    assert "other / before 1.000, +0 MiB (free pages as used: 1.40)" in start(400).line()


@pytest.mark.parametrize(("other", "held"), [(439, True), (441, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_tenth_is_what_other_may_be_off(other: int, held: bool, sign: int) -> None:
    one = start(400 + sign * (other - 400))
    assert (one.faults() == []) == held
    assert ("FAULT: other is" in one.line()) == (not held)


def test_parts_that_miss_what_is_used_or_are_negative_are_a_fault() -> None:
    assert start(400, gap=0.011).faults() == ["the parts miss what is used by 1.1%"]
    assert start(400, least=-1).faults() == ["a part is negative"]


def test_the_machine_is_read_anew() -> None:
    found = machine()
    assert 0 <= found.on_lists < found.used
    assert 0 < found.processes < found.used


@pytest.mark.parametrize("given", [["--starts", "0"], ["--profiles", "none"]])
def test_what_starts_nothing_holds_nothing(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert given[0] in capsys.readouterr().err

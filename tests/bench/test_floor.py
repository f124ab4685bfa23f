"""The floor: what holds, the cells that do not, and the worst that was found."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from slotwise.bench.floor import report, search, table
from slotwise.bench.floor.known import NAMED, PINNED_SEEDS, WORST, Named, Worst
from slotwise.bench.floor.search import LEAST_REQUESTS, Candidate, Found
from slotwise.bench.floor.table import BARE, Cell, CellFigures, CellResult, breaches, run_cell
from slotwise.bench.sim.arms import SLOTWISE
from slotwise.bench.suite import suite
from slotwise.launcher.cli import command

QUICK = table.cells(slots=(4,), rams=("none",))


def result(cell: Cell, seeds: range) -> CellResult:
    by_seed = [run_cell(cell, seed) for seed in seeds]
    return CellResult(cell, {arm: [runs[arm] for runs in by_seed] for arm in (BARE, SLOTWISE)})


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (CellFigures(0.50, 1.0, 2.0, 4.0, 10.0), []),
        (CellFigures(0.491, 1.1, 2.2, 6.0, 10.5), []),
        (CellFigures(0.489, 1.0, 2.0, 4.0, 10.0), ["reuse -0.011"]),
        (CellFigures(0.50, 1.11, 2.0, 4.0, 10.0), ["ttft 1.11"]),
        (CellFigures(0.50, 1.0, 2.21, 6.01, 10.0), ["p95 1.10", "longest 1.50"]),
        (CellFigures(0.50, 1.0, 2.0, 4.0, 10.51), ["wall 1.05"]),
    ],
)
def test_the_rule(own: CellFigures, found: list[str]) -> None:
    assert breaches(CellFigures(0.50, 1.0, 2.0, 4.0, 10.0), own) == found


def test_a_few_milliseconds_are_no_difference() -> None:
    assert (
        breaches(CellFigures(1, 0.002, 0.002, 0.002, 1), CellFigures(1, 0.0069, 0.0069, 0.0069, 1))
        == []
    )


@pytest.mark.slow
@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_slotwise_is_not_behind_the_bare_engine(cell: Cell) -> None:
    """Two seeds of each shape: looser than the rule, which speaks of sixteen."""
    one = result(cell, range(1, 3))
    bare, own = one.mean(BARE), one.mean(SLOTWISE)
    assert own.reuse >= bare.reuse - 0.03
    assert own.ttft <= 1.3 * bare.ttft + table.UNFELT_S


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "named"), NAMED.items(), ids=lambda one: str(one)[:40])
def test_a_named_cell_is_no_further_off_than_it_was(cell: Cell, named: Named) -> None:
    one = result(cell, PINNED_SEEDS)
    bare, own = one.mean(BARE), one.mean(SLOTWISE)
    assert own.reuse - bare.reuse == pytest.approx(named.pinned.reuse, abs=0.0006)
    for name in ("ttft", "p95", "longest"):
        times = getattr(own, name) / getattr(bare, name)
        assert times == pytest.approx(getattr(named.pinned, name), abs=0.006), name


def test_one_cell_in_twenty_is_named_at_most() -> None:
    assert 20 * len(NAMED) <= len(table.cells())
    assert set(NAMED) <= set(table.cells())


@pytest.mark.parametrize("worst", WORST, ids=lambda one: one.case)
def test_the_worst_that_was_found_is_no_worse(worst: Worst) -> None:
    found = search.tried(Candidate.parse(worst.case))
    assert found.ttft <= worst.ttft + 0.02
    assert found.behind <= worst.behind + 0.005


@pytest.mark.parametrize("worst", WORST, ids=lambda one: one.case)
def test_a_case_is_read_as_it_is_written(worst: Worst) -> None:
    assert str(Candidate.parse(worst.case)) == worst.case


def test_a_case_of_all_lanes_and_one_of_some() -> None:
    assert Candidate.parse("batch:7 8/none/tiny") == Candidate((("batch", 7),), 8, "none", "tiny")
    some = Candidate((("batch", 7), ("growing", 12)), 2, "small", "gb10", ((0, 1), (3, 32)))
    assert Candidate.parse("batch:7+growing:12 2/small/gb10 lanes 0:1,3:32") == some


def test_a_find_is_made_smaller_while_there_is_time() -> None:
    """In the time there is; what does not lose at all is no find."""
    case = Candidate((("preambles", 1),), 4, "none", "gb10")
    found = search.tried(case)
    lost = Found(case, found.requests, found.bare, found.bare)
    small = search.shrunk(lost, until=0.0)
    assert small is lost, "no time left: it stays as it was"
    assert found.requests >= LEAST_REQUESTS
    assert found.loss < 1


def test_moved_pauses_differ_by_a_twentieth_at_most_and_nothing_else_does() -> None:
    made = search.lanes(Candidate((("agents", 1),), 4, "none", "gb10"))
    other = search.moved(made, seed=1)
    assert other == search.moved(made, seed=1)
    pairs = list(zip(chain(*made), chain(*other), strict=True))
    assert any(was.pause_s != now.pause_s for was, now in pairs)
    for was, now in pairs:
        assert now.pause_s == pytest.approx(was.pause_s, rel=0.05)
        assert replace(now, pause_s=was.pause_s, beside=was.beside) == was


def test_a_find_is_weighed_against_what_chance_does_to_the_bare_engine() -> None:
    """Where conversations push each other out, a pause a little longer changes who is pushed."""
    found = search.tried(Candidate.parse("strangers:846241 8/small/tiny"))
    chance = search.by_chance(found)
    assert chance.bare == found.bare
    assert chance.own != found.bare
    assert chance.loss > 1


def test_the_mean_of_a_search_lies_within_its_copies() -> None:
    case = Candidate.parse("retries_streamed:973183+classifiers:520661 2/none/tiny")
    mean = search.steady(case)
    made = search.lanes(case)
    copies = [search.both(case, search.moved(made, seed)) for seed in range(search.COPIES)]
    ttft = [one.own.ttft for one in copies]
    assert min(ttft) < mean.own.ttft < max(ttft)
    assert mean.requests == copies[0].requests


def test_a_search_counts_its_finds_and_those_of_chance() -> None:
    said = search.summary(search.Tally(tries=400, chance=11, steady=4), seed=3, minutes=1.0)
    assert "Seed 3, 400 workloads in 1 min." in said
    assert "slotwise, once: 0 (0.0%)" in said
    assert "up to 5%: 4 (1.0%)" in said
    assert "behind itself, with pauses moved so: 11 (2.8%)" in said


def test_an_ablation_names_the_switch_that_mends_a_cell_and_the_one_that_breaks_it() -> None:
    bare = CellFigures(0.50, 1.0, 2.0, 4.0, 10.0)
    well, slow = CellFigures(0.50, 1.0, 2.0, 4.0, 10.0), CellFigures(0.50, 1.5, 2.0, 4.0, 10.0)

    def served(shape: str, own: CellFigures, a: CellFigures, b: CellFigures) -> CellResult:
        runs = {BARE: [bare], SLOTWISE: [own], "slotwise-a": [a], "slotwise-b": [b]}
        return CellResult(Cell(shape, 4, "none", "gb10"), runs)

    found = [
        served("batch", slow, well, slow),
        served("mixed", well, well, slow),
        served("growing", well, well, well),
        served("retries", slow, slow, slow),
    ]
    assert report.crossings(["slotwise-a", "slotwise-b"], found) == [
        {
            "cell": "batch 4/none/gb10",
            "outside": "ttft 1.50",
            "mended by": "-a",
            "broken by": "",
        },
        {"cell": "mixed 4/none/gb10", "outside": "holds", "mended by": "", "broken by": "-b"},
        {
            "cell": "retries 4/none/gb10",
            "outside": "ttft 1.50",
            "mended by": "",
            "broken by": "",
        },
    ]


def test_ablate_goes_with_the_floor_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert "floor" in suite.SUITE
    assert command.main(["bench", "--only", "titles", "--ablate"]) == 2
    assert "--ablate goes with --only floor" in capsys.readouterr().err


def test_a_search_says_what_it_expects(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        search.main(["--minutes", "soon"])
    assert stopped.value.code == 2
    assert "0.01 to 600 minutes" in capsys.readouterr().err

"""Workload shapes in virtual time: what a cell of the floor table is made of."""

from __future__ import annotations

import pytest

from slotwise.bench.floor.shapes import SHAPES, Turn, body, message, workload
from slotwise.bench.floor.table import Cell, as_workload, park_tokens, run_cell
from slotwise.bench.sim import cost_model
from slotwise.policies.prefix import lcp

PACE = 2.0


def said(*words: str) -> list[dict[str, str]]:
    roles = ("system", "user", "assistant")
    return [message(roles[min(k, 1 + (k + 1) % 2)], text) for k, text in enumerate(words)]


def test_a_prompt_repeats_the_answer_before_it_as_the_slot_holds_it() -> None:
    first = said("be brief", "hello you")
    longer = [*first, message("assistant", "good day to you"), message("user", "and now?")]
    lane = [
        Turn("c", body(first, True), 4, "good day to you"),
        Turn("c", body(longer, True), 2, "nothing more"),
    ]
    [[one, two]] = as_workload([lane]).sessions
    # Its last token is generated and never fed back.
    assert lcp(one.row.full, two.row.prompt) == len(one.row.full) == len(one.row.prompt) + 3
    assert one.session == two.session != ""
    assert two.row.turns == 2
    # <system> be brief <end> <user> hello you <end>
    assert one.row.first_user_end == 8


def test_a_title_job_is_known_as_the_proxy_knows_it() -> None:
    kinds = {ask.kind for ask in as_workload(workload("chat_ui", 1, PACE)).asks()}
    assert kinds > {"chat"}


def test_the_ram_cache_is_none_a_part_or_more_than_lives() -> None:
    asked = as_workload(workload("agents", 1, PACE))
    longest = sum(max(len(ask.row.full) for ask in lane) for lane in asked.sessions)
    none, small, large = (park_tokens(asked, ram) for ram in ("none", "small", "large"))
    assert none == 0 < small < longest < large


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_shape_is_the_same_for_the_same_seed_and_another_for_another(name: str) -> None:
    def lengths(seed: int) -> list[int]:
        return [len(ask.row.prompt) for ask in as_workload(workload(name, seed, PACE)).asks()]

    assert lengths(3) == lengths(3) != lengths(4)
    assert len(lengths(3)) >= 30 or name == "mixed"


def test_a_cell_is_the_same_when_it_runs_again() -> None:
    cell = Cell("retries", 2, "small", "gb10")
    assert run_cell(cell, 2) == run_cell(cell, 2)


def test_preambles_in_turn_are_kept_as_the_bare_engine_keeps_them() -> None:
    for shape in ("preambles", "preambles_streamed", "satellites", "agent_with_classifiers"):
        bare, own = run_cell(Cell(shape, 4, "none", "gb10"), 1).values()
        assert own.reuse >= bare.reuse - 0.01 > 0.5, shape


def test_pauses_follow_the_engine() -> None:
    gb10, tiny = (cost_model.load(name).prefill_s(0, 2000) for name in ("gb10", "tiny"))
    slow, fast = (as_workload(workload("agents", 1, pace)).sessions[0][3] for pace in (gb10, tiny))
    assert slow.pause_s / fast.pause_s == pytest.approx(gb10 / tiny)

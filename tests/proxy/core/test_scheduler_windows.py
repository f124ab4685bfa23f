"""What fits: the windows of the slots, the room for the answer, the pool of a unified KV."""

from __future__ import annotations

import pytest

from slotwise.policies.types import Reason
from slotwise.proxy.core.events import Refuse
from tests.proxy.script import arrived, dispatches, finished, scheduler, serve, text


def test_a_prompt_longer_than_every_window_is_refused_with_both_numbers() -> None:
    s = scheduler(slots=2, window=4096)
    [refusal] = s.handle(arrived("a", text(("a", 5000))), 0)
    assert isinstance(refusal, Refuse)
    assert (refusal.status, refusal.code) == (400, "exceed_context_size_error")
    assert (refusal.n_prompt_tokens, refusal.n_ctx) == (5000, 4096)


def test_the_prompt_and_its_room_choose_the_window() -> None:
    s = scheduler(window=(4096, 4096, 16_384), cold=False)
    small = arrived("a", text(("a", 3500)), max_tokens=2000)
    assert dispatches(s.handle(small, 0)) == [("a", 2, "new")]
    assert dispatches(s.handle(arrived("b", text(("b", 2500)), max_tokens=500), 1)) == [
        ("b", 1, "new")
    ]
    assert dispatches(s.handle(arrived("c", text(("c", 9000))), 2)) == []
    waiting = s.waiting_for("c", 2)
    assert waiting is not None
    assert waiting.reason is Reason.WINDOW


def test_the_largest_window_takes_what_the_engine_would() -> None:
    s = scheduler(window=(1024, 4096))
    assert dispatches(s.handle(arrived("a", text(("a", 4095)), max_tokens=9000), 0)) == [
        ("a", 1, "new")
    ]


def test_max_tokens_is_cut_to_the_room() -> None:
    s = scheduler(slots=1, window=4096)
    [dispatch, *_] = s.handle(arrived("a", text(("a", 3000)), max_tokens=64_000), 0)
    assert dispatch.max_tokens == 4096 - 3000 - 64  # type: ignore[union-attr]


@pytest.mark.parametrize("asked", [None, -1, 500])
def test_max_tokens_that_fits_stays_as_it_was(asked: int | None) -> None:
    s = scheduler(slots=1, window=4096)
    [dispatch, *_] = s.handle(arrived("a", text(("a", 3000)), max_tokens=asked), 0)
    assert dispatch.max_tokens is None  # type: ignore[union-attr]


def test_a_unified_pool_is_never_promised_twice() -> None:
    s = scheduler(slots=2, window=10_000, pool=10_000)
    assert dispatches(s.handle(arrived("a", text(("a", 6000)), max_tokens=1000), 0))
    assert dispatches(s.handle(arrived("b", text(("b", 6000)), max_tokens=1000), 1)) == []
    waiting = s.waiting_for("b", 1)
    assert waiting is not None
    assert waiting.reason is Reason.POOL
    assert dispatches(s.handle(finished("a", 6000), 2)) != []


def test_idle_slots_that_a_unified_pool_may_have_emptied_are_not_believed() -> None:
    s = scheduler(slots=2, window=10_000, pool=10_000, guest=False)
    first = serve(s, arrived("a", text(("a", 6000)), 3000, turns=2), 0)
    s.handle(arrived("b", text(("b", 6000)), 3000, turns=2), 1)
    assert s.slots()[first].resident == 0

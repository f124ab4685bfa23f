"""Every token of a prompt falls in one class: each rule as one example, and the law for all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from slotwise.policies.attribution import Attribution, Cause, Difference, Earlier, Facts, attribute
from tests.policies.attributed import CHAT, any_facts


def spans(found: Attribution) -> list[tuple[str, int, int]]:
    return [(cause.value, start, end) for cause, start, end in found.spans]


def earlier(length: int, common: int | None = None, **more: int) -> Earlier:
    shared = length if common is None else common
    return Earlier(length, more.get("computed", length), shared, more.get("answer", 0))


def classes(**facts: Any) -> list[tuple[str, int, int]]:
    return spans(attribute(Facts(**facts)))


def test_a_first_prompt_is_new() -> None:
    assert classes(n=404, cached=0) == [("new", 0, 404)]


def test_what_the_engine_reports_is_cached_though_no_slot_was_known_to_hold_it() -> None:
    facts = {"n": 404, "cached": 380, "here": 100, "elsewhere": 200, "ever": 128}
    assert classes(**facts) == [("cached", 0, 380), ("new", 380, 404)]


def test_a_turn_that_goes_on_is_cached_up_to_the_new_message() -> None:
    facts = {"here": 310, "tail": 50, "earlier": earlier(310, answer=50), "sections": CHAT}
    assert classes(n=404, cached=360, **facts) == [("cached", 0, 360), ("new", 360, 404)]


def test_a_prompt_that_was_held_to_its_end_computes_one_token() -> None:
    held = [("cached", 0, 403), ("min_one", 403, 404)]
    assert classes(n=404, cached=403, here=404) == held
    assert classes(n=404, cached=403, elsewhere=404) == held
    assert classes(n=404, cached=403, earlier=earlier(404)) == held


def test_the_last_token_of_a_prompt_that_was_held_in_vain_is_min_one_too() -> None:
    facts = {"n": 404, "cached": 0, "here": 404}
    assert classes(**facts) == [("engine", 0, 403), ("min_one", 403, 404)]
    facts = {"n": 404, "cached": 0, "elsewhere": 404}
    assert classes(**facts) == [("elsewhere", 0, 403), ("min_one", 403, 404)]


def test_one_new_token_behind_what_was_reused_is_new() -> None:
    assert classes(n=404, cached=403, here=403) == [("cached", 0, 403), ("new", 403, 404)]


def test_a_prompt_that_ends_within_the_answer_computes_one_token() -> None:
    facts = {"here": 310, "tail": 50, "earlier": earlier(310, answer=50)}
    assert classes(n=340, cached=339, **facts) == [("cached", 0, 339), ("min_one", 339, 340)]


def test_what_the_right_slot_held_and_the_engine_did_not_reuse_is_the_engines() -> None:
    facts = {"here": 310, "tail": 50, "earlier": earlier(310, answer=50), "sections": CHAT}
    assert classes(n=404, cached=40, **facts) == [
        ("cached", 0, 40),
        ("engine", 40, 360),  # with the answer: nothing shows that it differs
        ("new", 360, 404),
    ]


def test_what_another_slot_held_lies_elsewhere_with_the_answer_behind_it() -> None:
    facts = {"here": 128, "elsewhere": 310, "sections": CHAT}
    assert classes(n=404, cached=128, **facts, earlier=earlier(310, answer=50)) == [
        ("cached", 0, 128),
        ("elsewhere", 128, 360),
        ("new", 360, 404),
    ]


def test_what_nobody_holds_any_more_is_evicted() -> None:
    assert classes(n=404, cached=64, here=64, ever=256) == [
        ("cached", 0, 64),
        ("evicted", 64, 256),
        ("new", 256, 404),
    ]


def test_the_earlier_prompt_tells_to_the_token_what_is_evicted_and_its_answer_with_it() -> None:
    facts = {"ever": 256, "earlier": earlier(310, answer=50), "sections": CHAT}
    assert classes(n=404, cached=0, **facts) == [("evicted", 0, 360), ("new", 360, 404)]


def test_of_an_earlier_prompt_that_was_ended_early_only_what_was_computed_is_evicted() -> None:
    facts = {"earlier": earlier(310, computed=150, answer=0)}
    assert classes(n=404, cached=0, **facts) == [("evicted", 0, 150), ("new", 150, 404)]


def test_a_difference_is_changed_up_to_the_end_of_what_was_there() -> None:
    before = earlier(310, 120, answer=50)
    found = attribute(Facts(n=404, cached=120, here=120, earlier=before, sections=CHAT))
    assert spans(found) == [("cached", 0, 120), ("changed", 120, 360), ("new", 360, 404)]
    assert found.difference == Difference(120, in_answer=False)
    assert found.bound == 120


def test_what_others_computed_beyond_the_difference_is_evicted() -> None:
    facts = {"here": 120, "ever": 192, "earlier": earlier(310, 120)}
    assert classes(n=404, cached=120, **facts) == [
        ("cached", 0, 120),
        ("evicted", 120, 192),
        ("changed", 192, 310),
        ("new", 310, 404),
    ]


def test_tokens_before_a_difference_that_were_never_computed_are_new() -> None:
    facts = {"earlier": earlier(310, 120, computed=100)}
    assert classes(n=404, cached=0, **facts) == [
        ("evicted", 0, 100),
        ("new", 100, 120),
        ("changed", 120, 310),
        ("new", 310, 404),
    ]


def test_a_prompt_cut_short_has_not_changed() -> None:
    found = attribute(Facts(n=200, cached=0, here=0, earlier=earlier(310, 200)))
    assert spans(found) == [("evicted", 0, 199), ("min_one", 199, 200)]
    assert found.difference is None


def test_an_answer_that_the_engine_stopped_in_came_back_otherwise() -> None:
    before = earlier(310, answer=200)
    found = attribute(Facts(404, 312, here=310, tail=200, earlier=before, sections=CHAT))
    assert spans(found) == [
        ("cached", 0, 312),
        ("changed", 312, 360),  # the answer's turn ends there: its reasoning was left out
        ("new", 360, 404),
    ]
    assert found.difference == Difference(312, in_answer=True)
    assert found.bound == 312


def test_an_answer_of_a_session_unknown_is_told_by_the_slot_alone() -> None:
    assert classes(n=404, cached=310, here=310, tail=20) == [
        ("cached", 0, 310),
        ("changed", 310, 330),
        ("new", 330, 404),
    ]


def test_an_answer_rendered_as_once_before_is_evicted_not_changed() -> None:
    """The slot holds a second answer to the same prompt, the client goes on from the first."""
    facts = {"here": 310, "tail": 50, "ever": 352, "earlier": earlier(310, answer=50)}
    assert classes(n=404, cached=310, **facts, sections=CHAT) == [
        ("cached", 0, 310),
        ("evicted", 310, 352),
        ("changed", 352, 360),
        ("new", 360, 404),
    ]


@pytest.mark.parametrize(
    ("facts", "bound"),
    [
        ({"cached": 0}, 0),
        ({"cached": 403, "here": 404}, 403),
        ({"cached": 0, "elsewhere": 300}, 300),
        ({"cached": 0, "here": 100, "ever": 192}, 192),
        ({"cached": 0, "ever": 192, "earlier": Earlier(310, 310, 310, 50)}, 360),
        ({"cached": 350, "here": 100}, 350),
    ],
)
def test_the_bound_is_the_longest_prefix_ever_computed(facts: dict[str, Any], bound: int) -> None:
    assert attribute(Facts(n=404, **facts)).bound == bound


def test_a_prompt_without_tokens_has_no_class() -> None:
    found = attribute(Facts(n=0, cached=0, here=0))
    assert (found.spans, found.bound) == ((), 0)


@given(any_facts())
def test_the_classes_cover_every_prompt_to_the_token(facts: Facts) -> None:
    found = attribute(facts)
    covered = 0
    for _, start, end in found.spans:
        assert start == covered < end
        covered = end
    assert covered == facts.n
    sizes = dict.fromkeys(Cause, 0)
    for cause, start, end in found.spans:
        sizes[cause] += end - start
    assert sizes[Cause.CACHED] == min(facts.cached, facts.n)
    assert sizes[Cause.MIN_ONE] in (0, 1)
    assert sizes[Cause.UNKNOWN] == 0
    assert (found.difference is not None) == (sizes[Cause.CHANGED] > 0)
    assert sizes[Cause.CACHED] <= found.bound <= max(sizes[Cause.CACHED], facts.n - 1, 0)
    held = (Cause.CACHED, Cause.ENGINE, Cause.ELSEWHERE, Cause.EVICTED)
    assert found.bound <= sum(sizes[cause] for cause in held)

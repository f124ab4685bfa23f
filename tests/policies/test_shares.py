"""A prompt's classes by section, in tokens and seconds: they add up to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given

from slotwise.policies.attribution import (
    RECOMPUTED,
    Facts,
    attribute,
    avoided_s,
    section_at,
    shares,
    token_s,
)
from slotwise.policies.cost import prefill_s
from slotwise.policies.params import Cost
from tests.policies.attributed import CHAT, COST, any_facts


def test_shares_are_cut_at_the_ends_of_sections_and_the_rest_is_unknown() -> None:
    found = attribute(Facts(n=410, cached=150, here=150))
    by_name = {(s.cause.value, s.section): s.tokens for s in shares(found.spans, CHAT, COST)}
    assert by_name == {
        ("cached", "tools"): 100,
        ("cached", "system"): 50,
        ("new", "system"): 50,
        ("new", "user"): 140,
        ("new", "assistant"): 60,
        ("new", "template"): 4,
        ("new", "unknown"): 6,
    }


def test_seconds_are_those_of_computing_and_the_start_belongs_to_no_token() -> None:
    found = attribute(Facts(n=300, cached=100, here=100))
    seconds = {s.section: s.seconds for s in shares(found.spans, CHAT, COST)}
    assert seconds == {"tools": 0, "system": pytest.approx(1), "user": pytest.approx(1)}


def test_what_the_cache_saved_is_the_whole_prefill_less_the_one_that_ran() -> None:
    cost = Cost()
    saved = avoided_s(cost, 10_000, 9_000)
    assert saved == pytest.approx(prefill_s(cost, 0, 10_000) - prefill_s(cost, 9_000, 10_000))
    assert avoided_s(cost, 10_000, 0) == 0


def test_a_position_past_all_sections_lies_in_none() -> None:
    assert section_at(CHAT, 99) == CHAT[0]
    assert section_at(CHAT, 100) == CHAT[1]
    assert section_at(CHAT, 404) is None


@given(any_facts())
def test_the_shares_add_up_to_the_spans(facts: Facts) -> None:
    found = attribute(facts)
    parts = shares(found.spans, facts.sections, COST)
    assert sum(part.tokens for part in parts) == facts.n
    assert len({(part.cause, part.section) for part in parts}) == len(parts)
    computed = [span for span in found.spans if span.cause in RECOMPUTED]
    assert sum(part.seconds for part in parts) == pytest.approx(
        sum(token_s(COST, start, end) for _, start, end in computed)
    )

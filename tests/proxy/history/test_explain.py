"""What a record says in words and as plain data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotwise.policies.attribution import Cause, Share, Span
from slotwise.policies.regret import Loss, Obstacle
from slotwise.policies.types import Reason, Rule, SlotId
from slotwise.proxy.core.events import Failure
from slotwise.proxy.history.explain import (
    ExplainQuery,
    Texts,
    as_json,
    culprit,
    ids_to_show,
    lines,
    listing,
    sections,
    short_diff,
    wanted,
)
from slotwise.proxy.history.record import Changed, DisplacedBy, Known, Record

CLOCK = Texts(
    "Current time: 10:31:05\nYou are a helpful assistant.",
    "Current time: 10:32:17\nYou are a helpful assistant.",
)
CHANGED = Changed(214, "system", 0, False, (1, 2), (3, 4), (5, 6))


def record(*spans: tuple[Cause, int], **more: Any) -> Record:
    """A record of spans of these lengths, all in the system text; a second per 100 tokens."""
    found: list[Span] = []
    for cause, length in spans:
        start = found[-1].end if found else 0
        found.append(Span(cause, start, start + length))
    told: dict[str, Any] = {
        "id": "req-1",
        "profile": "p",
        "session": "s",
        "kind": "agent",
        "key": "ann",
        "time": 1030.0,
        "slot": SlotId("e", 1),
        "rule": Rule.HOME,
        "prompt_tokens": found[-1].end,
        "expected_cached": 9000,
        "cached": sum(s.end - s.start for s in found if s.cause is Cause.CACHED),
        "spans": tuple(found),
        "shares": tuple(Share(c, "system", n, n / 100) for c, n in spans),
        "bound": 10_000,
        "avoided_s": 4.0,
        "changed": None,
        "displaced": None,
        "wait_s": 10.0,
        "took_s": 20.0,
        "out_tokens": 7,
        "failure": None,
        "cache_prompt": True,
        "known": Known(),
        "why": "shares 9000 of 9001 tokens served there",
        "wait_reason": Reason.HOME_BUSY,
        "regret": (Loss(Obstacle.BUSY, 10.0),),
    }
    return Record(**{**told, **more})


def changed(**more: Any) -> Record:
    spans = ((Cause.CACHED, 214), (Cause.CHANGED, 9812), (Cause.NEW, 214))
    return record(*spans, **{"changed": CHANGED, **more})


def test_the_first_line_names_what_changed_and_shows_it() -> None:
    assert lines(changed(), CLOCK)[0] == (
        "9,812 of 10,240 tokens were computed again because the system text (messages[0]) "
        'changed at token 214: "...10:31:05" became "...10:32:17"'
    )


def test_without_the_right_to_see_it_no_text_is_shown() -> None:
    assert culprit(changed()).endswith("the system text (messages[0]) changed at token 214")
    told = as_json(changed())["changed"]
    assert told == {"section": "system", "message": 0, "position": 214, "in_answer": False}


@pytest.mark.parametrize(
    ("section", "message", "words"),
    [
        ("tools", -1, "the tools changed"),
        ("user", 3, "the user text (messages[3]) changed"),
        ("assistant", 4, "the assistant text (messages[4]) changed"),
        ("tool", 5, "the tool result (messages[5]) changed"),
        ("template", -1, "the text of the chat template changed"),
        ("unknown", -1, "the prompt changed"),
    ],
)
def test_each_section_has_its_words(section: str, message: int, words: str) -> None:
    where = replace(CHANGED, section=section, message=message)
    assert f"because {words} at token 214" in culprit(changed(changed=where))


def test_an_answer_that_came_back_otherwise_is_said_so_even_with_texts() -> None:
    where = replace(CHANGED, section="assistant", message=4, in_answer=True, before=())
    assert culprit(changed(changed=where), Texts("", "x")).endswith(
        "because the answer (messages[4]) came back otherwise than it was generated, "
        "from token 214 on"
    )


def test_a_wrong_slot_is_named_with_its_rule() -> None:
    told = culprit(record((Cause.CACHED, 10), (Cause.ELSEWHERE, 90), rule=Rule.AFFINITY))
    assert told == (
        "90 of 100 tokens were computed again because another slot held them: "
        "rule affinity chose slot e/1"
    )


@pytest.mark.parametrize(
    ("displaced", "words"),
    [
        (DisplacedBy("req-0", 990.0), "request req-0 had displaced them 30 s before"),
        (DisplacedBy("", 1000.0), "the engine that held them had ended 20 s before"),
        (None, "they had been displaced from the cache"),
    ],
)
def test_who_displaced_it_and_when_is_told_where_known(
    displaced: DisplacedBy | None, words: str
) -> None:
    told = culprit(record((Cause.EVICTED, 90), (Cause.NEW, 10), displaced=displaced))
    assert told == f"90 of 100 tokens were computed again because {words}"


def test_the_engine_is_blamed_unless_the_client_asked_for_no_reuse() -> None:
    spans = ((Cause.ENGINE, 90), (Cause.MIN_ONE, 1))
    again = "90 of 91 tokens were computed again because "
    told = again + "the engine could not reuse them, though slot e/1 held them"
    assert culprit(record(*spans)) == told
    asked = again + "the request asked for it (cache_prompt: false)"
    assert culprit(record(*spans, cache_prompt=False)) == asked


def test_the_largest_avoidable_cause_is_the_culprit() -> None:
    spans = ((Cause.ELSEWHERE, 5), (Cause.EVICTED, 20), (Cause.NEW, 900))
    assert "displaced" in culprit(record(*spans))


def test_a_request_that_lost_nothing_says_what_was_new() -> None:
    told = culprit(record((Cause.CACHED, 90), (Cause.NEW, 10)))
    assert told == "90 of 100 tokens came from the cache; 10 were new"


def test_what_is_not_known_is_said_to_be_so() -> None:
    spans = ((Cause.UNKNOWN, 50),)
    silent = record(*spans, cached=None, bound=None)
    assert culprit(silent) == "the engine did not say how many of 50 tokens it reused"
    gone = replace(silent, failure=Failure.CLIENT_GONE)
    assert culprit(gone).startswith("ended early (client_gone)")
    other = record((Cause.CACHED, 40), *spans)
    assert culprit(other) == (
        "40 of 90 tokens came from the cache; no cause is known for the rest: "
        "the engine counts other tokens"
    )


def test_the_second_line_says_where_and_when_it_ran() -> None:
    told = lines(changed(known=Known(ttft_s=1.25)))[1]
    assert told == (
        "request req-1, agent of session s, slot e/1 by rule home, waited 10.0 s, "
        "first token after 1.2 s, lost 98.1 s, saved 4.0 s of prefill"
    )


def test_sections_add_up_in_the_order_of_a_prompt() -> None:
    parts = (
        Share(Cause.CACHED, "system", 10, 0),
        Share(Cause.CHANGED, "system", 20, 2.0),
        Share(Cause.CHANGED, "user", 5, 0.5),
        Share(Cause.NEW, "user", 7, 0.7),
    )
    found = sections(record((Cause.CACHED, 10), (Cause.CHANGED, 25), (Cause.NEW, 7), shares=parts))
    assert found == [
        {
            "section": "system",
            "tokens": 30,
            "cached": 10,
            "computed": {"changed": 20},
            "lost_s": 2.0,
        },
        {
            "section": "user",
            "tokens": 12,
            "cached": 0,
            "computed": {"changed": 5, "new": 7},
            "lost_s": 0.5,
        },
    ]


def test_the_json_has_the_sums_and_the_times() -> None:
    evicted = record((Cause.EVICTED, 90), (Cause.NEW, 10), displaced=DisplacedBy("req-0", 990.0))
    told = as_json(evicted)
    assert told["tokens"] == {"evicted": 90, "new": 10}
    assert told["evicted"] == {"by": "req-0", "time": 990.0}
    assert (told["slot"], told["rule"], told["lost_s"], told["took_s"]) == ("e/1", "home", 0.9, 20)
    body = listing([evicted, changed(id="req-2")], {"req-2": CLOCK})
    assert [one["id"] for one in body["requests"]] == ["req-1", "req-2"]
    assert body["requests"][1]["changed"]["before"] == "...10:31:05"


def test_the_ids_to_show_begin_with_what_both_have() -> None:
    assert ids_to_show(changed()) == ([1, 2, 3, 4], [1, 2, 5, 6])
    assert ids_to_show(record((Cause.NEW, 1))) is None


# ---------------------------------------------------------------- what differs


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (*CLOCK, ("...10:31:05", "...10:32:17")),
        ("cch=ab12; and more", "cch=cd34; and more", ("cch=ab12", "cch=cd34")),
        ("one", "two", ("one", "two")),
        ("the same text", "the same text", ("...text", "...text")),
        ("a word went", "a word", ("...word went", "...word")),
        ("", "added", ("", "added")),
    ],
)
def test_a_difference_is_cut_to_the_words_that_differ(
    before: str, after: str, shown: tuple[str, str]
) -> None:
    assert short_diff(before, after) == shown


def test_a_long_difference_is_cut_and_what_moves_the_cursor_is_escaped() -> None:
    before, after = short_diff("x" * 500, "\x1b[2J\ud800" + "y" * 500)
    assert before == "x" * 60 + "..."
    assert after.startswith("\\x1b[2J\\ud800yyy")
    assert after.isprintable()


# ---------------------------------------------------------------- the query


def test_the_query_has_a_default_and_a_limit() -> None:
    assert wanted({}) == ExplainQuery(None, 20)
    assert wanted({"session": "s", "last": "7"}) == ExplainQuery("s", 7)
    assert wanted({"last": "5000"}) == ExplainQuery(None, 1000)


@pytest.mark.parametrize("last", ["0", "-1", "x", "", "1.5", "²", "9" * 5000])
def test_a_number_that_is_none_is_refused_in_words(last: str) -> None:
    with pytest.raises(ValueError, match=r"^last: expected 1 to 1000, got '.{0,20}'$"):
        wanted({"last": last})


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="since: unknown parameter, expected session or last"):
        wanted({"since": "1"})

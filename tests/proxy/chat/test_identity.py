"""Which conversation is this: the cases met in the field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from slotwise.proxy.chat.sessions import FRONT, Session
from tests.proxy import claude_shapes
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Talk, Wire, talk, tools, used
from tests.proxy.conversations import FIVE, WORK, Proxy, hinted, one, plain


def test_r03_a_changing_billing_line_makes_no_stranger(proxy: Proxy) -> None:
    anthropic = proxy.ids(
        claude_shapes.claude_code(FIVE[:1], cch="00af1", header=False),
        claude_shapes.claude_code(FIVE[:3], cch="9bc3e", header=False),
        claude_shapes.claude_code(FIVE, cch="1d2e3", header=False),
    )
    assert one(anthropic)
    for as_parts in (False, True):
        translated = [
            proxy(
                claude_shapes.claude_code_translated(FIVE[:n], cch, as_parts=as_parts),
                key=f"{as_parts}",
            ).id
            for n, cch in ((1, "00af1"), (3, "9bc3e"), (5, "1d2e3"))
        ]
        assert one(translated)


def test_r03_the_billing_line_does_not_make_short_system_texts_alike(proxy: Proxy) -> None:
    def ask(prompt: str, cch: str) -> Wire:
        return claude_shapes.claude_code_translated(FIVE[:1], cch, prompt=prompt)

    assert one(proxy.ids(ask("Be kind.", "abcde"), ask("Be kind.", "fedcb")))
    assert not one(proxy.ids(ask("Be kind.", "abcde"), ask("Write poems.", "abcde")))


def test_r03_users_who_quote_different_billing_lines_are_two(proxy: Proxy) -> None:
    assert not one(
        proxy.ids(
            plain(talk(claude_shapes.billing("00af1"))), plain(talk(claude_shapes.billing("9bc3e")))
        )
    )


def test_r06_a_clock_in_the_system_text_makes_no_stranger(proxy: Proxy) -> None:
    system = "You are a kind assistant. It is Tuesday, 3 February 2026, {}. Answer in English."
    first = proxy(plain(FIVE[:1], system.format("11:59:58 AM")))
    other = proxy(plain(talk("Write a poem"), system.format("11:59:59 AM")))
    second = proxy(plain(FIVE[:3], system.format("12:00:07 PM")))
    third = proxy(plain(FIVE, system.format("12:01:30 PM")))
    assert first.id == second.id == third.id != other.id
    assert second == Session(first.id, "turns", 2, changed_at=0)


def test_r06_the_position_of_the_first_difference_is_told(proxy: Proxy) -> None:
    assert proxy(plain(FIVE[:3], "Be kind.")).changed_at is None
    assert proxy(plain(FIVE, "Be kind.")).changed_at is None
    edited = [*FIVE[:3], {"role": "assistant", "content": "Done!"}, FIVE[4]]
    assert proxy(plain(edited, "Be kind.")).changed_at == 4


def test_r08_a_retry_is_the_same_conversation_and_no_new_turn(proxy: Proxy) -> None:
    first, again = proxy(plain(FIVE)), proxy(plain(FIVE))
    assert again == Session(first.id, "turns", turns_seen=1, changed_at=None)


def test_r08_a_retry_under_another_id_is_the_same_conversation(proxy: Proxy) -> None:
    assert one(proxy.ids(*(hinted(FIVE[:1], f"try-{n}") for n in range(3))))


@pytest.mark.parametrize("reasoning", [None, "", "I should ask which one. " * 50])
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_r13_reasoning_that_is_dropped_emptied_or_added_makes_no_stranger(
    proxy: Proxy, field: str, reasoning: str | None
) -> None:
    replayed = copy.deepcopy(FIVE)
    replayed[1][field] = "Which bug can it be?"
    first = proxy(plain(replayed[:3]))
    replayed[1][field] = reasoning
    if reasoning is None:
        del replayed[1][field]
    second = proxy(plain(replayed))
    assert second.id == first.id
    assert second.changed_at == 1


def test_r13_reasoning_inside_the_answer_makes_no_stranger(proxy: Proxy) -> None:
    thought = copy.deepcopy(FIVE)
    thought[1]["content"] = "<think>\nWhich bug?\n</think>\n\nWhich one?"
    assert one(proxy.ids(plain(thought[:3]), plain(FIVE)))
    blocks = claude_shapes.claude_code(FIVE[:3]), claude_shapes.claude_code(FIVE)
    blocks[0].body["messages"][1]["content"].insert(0, {"type": "thinking", "thinking": "Hm."})
    assert one(proxy.ids(*blocks))


def test_r15_tools_in_another_order_make_no_stranger(proxy: Proxy) -> None:
    one_way = shapes.opencode(WORK[:1], session="", offered=("a", "b", "c"))
    other_way = shapes.opencode(WORK[:3], session="", offered=("c", "a", "b"))
    assert one(proxy.ids(one_way, other_way))
    third = proxy(shapes.opencode(WORK, session="", offered=("b", "a", "c")))
    assert third.changed_at == FRONT


def test_r16_an_edited_and_a_regenerated_turn_keep_the_conversation(proxy: Proxy) -> None:
    edited = [*FIVE[:4], {"role": "user", "content": "Now c.py"}]
    assert one(proxy.ids(plain(FIVE[:1]), plain(FIVE[:3]), plain(FIVE), plain(edited)))
    assert one(proxy.ids(plain(FIVE), plain(FIVE[:3])))


def test_r18_sub_agents_are_other_conversations_even_with_the_parents_id(proxy: Proxy) -> None:
    def sub(said: Talk) -> Wire:
        prompt = "You are a file search specialist. You excel at navigating codebases."
        return claude_shapes.claude_code(said, agent="agent-1", prompt=prompt)

    found = [*talk("Find the callers of f"), *used("Grep", "a.py:3"), *used("Read", "f()", "c2")]
    parent = [proxy(claude_shapes.claude_code(WORK[:3])).id]
    agents = proxy.ids(sub(found[:1]), sub(found[:3]), sub(found))
    parent.append(proxy(claude_shapes.claude_code(WORK)).id)
    assert one(parent)
    assert one(agents)
    assert parent[0] != agents[0]


@pytest.mark.parametrize("session", ["ses_1", ""])
def test_r18_another_system_text_on_the_same_first_turn_is_another(
    proxy: Proxy, session: str
) -> None:
    main = [shapes.opencode(WORK[:n], session=session) for n in (1, 3, 5)]
    prompt = "You are a reviewer. Read the change with care and list what is wrong with it. "
    sub = [shapes.opencode(WORK[:n], session=session, prompt=prompt) for n in (1, 3, 5)]
    mixed = [proxy(wire).id for pair in zip(main, sub, strict=True) for wire in pair]
    assert one(mixed[::2])
    assert one(mixed[1::2])
    assert mixed[0] != mixed[1]


def test_r18_a_sub_agent_that_reads_the_same_project_notes_is_another(proxy: Proxy) -> None:
    notes = " ".join(f"Rule {word}: keep {word} short." for word in "abcdefghijklmnopqrstuvwxyz")
    system = ("You are the main agent, who plans. " + notes, "Search files. Be brief. " + notes)
    ids = [proxy(plain(WORK[:n], system[who])).id for n in (1, 3, 5) for who in (0, 1)]
    assert one(ids[::2])
    assert one(ids[1::2])
    assert ids[0] != ids[1]


def test_r18_the_same_question_with_other_tools_is_another(proxy: Proxy) -> None:
    offers: list[list[Any]] = [tools("a", "b", "c"), tools("c", "d", "e"), []]
    ids = proxy.ids(*(plain(FIVE[:1], "Be kind.", tools=offered) for offered in offers))
    assert len(set(ids)) == 3


def test_r20_title_jobs_are_no_turn_of_the_conversation_whose_id_they_carry(proxy: Proxy) -> None:
    title = proxy(shapes.opencode_title("Fix the bug"))
    turns = [proxy(shapes.opencode(WORK[:n])) for n in (1, 3, 5)]
    assert one([turn.id for turn in turns])
    assert [turn.basis for turn in turns] == ["new", "hint", "hint"]
    assert title.id != turns[0].id
    chats = proxy.ids(shapes.open_webui(FIVE[:3], "c1"), shapes.open_webui(FIVE, "c1"))
    jobs = proxy.ids(
        shapes.open_webui_title(FIVE[:4], "c1"), shapes.open_webui_tags(FIVE[:4], "c1")
    )
    assert one(chats)
    assert len({*chats, *jobs}) == 3

"""Where one conversation becomes two: same beginnings, edits, keys and ids."""

from __future__ import annotations

from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Wire, talk
from tests.proxy.conversations import FIVE, WORK, Proxy, hinted, one, plain


def test_two_chats_with_the_same_beginning_are_two_once_they_part(proxy: Proxy) -> None:
    cats = [*talk("hi", "hello", "cats?"), *talk("", "they purr", "why?")[1:]]
    dogs = [*talk("hi", "hello", "dogs?"), *talk("", "they bark", "why?")[1:]]
    proxy.ids(plain(cats[:1]), plain(dogs[:1]))
    a, b = proxy.ids(plain(cats[:3]), plain(dogs[:3]))
    assert a != b
    assert proxy.ids(plain(cats), plain(dogs), plain(cats), plain(dogs)) == [a, b, a, b]


def test_a_chat_that_begins_like_one_that_has_gone_on_is_another(proxy: Proxy) -> None:
    a = proxy.ids(plain(talk("hi")), plain(talk("hi", "hello", "cats?")))
    assert one(a)
    assert proxy(plain(talk("hi"))).id != a[0]


def test_the_same_turns_after_other_answers_are_another_conversation(proxy: Proxy) -> None:
    def quiz(answer: str, n: int) -> Wire:
        return plain(talk("Ask me", answer, "yes", answer + "!", "no", answer + "?", "yes")[:n])

    a = proxy.ids(quiz("Is it red?", 3), quiz("Is it red?", 5))
    b = proxy.ids(quiz("Is it big?", 3), quiz("Is it big?", 5))
    assert one(a)
    assert one(b)
    assert a[0] != b[0]
    assert proxy.ids(quiz("Is it red?", 7), quiz("Is it big?", 7)) == [a[0], b[0]]


def test_questions_behind_the_same_examples_are_not_edits_of_each_other(proxy: Proxy) -> None:
    shots = talk("2+2", "4", "3+3", "6", "4+4", "8")
    ids = proxy.ids(*(plain([*shots, *talk(f"{n}+1")]) for n in range(5, 9)))
    assert len(set(ids)) == 4


def test_an_edit_becomes_a_conversation_of_its_own_when_the_old_line_goes_on(proxy: Proxy) -> None:
    fork = [*FIVE[:4], {"role": "user", "content": "Now c.py"}]
    old = proxy.ids(plain(FIVE[:1]), plain(FIVE[:3]), plain(FIVE))[-1]
    assert proxy(plain(fork)).id == old
    line, other = [*FIVE, *talk("", "ok", "d.py")[1:]], [*fork, *talk("", "ok", "e.py")[1:]]
    a, b = proxy.ids(plain(line), plain(other))
    assert a != b
    assert proxy.ids(plain(line), plain(other)) == [a, b]


def test_a_conversation_belongs_to_one_key(proxy: Proxy) -> None:
    wire = shapes.opencode(WORK)
    assert proxy(wire, key="ann").id != proxy(wire, key="bob").id


def test_chats_under_different_steady_ids_are_two_from_the_next_first_turn(proxy: Proxy) -> None:
    a = proxy.ids(hinted(FIVE[:1], "a"), hinted(FIVE[:1], "a"))
    b = proxy.ids(hinted(FIVE[:1], "b"), hinted(FIVE[:3], "b"))
    assert one(a)
    assert one(b)
    assert a[0] != b[0]
    assert proxy(hinted(FIVE[:3], "a")).id == a[0]


def test_an_id_that_never_changes_does_not_join_what_parts(proxy: Proxy) -> None:
    a = proxy.ids(*(hinted(talk("a", "b", "c", "d", "e")[:n], "app") for n in (1, 3, 5)))
    b = proxy.ids(*(hinted(talk("x", "y", "c", "d", "e")[:n], "app") for n in (1, 3, 5)))
    c = proxy.ids(*(hinted(talk("a", "B", "C", "d", "e")[:n], "app") for n in (3, 5)))
    assert one(a)
    assert one(b)
    assert one(c)
    assert len({a[0], b[0], c[0]}) == 3


def test_a_hint_carries_a_conversation_over_an_edit_of_its_second_turn(proxy: Proxy) -> None:
    edited = talk("Fix the bug", "Which one?", "In z.py")
    assert one(proxy.ids(*(hinted(said, "a") for said in (FIVE[:1], FIVE[:3], edited))))

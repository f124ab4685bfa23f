"""Which conversation is this: the field's cases, bounds, and recorded conversations."""

from __future__ import annotations

import copy
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import trace
from proxy.identity import FRONT, UNKNOWN, Session, SessionTable
from proxy.shapes import hint_of
from tests import support
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Talk, Wire, talk, tools, used


class Proxy:
    """A table, a key and a clock that goes on."""

    def __init__(self, **bounds: Any) -> None:
        self.table = SessionTable(**bounds)
        self.now = 0.0

    def __call__(self, wire: Wire, key: str = "ann", after_s: float = 1.0) -> Session:
        self.now += after_s
        return self.table.identify(wire.headers, wire.body, key, self.now)

    def ids(self, *wires: Wire) -> list[str]:
        return [self(wire).id for wire in wires]


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


def plain(said: Talk, system: str = "", **fields: Any) -> Wire:
    head = [{"role": "system", "content": system}] if system else []
    return Wire({}, {"messages": [*head, *said], **fields})


def hinted(said: Talk, hint: str) -> Wire:
    return Wire({"x-session-id": hint}, {"messages": said})


def one(ids: Sequence[str]) -> bool:
    return len(set(ids)) == 1 and ids[0] != ""


FIVE = talk("Fix the bug", "Which one?", "In a.py", "Done.", "Now b.py")
WORK = [*talk("Fix the bug"), *used("read", "x = 1"), *used("edit", "ok", "call_2")]


# ---------------------------------------------------------------- the field's cases


def test_r03_a_changing_billing_line_makes_no_stranger(proxy: Proxy) -> None:
    anthropic = proxy.ids(
        shapes.claude_code(FIVE[:1], cch="00af1", header=False),
        shapes.claude_code(FIVE[:3], cch="9bc3e", header=False),
        shapes.claude_code(FIVE, cch="1d2e3", header=False),
    )
    assert one(anthropic)
    for as_parts in (False, True):
        translated = [
            proxy(
                shapes.claude_code_translated(FIVE[:n], cch, as_parts=as_parts), key=f"{as_parts}"
            ).id
            for n, cch in ((1, "00af1"), (3, "9bc3e"), (5, "1d2e3"))
        ]
        assert one(translated)


def test_r03_users_who_quote_different_billing_lines_are_two(proxy: Proxy) -> None:
    assert not one(
        proxy.ids(plain(talk(shapes.billing("00af1"))), plain(talk(shapes.billing("9bc3e"))))
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
    blocks = shapes.claude_code(FIVE[:3]), shapes.claude_code(FIVE)
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
        return shapes.claude_code(said, agent="agent-1", prompt=prompt)

    found = [*talk("Find the callers of f"), *used("Grep", "a.py:3"), *used("Read", "f()", "c2")]
    parent = [proxy(shapes.claude_code(WORK[:3])).id]
    agents = proxy.ids(sub(found[:1]), sub(found[:3]), sub(found))
    parent.append(proxy(shapes.claude_code(WORK)).id)
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


# ---------------------------------------------------------------- clients


def test_reminders_and_cache_marks_that_move_make_no_stranger(proxy: Proxy) -> None:
    for header in (True, False):
        wires = (
            shapes.claude_code(FIVE[:1], reminder_at=0, header=header),
            shapes.claude_code(FIVE[:3], reminder_at=1, header=header),
            shapes.claude_code(FIVE, reminder_at=2, header=header),
            shapes.claude_code(FIVE, header=header),
        )
        for wire in () if header else wires:
            del wire.body["metadata"]
        assert one([proxy(wire, key=f"{header}").id for wire in wires])


def test_a_reminder_as_a_message_of_its_own_is_no_turn(proxy: Proxy) -> None:
    reminder = talk("<system-reminder>Plan mode is on.</system-reminder>")
    assert one(proxy.ids(plain([*FIVE[:3], *reminder]), plain([*reminder, *FIVE])))


def test_a_cache_mark_is_no_change(proxy: Proxy) -> None:
    proxy(shapes.claude_code(FIVE[:3], cch="00000"))
    assert proxy(shapes.claude_code(FIVE, cch="00000")).changed_at is None


def test_aider_is_known_by_its_users_turns_whatever_map_and_files_say(proxy: Proxy) -> None:
    def turn(n: int, repo_map: str, files: str) -> Wire:
        return shapes.aider(FIVE[: n - 1], FIVE[n - 1]["content"], repo_map, files)

    ids = proxy.ids(turn(1, "a.py", ""), turn(3, "a.py b.py", "x = 1"), turn(5, "b.py", "x = 2"))
    assert one(ids)
    assert proxy(shapes.aider([], "Write docs", "a.py", "x = 1")).id != ids[0]


def test_retrieved_text_before_the_last_question_makes_no_stranger(proxy: Proxy) -> None:
    chats = [shapes.open_webui(FIVE[:n], context=f"Notes {n}. " * 90) for n in (1, 3, 5)]
    assert one(proxy.ids(*chats))


def test_results_cleared_in_the_middle_make_no_stranger(proxy: Proxy) -> None:
    def history(steps: int) -> Talk:
        cleared = [
            used("run", f"line {n}" if n >= steps - 3 else "[cleared]", f"c{n}")
            for n in range(steps)
        ]
        return [*talk("Fix the bug"), *(m for step in cleared for m in step)]

    assert one(proxy.ids(*(plain(history(n)) for n in range(12))))


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"x-session-affinity": "a", "x-session-id": "b"}, {}, ("affinity", "a")),
        ({"x-session-id": "b", "x-claude-code-session-id": "c"}, {}, ("affinity", "b")),
        ({"x-claude-code-session-id": "c"}, {}, ("claude", "c/")),
        (
            {"x-claude-code-session-id": "c", "x-claude-code-agent-id": "d"},
            {},
            ("claude", "c/d"),
        ),
        ({}, {"metadata": {"user_id": "user_1_account_2_session_e"}}, ("claude", "e/")),
        ({}, {"metadata": {"user_id": "user_1"}, "prompt_cache_key": "f"}, ("cache key", "f")),
        ({"x-openwebui-chat-id": "h"}, {"promptCacheKey": "g"}, ("cache key", "g")),
        ({"x-openwebui-chat-id": "h", "session-id": "i"}, {}, ("open webui", "h")),
        ({"session-id": "i"}, {}, ("codex", "i")),
        ({"session-id": " "}, {"metadata": 3, "prompt_cache_key": 4}, None),
    ],
)
def test_the_first_hint_that_is_there_counts(
    headers: dict[str, str], body: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert hint_of(headers, body) == expected


# ---------------------------------------------------------------- one or two


def test_two_chats_with_the_same_beginning_are_two_once_they_part(proxy: Proxy) -> None:
    cats = [*talk("hi", "hello", "cats?"), *talk("", "they purr", "why?")[1:]]
    dogs = [*talk("hi", "hello", "dogs?"), *talk("", "they bark", "why?")[1:]]
    proxy.ids(plain(cats[:1]), plain(dogs[:1]))
    a, b = proxy.ids(plain(cats[:3]), plain(dogs[:3]))
    assert a != b
    assert proxy.ids(plain(cats), plain(dogs), plain(cats), plain(dogs)) == [a, b, a, b]


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


# ---------------------------------------------------------------- raw prompts, odd bodies


def test_a_raw_prompt_is_known_by_its_hint_alone(proxy: Proxy) -> None:
    raw = shapes.continue_autocomplete("def f(")
    assert proxy(raw) is UNKNOWN
    a = raw._replace(headers={"x-session-id": "a"})
    b = raw._replace(headers={"x-session-id": "b"})
    ids = proxy.ids(a, b, a)
    assert ids[0] == ids[2] != ids[1] != ""
    assert proxy(a).basis == "hint"


def test_an_id_tells_nothing_of_the_text(proxy: Proxy) -> None:
    found = proxy(plain(FIVE)).id
    assert len(found) == 16
    assert set(found) <= set("0123456789abcdef")
    salted = Proxy(salt=b"another process")
    assert salted(plain(FIVE)).id != found


DEEP: Any = "x"
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None, "tools": 3},
        {"messages": "hi", "system": [1, None]},
        {"messages": [None, 1, "x"]},
        {"messages": [{"role": 3, "content": {}}, {"content": [1, {"type": "text"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [1, {"function": None}]}]},
        {"messages": [{"role": "user", "content": "\ud800 lone"}]},
        {"messages": [{"role": "user", "content": [{"type": "x", "image_url": DEEP}]}]},
        {"messages": [{"role": "system", "content": "nothing else"}]},
        {"messages": [{"role": "user", "content": "<system-reminder>" * 20_000}]},
        {"tools": [{"type": "function"}, {"name": 3}], "metadata": {"user_id": 3}},
    ],
)
def test_any_shape_of_body_is_taken(proxy: Proxy, body: dict[str, Any]) -> None:
    wire = Wire({"x-session-id": "a"}, body)
    assert proxy(wire).id == proxy(wire).id


# ---------------------------------------------------------------- bounds


def test_ten_thousand_random_ids_on_one_conversation_are_one_session(proxy: Proxy) -> None:
    draw = random.Random(1)
    ids = {proxy(hinted(FIVE, f"{draw.getrandbits(64):x}"), after_s=0.01).id for _ in range(10_000)}
    assert len(ids) == 1
    assert len(proxy.table) == 1


def test_ten_thousand_conversations_leave_a_bounded_table() -> None:
    proxy = Proxy(max_sessions=500)
    for n in range(10_000):
        proxy(hinted(talk(f"question {n}"), f"id {n}"), after_s=0.01)
    assert len(proxy.table) == 500
    assert proxy.table.digests == 500 * 3


def test_the_conversation_used_longest_ago_is_forgotten_first() -> None:
    proxy = Proxy(max_sessions=2)
    a, b = proxy.ids(plain(talk("a")), plain(talk("b")))
    assert proxy(plain(talk("a"))).id == a
    proxy(plain(talk("c")))
    assert proxy(plain(talk("a"))).id == a
    assert proxy(plain(talk("b"))).id != b


def test_long_histories_are_bounded_together_but_the_newest_stays() -> None:
    proxy = Proxy(max_digests=1000)
    for n in range(20):
        proxy(plain(talk(*(f"{n} {turn}" for turn in range(101)))))
    assert 1 <= len(proxy.table) < 20
    assert proxy.table.digests <= 1000
    giant = plain(talk(*(f"turn {turn}" for turn in range(3001))))
    assert one(proxy.ids(giant, giant))
    assert len(proxy.table) == 1


def test_a_conversation_expires_after_half_an_hour_of_silence(proxy: Proxy) -> None:
    first = proxy(plain(FIVE[:3]))
    assert proxy(plain(FIVE[:3]), after_s=1799).id == first.id
    later = proxy(plain(FIVE), after_s=1801)
    assert later.id != first.id
    assert later.basis == "new"
    assert len(proxy.table) == 1


def test_a_clock_that_goes_back_does_no_harm(proxy: Proxy) -> None:
    assert one([proxy(plain(FIVE), after_s=s).id for s in (5, -3, 10)])


def test_a_thousand_chats_that_begin_alike_cost_no_search_through_all(proxy: Proxy) -> None:
    chats = [talk("hi", "hello", f"about {n}", "yes?", f"more of {n}") for n in range(1000)]
    ids = [proxy(plain(chat[:3]), after_s=0).id for chat in chats]
    began = time.perf_counter()
    again = [proxy(plain(chat), after_s=0).id for chat in chats]
    assert time.perf_counter() - began < 3.0
    assert again == ids
    assert len(set(ids)) == 1000


def test_a_long_history_costs_little_more_than_a_hash_of_it(proxy: Proxy) -> None:
    said = [*talk("Fix the bug")]
    for n in range(200):
        said += used("read", f"{n} lorem ipsum dolor " * 100, f"c{n}", path=f"{n}.py")
    proxy(plain(said[:-2], "You are an agent. " * 500, tools=tools(*map(str, range(60)))))
    wire = plain(said, "You are an agent. " * 500, tools=tools(*map(str, range(60))))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        proxy(wire)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.02  # 420 kB; 2 ms where nothing else runs


# ---------------------------------------------------------------- properties


def noisy(draw: random.Random, said: Talk) -> Wire:
    """The conversation so far, with everything changed that changes by itself."""
    system = f"You are a helpful assistant. It is {draw.randrange(24)}:{draw.randrange(60)}."
    history = copy.deepcopy(said)
    for message in history:
        if message["role"] == "assistant":
            reasoning = draw.choice([None, "", "hm", f"let me think {draw.random()}"])
            message |= {"reasoning_content": reasoning} if reasoning is not None else {}
        elif draw.random() < 0.3:
            message["content"] += f"\n<system-reminder>{draw.random()}</system-reminder>"
    offered = tools("a", "b", "c", "d")
    draw.shuffle(offered)
    headers = {"x-session-id": f"{draw.random()}"} if draw.random() < 0.5 else {}
    messages = [{"role": "system", "content": system}, *history]
    return Wire(headers, {"messages": messages, "tools": offered})


@given(st.integers(0, 2**32), st.integers(2, 8), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_a_conversation_keeps_its_id_under_noise_and_shares_it_with_no_other(
    seed: int, conversations: int, turns: int
) -> None:
    draw = random.Random(seed)
    table = SessionTable()
    texts = [[f"turn {n} of {c}" for n in range(2 * turns - 1)] for c in range(conversations)]
    order = [c for c in range(conversations) for _ in range(turns)]
    draw.shuffle(order)
    done: dict[int, int] = defaultdict(int)
    ids: dict[int, set[str]] = defaultdict(set)
    for now, c in enumerate(order):
        said = talk(*texts[c][: 2 * done[c] + 1])
        done[c] += draw.random() < 0.9  # else: the same request again
        wire = noisy(draw, said)
        ids[c].add(table.identify(wire.headers, wire.body, "ann", float(now)).id)
    assert [len(found) for found in ids.values()] == [1] * len(ids)
    assert len(set().union(*ids.values())) == len(ids)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3)), max_size=80))
@settings(max_examples=60, deadline=None)
def test_the_table_keeps_its_bounds_and_its_indexes_whatever_comes(
    requests: list[tuple[int, int, int]],
) -> None:
    table = SessionTable(max_sessions=5, max_digests=60, expire_s=20)
    for now, (text, turns, hint) in enumerate(requests):
        said = talk(*(f"{text if n else 'hi'} {n}" for n in range(2 * turns - 1)))
        headers = {"x-session-id": str(hint)} if hint else {}
        table.identify(headers, {"messages": said}, "ann", float(now))
        assert 1 <= len(table) <= 5
        assert table.digests <= 60
    table.identify({}, {}, "ann", 1e6)
    assert (len(table), table.digests) == (0, 0)
    assert not any((table._by_hint.buckets, table._by_tip.buckets, table._by_first.buckets))


# ---------------------------------------------------------------- recorded conversations


def ids_of_trace(name: str, live: int) -> dict[str, list[str]]:
    """The ids of each recorded conversation's calls, ``live`` conversations interleaved."""
    support.trace(f"{name}.jsonl")
    calls: dict[str, list[trace.Call]] = defaultdict(list)
    for call in trace.read(name):
        calls[call.session].append(call)
    table, ids = SessionTable(), defaultdict(list)
    for now, call in enumerate(interleaved(list(calls.values()), live)):
        body = {"messages": call.messages, "tools": call.tools}
        ids[call.session].append(table.identify({}, body, "ann", float(now)).id)
    return ids


def interleaved(sessions: list[list[trace.Call]], live: int) -> Iterator[trace.Call]:
    waiting = [iter(session) for session in sessions]
    running, waiting = waiting[:live], waiting[live:]
    while running:
        for session in list(running):
            call = next(session, None)
            if call is None:
                running.remove(session)
                running += [waiting.pop(0)] if waiting else []
            else:
                yield call


@pytest.mark.parametrize("live", [1, 8])
@pytest.mark.parametrize("name", ["tau_airline", "miniswe", "sweagent", "sweagent_elide5"])
def test_every_recorded_conversation_has_one_id_of_its_own(name: str, live: int) -> None:
    ids = ids_of_trace(name, live)
    assert {session: len(set(found)) for session, found in ids.items()} == dict.fromkeys(ids, 1)
    assert len({found[0] for found in ids.values()}) == len(ids)


@pytest.mark.parametrize("name", ["oasst", "oasst_seed"])
def test_no_two_recorded_trees_of_chats_share_an_id(name: str) -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for session, found in ids_of_trace(name, live=8).items():
        for id in found:
            owners[id].add(session)
    assert {id: len(sessions) for id, sessions in owners.items()} == dict.fromkeys(owners, 1)

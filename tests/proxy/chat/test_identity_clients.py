"""Each client's conversations keep their identity through all that the client changes by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.proxy import claude_shapes
from tests.proxy import client_shapes as shapes
from tests.proxy.client_shapes import Talk, Wire, talk, used
from tests.proxy.conversations import FIVE, WORK, Proxy, one, plain


def aider(said: Talk, n: int) -> Wire:
    return shapes.aider(said[:-1], said[-1]["content"], f"map {n}", f"x = {n}")


@pytest.mark.parametrize(
    "client",
    [
        lambda said, n: shapes.opencode(said, date=f"Tue Feb {n:02} 2026"),
        lambda said, n: shapes.open_webui(said, chat="c1", system=f"It is 12:0{n}."),
        lambda said, n: claude_shapes.claude_code(said, cch=f"{n}{n}af1"),
        lambda said, n: claude_shapes.claude_code_translated(said, cch=f"{n}{n}af1"),
        lambda said, n: shapes.cline(said, date=f"7/{n}/2026"),
        lambda said, n: shapes.codex(said),
        aider,
    ],
)
def test_each_client_has_one_id_for_each_of_two_conversations(proxy: Proxy, client: Any) -> None:
    other = talk("Write docs", "For what?", "For a.py", "Done.", "Now b.py")
    ids = proxy.ids(*(client(said[:n], n) for n in (1, 3, 5) for said in (FIVE, other)))
    assert one(ids[::2])
    assert one(ids[1::2])
    assert ids[0] != ids[1]


def test_claude_codes_topic_job_has_the_question_but_is_not_the_conversation(proxy: Proxy) -> None:
    prompt = "Analyze if this message indicates a new conversation topic. Format as JSON."
    job = claude_shapes.claude_code(FIVE[:1], prompt=prompt)
    del job.body["tools"]
    a, b, c = proxy.ids(
        job, claude_shapes.claude_code(FIVE[:1]), claude_shapes.claude_code(FIVE[:3])
    )
    assert a != b == c


def test_reminders_and_cache_marks_that_move_make_no_stranger(proxy: Proxy) -> None:
    wires = (
        claude_shapes.claude_code(FIVE[:1], reminder_at=0, header=False),
        claude_shapes.claude_code(FIVE[:3], reminder_at=1, header=False),
        claude_shapes.claude_code(FIVE, reminder_at=2, header=False),
        claude_shapes.claude_code(FIVE, header=False),
    )
    for wire in wires:
        del wire.body["metadata"]  # nothing but the turns is left
    assert one(proxy.ids(*wires))


def test_a_reminder_as_a_message_of_its_own_is_no_turn(proxy: Proxy) -> None:
    reminder = talk("<system-reminder>Plan mode is on.</system-reminder>")
    assert one(proxy.ids(plain([*FIVE[:3], *reminder]), plain([*reminder, *FIVE])))


def test_a_cache_mark_is_no_change(proxy: Proxy) -> None:
    proxy(claude_shapes.claude_code(WORK[:3], cch="00000"))
    assert proxy(claude_shapes.claude_code(WORK, cch="00000")).changed_at is None


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

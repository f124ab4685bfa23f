"""Each rule does something: with its switch off a script goes another way.

And it does nothing elsewhere: on a trace where it has no say the journal is the same byte for byte.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from slotwise.policies.params import Params
from slotwise.proxy.core.actions import Action, Dispatch, Refuse
from slotwise.proxy.core.events import EngineReady, RequestArrived
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.telemetry.journal import Journal, read
from tests.proxy import rule_scripts as does
from tests.proxy.rule_scripts import Script, Step
from tests.proxy.script import params

OFF: dict[str, Any] = {"enabled": False}
ONE_AT_A_TIME = {"max_running": 1}
Done = list[str]


def play(steps: list[Step], policy: dict[str, Any], windows: tuple[int, ...]) -> Done:
    """What the scheduler does: ``id>slot/rule`` and ``id!code``, in order."""
    scheduler = Scheduler({"p": params(**policy)})
    actions = scheduler.handle(EngineReady("e", "p", windows, None, True, empties=True), 0.0)
    for now, event in steps:
        actions += scheduler.handle(event, now)
    return [told for action in actions if (told := shown(action))]


def shown(action: Action) -> str | None:
    match action:
        case Dispatch():
            cut = f" {action.max_tokens}" if action.max_tokens is not None else ""
            emptied = " emptied" if action.empties else ""
            return f"{action.id}>{action.slot.id_slot}/{action.rule}{cut}{emptied}"
        case Refuse():
            return f"{action.id}!{action.code}"
    return None


SMALL_LAST, ONE, TWO = (100_000, 4200), (100_000,), (100_000,) * 2
THREE, FOUR = (100_000,) * 3, (100_000,) * 4
CALM: dict[str, Any] = {"keep": OFF, "cap": OFF, "cold": OFF}  # so that nobody waits for them
PARK = {"cap": OFF, "keep": {"enabled": False, "park_tokens": 50_000}}
IN_TURN = {**CALM, "queue": ONE_AT_A_TIME}
IN_BOTH = ["q4>0/affinity", "q5>1/affinity", "q6>0/affinity", "q7>1/affinity"]
# rule -> script, other policy, windows; and what is done only with the rule on, and only without.
SCRIPTS: dict[str, tuple[Script, dict[str, Any], tuple[int, ...], Done, Done]] = {
    "cost.fit": (does.a_guest_before_a_fast_engine, CALM, ONE, ["title>0/guest"], []),
    "home.enabled": (does.at_a_busy_home, CALM, TWO, ["b>1/home"], ["b>0/new"]),
    "home.by_session": (does.with_a_changed_head, CALM, TWO, ["b>1/session"], ["b>0/new"]),
    "home.patience": (does.at_a_busy_home, CALM, TWO, ["b>1/home"], ["b>0/new"]),
    "guest.enabled": (does.beside_live_conversations, CALM, TWO, [], ["title>1/affinity"]),
    "guest.follow": (does.behind_another_guest, CALM, TWO, [], ["t2>1/guest"]),
    "affinity.enabled": (
        does.displacing_the_cheaper,
        CALM,
        TWO,
        ["n>0/affinity"],
        ["n>1/affinity"],
    ),
    "affinity.by_tools": (
        does.tools_after_an_answer,
        CALM,
        TWO,
        ["n>1/affinity"],
        ["n>0/affinity"],
    ),
    "affinity.learn_gap": (does.after_quick_turns, CALM, TWO, ["n>0/affinity"], ["n>1/affinity"]),
    "affinity.slot_order": (
        does.beside_a_long_prompt,
        CALM,
        (5000, 100_000, 5000),
        ["n>0/new"],
        ["n>2/new"],
    ),
    "affinity.rent": (
        does.two_in_turn_beside_a_chat,
        CALM,
        TWO,
        ["q3>1/affinity", *IN_BOTH],
        [f"q{k}>0/affinity" for k in range(3, 8)],
    ),
    "affinity.protect_live": (does.sharing_a_head, CALM, TWO, ["n>0/new"], ["n>1/affinity"]),
    "window.enabled": (does.before_a_small_window, CALM, SMALL_LAST, ["a>0/new"], ["a>1/new"]),
    "window.cut_max_tokens": (does.asking_for_too_much, CALM, ONE, ["a>0/new 96436"], ["a>0/new"]),
    "order.enabled": (
        does.an_owner_behind_a_newcomer,
        IN_TURN,
        THREE,
        ["x2>2/home"],
        ["new>0/new"],
    ),
    "order.by_session": (
        does.the_older_asks_later,
        IN_TURN,
        THREE,
        ["old2>2/home"],
        ["young2>1/home"],
    ),
    "order.by_service": (does.one_key_had_more, IN_TURN, FOUR, ["ben>1/new"], ["ann>1/new"]),
    "order.background": (does.a_side_job_beside_a_prompt, CALM, TWO, [], ["t>0/guest"]),
    "keep.enabled": (does.a_newcomer_between_turns, {"cap": OFF}, TWO, [], ["n>1/affinity"]),
    "keep.park": (does.back_from_the_ram_cache, PARK, TWO, ["x2>1/affinity"], []),
    "keep.choose": (
        does.asked_for_in_a_full_cache,
        PARK,
        ONE,
        ["x2>0/affinity emptied"],
        ["x2>0/affinity"],
    ),
    "cap.enabled": (
        does.a_third_conversation,
        {"keep": OFF, "cold": OFF},
        TWO,
        [],
        ["n>0/affinity"],
    ),
    "cold.enabled": (does.two_long_prompts, {"keep": OFF, "cap": OFF}, TWO, [], ["b>0/new"]),
}
# The same for limits that are numbers: what it is set to, and to what instead.
LIMITS: dict[str, tuple[Script, Any, Any, Done, Done]] = {
    "home.branch_share": (does.with_an_edited_history, 0.5, 0.9, ["b>1/branch"], ["b>1/affinity"]),
    "queue.max_waiting_per_key": (does.three_of_one_key, 1, 2, ["r2!rate_limit_exceeded"], []),
    "queue.max_waiting": (does.three_of_one_key, 1, 2, ["r2!queue_full"], []),
    "queue.max_running": (does.two_at_once, 1, 2, [], ["b>0/new"]),
}


def with_knob(policy: dict[str, Any], rule: str, value: object) -> dict[str, Any]:
    section, knob = rule.split(".")
    return {**policy, section: {**policy.get(section, {}), knob: value}}


def switches() -> list[str]:
    return [
        f"{section.name}.{knob.name}"
        for section in fields(Params)
        for knob in fields(getattr(Params(), section.name))
        if knob.metadata["unit"] == "switch"
    ]


def test_every_switch_has_its_script() -> None:
    assert list(SCRIPTS) == switches()


def apart(first: Done, second: Done) -> tuple[Done, Done]:
    """What each does from the first difference on."""
    pairs = zip(first, second, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return first[same:], second[same:]


@pytest.mark.parametrize("rule", SCRIPTS)
def test_a_rule_that_is_off_lets_things_go_another_way(rule: str) -> None:
    script, policy, windows, on, off = SCRIPTS[rule]
    done = [play(script(), with_knob(policy, rule, value), windows) for value in (True, False)]
    assert apart(*done) == (on, off)


@pytest.mark.parametrize("rule", LIMITS)
def test_a_limit_decides_what_it_says(rule: str) -> None:
    script, given, other, first, second = LIMITS[rule]
    policy = IN_TURN if rule != "queue.max_running" else CALM
    done = [play(script(), with_knob(policy, rule, value), TWO) for value in (given, other)]
    assert apart(*done) == (first, second)


# ---------------------------------------------------------------- where a rule has no say


# These place conversations: only side jobs go without them.
ELSEWHERE = dict.fromkeys(
    ("home.enabled", "affinity.enabled", "affinity.protect_live"), does.side_jobs
)


def journal(path: Path, steps: list[Step], policy: dict[str, Any]) -> bytes:
    scheduler = Scheduler({"p": params(**policy)})
    written = Journal(path)
    for now, event in [(0.0, EngineReady("e", "p", FOUR, None, True, empties=True)), *steps]:
        written.write(now, event, scheduler.handle(event, now))
    written.close()
    return path.read_bytes()


@pytest.mark.parametrize("rule", SCRIPTS)
def test_where_a_rule_has_no_say_the_journal_is_the_same(rule: str, tmp_path: Path) -> None:
    steps = ELSEWHERE.get(rule, does.talks)()
    on, off = (
        journal(tmp_path / str(value), steps, with_knob({}, rule, value)) for value in (True, False)
    )
    assert on == off
    assert on.count(b'"Dispatch"') == sum(isinstance(event, RequestArrived) for _, event in steps)


@pytest.mark.parametrize("rule", SCRIPTS)
def test_a_replayed_journal_is_the_same_byte_for_byte(rule: str, tmp_path: Path) -> None:
    """With the rule on and off, on the script in which it decides."""
    script, policy, _, _, _ = SCRIPTS[rule]
    for value in (True, False):
        switched = with_knob(policy, rule, value)
        first = journal(tmp_path / "first", script(), switched)
        told = [(now, event) for now, event, _ in read(tmp_path / "first")]
        assert journal(tmp_path / "again", told[1:], switched) == first

"""Each rule does something: with its switch off a script goes another way.

And it does nothing elsewhere: on a trace where it has no say the journal is the same byte for byte.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from slotwise.policies.params import KNOBS
from slotwise.proxy.core.events import Action, Dispatch, EngineReady, Refuse, RequestArrived
from slotwise.proxy.core.scheduler import Scheduler
from slotwise.proxy.telemetry.journal import Journal, read
from tests.proxy import rule_scripts as does
from tests.proxy.rule_scripts import Script, Step
from tests.proxy.script import params

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
CALM: dict[str, Any] = {"keep": False, "cold": False}  # so that nobody waits for them
CACHE = {"keep": False, "cache_tokens": 50_000}
IN_TURN = {**CALM, "max_running": 1}
# rule -> script, other policy, windows; and what is done only with the rule on, and only without.
SCRIPTS: dict[str, tuple[Script, dict[str, Any], tuple[int, ...], Done, Done]] = {
    "window": (does.before_a_small_window, CALM, SMALL_LAST, ["a>0/new"], ["a>1/new"]),
    "home": (does.at_a_busy_home, CALM, TWO, ["b>1/home"], ["b>0/new"]),
    "guest": (does.beside_live_conversations, CALM, TWO, [], ["title>1/affinity"]),
    "affinity": (does.displacing_the_cheaper, CALM, TWO, ["n>0/affinity"], ["n>1/affinity"]),
    "order": (does.an_owner_behind_a_newcomer, IN_TURN, THREE, ["x2>2/home"], ["new>0/new"]),
    "keep": (does.a_newcomer_between_turns, {}, TWO, [], ["n>1/affinity"]),
    "cold": (does.two_long_prompts, {"keep": False}, TWO, [], ["b>0/new"]),
    "ram_cache": (does.back_from_the_ram_cache, CACHE, TWO, ["x2>1/affinity"], []),
}
# Parts of a rule that have no switch: script, policy, windows, and what is done at the end.
PARTS: dict[str, tuple[Script, dict[str, Any], tuple[int, ...], Done]] = {
    "costs follow the engine": (does.a_guest_before_a_fast_engine, CALM, ONE, ["title>0/guest"]),
    "a session owns its slot": (does.with_a_changed_head, CALM, TWO, ["b>1/session"]),
    "max_tokens is cut to the room": (does.asking_for_too_much, CALM, ONE, ["a>0/new 96436"]),
    "an edit branches": (does.with_an_edited_history, CALM, TWO, ["b>1/branch"]),
    "a guest follows another": (does.behind_another_guest, CALM, TWO, ["t1>0/guest"]),
    "tool results come back": (does.tools_after_an_answer, CALM, TWO, ["n>1/affinity"]),
    "a kept slot pays rent": (
        does.two_in_turn_beside_a_chat,
        CALM,
        TWO,
        ["q4>0/affinity", "q5>1/affinity", "q6>0/affinity", "q7>1/affinity"],
    ),
    "a key that had less goes first": (does.one_key_had_more, IN_TURN, FOUR, ["ben>1/new"]),
    "a side job lets first tokens go first": (
        does.a_side_job_beside_a_prompt,
        CALM,
        TWO,
        ["a>1/new"],
    ),
    "what is worth more stays cached": (
        does.asked_for_in_a_full_cache,
        CACHE,
        ONE,
        ["x2>0/affinity emptied"],
    ),
}
# The same for limits that are numbers: what it is set to, and to what instead.
LIMITS: dict[str, tuple[Script, Any, Any, Done, Done]] = {
    "max_waiting": (does.three_of_one_key, 1, 12, ["r2!queue_full"], []),
    "max_running": (does.two_at_once, 1, 2, [], ["b>0/new"]),
}


def switches() -> list[str]:
    return [name for name, knob in KNOBS.items() if knob.metadata["unit"] == "switch"]


def test_every_switch_has_its_script() -> None:
    assert list(SCRIPTS) == switches()


def apart(first: Done, second: Done) -> tuple[Done, Done]:
    """What each does from the first difference on."""
    pairs = zip(first, second, strict=False)
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return first[same:], second[same:]


@pytest.mark.slow
@pytest.mark.parametrize("rule", SCRIPTS)
def test_a_rule_that_is_off_lets_things_go_another_way(rule: str) -> None:
    script, policy, windows, on, off = SCRIPTS[rule]
    done = [play(script(), {**policy, rule: value}, windows) for value in (True, False)]
    assert apart(*done) == (on, off)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_rule_decides_so(part: str) -> None:
    script, policy, windows, last = PARTS[part]
    assert play(script(), policy, windows)[-len(last) :] == last


def test_a_client_has_a_quarter_of_the_places() -> None:
    refused = play(does.three_of_one_key(), {**IN_TURN, "max_waiting": 4}, TWO)
    assert refused[-1] == "r2!rate_limit_exceeded"


@pytest.mark.parametrize("rule", LIMITS)
def test_a_limit_decides_what_it_says(rule: str) -> None:
    script, given, other, first, second = LIMITS[rule]
    policy = IN_TURN if rule != "max_running" else CALM
    done = [play(script(), {**policy, rule: value}, TWO) for value in (given, other)]
    assert apart(*done) == (first, second)


# ---------------------------------------------------------------- where a rule has no say


# These place conversations: only side jobs go without them.
ELSEWHERE = dict.fromkeys(("home", "affinity"), does.side_jobs)


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
    on, off = (journal(tmp_path / str(value), steps, {rule: value}) for value in (True, False))
    assert on == off
    assert on.count(b'"Dispatch"') == sum(isinstance(event, RequestArrived) for _, event in steps)


@pytest.mark.slow
@pytest.mark.parametrize("rule", SCRIPTS)
def test_a_replayed_journal_is_the_same_byte_for_byte(rule: str, tmp_path: Path) -> None:
    """With the rule on and off, on the script in which it decides."""
    script, policy, _, _, _ = SCRIPTS[rule]
    for value in (True, False):
        switched = {**policy, rule: value}
        first = journal(tmp_path / "first", script(), switched)
        told = [(now, event) for now, event, _ in read(tmp_path / "first")]
        assert journal(tmp_path / "again", told[1:], switched) == first

"""Each rule does something: with its switch off a script goes another way.

And it does nothing elsewhere: on a trace where it has no say the journal is the same byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from os.path import commonprefix
from pathlib import Path
from typing import Any

import pytest

from policies.params import Params
from policies.types import SIDE_JOB
from proxy.events import (
    Action,
    Dispatch,
    EngineReady,
    Event,
    Refuse,
    RequestArrived,
    RequestFinished,
    RequestProgressed,
    Tick,
)
from proxy.journal import Journal, read
from proxy.scheduler import Scheduler
from tests.proxy.script import arrived, finished, params, text

OFF: dict[str, Any] = {"enabled": False}
ONE_AT_A_TIME = {"max_running": 1}
Step = tuple[float, Event]
Done = list[str]


def turn(id: str, conversation: str, n: int, turns: int = 1, **more: Any) -> RequestArrived:
    """A turn of a conversation of ``n`` tokens by now, of which the first turn ends at 1,000."""
    event = arrived(id, text((conversation, n)), min(n, 1000), turns)
    return RequestArrived(replace(event.request, **{"session": conversation, **more}))


def side(id: str) -> RequestArrived:
    request = arrived(id, text((id, 200))).request
    return RequestArrived(replace(request, kind=SIDE_JOB))


def served(now: float, event: RequestArrived) -> list[Step]:
    """A request that is placed at once and ends at once."""
    return [(now, event), (now, ended(event.request.id, len(event.request.tokens)))]


def ended(id: str, n: int | None = None, **told: Any) -> RequestFinished:
    return replace(finished(id, n), **told)


def play(steps: list[Step], policy: dict[str, Any], windows: tuple[int, ...]) -> Done:
    """What the scheduler does: ``id>slot/rule`` and ``id!code``, in order."""
    scheduler = Scheduler({"p": params(**policy)})
    actions = scheduler.handle(EngineReady("e", "p", windows, None, True), 0.0)
    for now, event in steps:
        actions += scheduler.handle(event, now)
    return [told for action in actions if (told := shown(action))]


def shown(action: Action) -> str | None:
    match action:
        case Dispatch():
            cut = f" {action.max_tokens}" if action.max_tokens is not None else ""
            return f"{action.id}>{action.slot.id_slot}/{action.rule}{cut}"
        case Refuse():
            return f"{action.id}!{action.code}"
    return None


# ---------------------------------------------------------------- one script each


def at_a_busy_home() -> list[Step]:
    """b goes on where a still runs."""
    return [(0, turn("a", "x", 5000)), (1, turn("b", "x", 5200, 2)), (9, ended("a", 5000))]


def with_a_changed_head() -> list[Step]:
    """The same session, another system text."""
    other = turn("b", "y", 5200, 2, session="x")
    return [*served(0, turn("a", "x", 5000)), (1, other)]


def with_an_edited_history() -> list[Step]:
    """b keeps 60 % of what a's slot holds, and ends otherwise."""
    edited = arrived("b", text(("x", 3000), ("edit", 500)), 1000, 2)
    return [*served(0, turn("a", "x", 5000)), (1, edited)]


def beside_live_conversations() -> list[Step]:
    """Two slots with a conversation each, and a title job."""
    return [
        *served(0, turn("a", "x", 5000)),
        *served(1, turn("b", "y", 5000)),
        *served(2, turn("a2", "x", 5200, 2)),
        *served(3, turn("b2", "y", 5200, 2)),
        (4, arrived("title", text(("title", 200)))),
    ]


def displacing_the_cheaper() -> list[Step]:
    """A conversation of 20,000 tokens, then a call of 3,000; then somebody else."""
    return [
        *served(0, turn("a", "x", 20_000)),
        *served(1, turn("a2", "x", 20_200, 2)),
        *served(2, turn("b", "y", 3000)),
        (3, turn("n", "z", 4000)),
    ]


def after_quick_turns() -> list[Step]:
    """x comes back every second, then stays away for 40 s; y was here just now."""
    quick = [step for k in range(2, 60) for step in served(k, turn(f"x{k}", "x", 20_000 + k, k))]
    return [
        *served(0, turn("y", "y", 8000)),
        *quick,
        *served(100, turn("y2", "y", 8100, 2)),
        (100.5, turn("n", "z", 4000)),
    ]


def sharing_a_head() -> list[Step]:
    """n shares x's head and nothing else, and a slot is empty."""
    head = text(("x", 5000), ("n", 300))
    return [
        *served(0, turn("a", "x", 5000, first_user_end=5000)),
        *served(1, turn("a2", "x", 5300, 2, first_user_end=5000)),
        (2, RequestArrived(replace(arrived("n", head, 5300).request, session="n"))),
    ]


def before_a_small_window() -> list[Step]:
    return [(0, turn("a", "x", 3500, max_tokens=1000))]


def asking_for_too_much() -> list[Step]:
    return [(0, turn("a", "x", 3500, max_tokens=1_000_000))]


def an_owner_behind_a_newcomer() -> list[Step]:
    return [
        *served(0, turn("x", "x", 3000)),
        (1, turn("busy", "b", 3000)),
        (2, turn("new", "n", 3000)),
        (3, turn("x2", "x", 3200, 2)),
        (9, ended("busy", 3000)),
    ]


def the_older_asks_later() -> list[Step]:
    return [
        *served(0, turn("old", "o", 3000)),
        *served(1, turn("young", "y", 3000)),
        (2, turn("busy", "b", 3000)),
        (3, turn("young2", "y", 3200, 2)),
        (4, turn("old2", "o", 3200, 2)),
        (9, ended("busy", 3000)),
    ]


def one_key_had_more() -> list[Step]:
    return [
        *served(0, turn("had", "b", 50_000, key="ann")),
        (1, turn("busy", "c", 3000, key="cleo")),
        (2, turn("ann", "x", 3000, key="ann")),
        (3, turn("ben", "y", 3000, key="ben")),
        (9, ended("busy", 3000)),
    ]


def a_side_job_beside_a_prompt() -> list[Step]:
    return [(0, turn("a", "x", 3000)), (1, side("t"))]


def a_newcomer_between_turns() -> list[Step]:
    return [*beside_live_conversations()[:-1], (4, turn("n", "z", 4000))]


def a_third_conversation() -> list[Step]:
    return [
        (0, turn("a", "x", 3000)),
        *served(1, turn("b", "y", 3000)),
        *served(2, turn("b2", "y", 3200, 2)),
        (3, turn("n", "z", 4000)),
    ]


def two_long_prompts() -> list[Step]:
    return [(0, turn("a", "x", 9000)), (1, turn("b", "y", 9000))]


def a_guest_before_a_fast_engine() -> list[Step]:
    """By the first values x is 40 s of reading; the engine reads it in 0.4."""
    fast = [
        step
        for k in range(30)
        for step in ((k, turn(f"x{k}", "x", 40_000 + k, 1 + k)), (k, told(f"x{k}", 40_000 + k)))
    ]
    return [*fast, (31, arrived("title", text(("title", 200)))), (34, Tick())]


def told(id: str, n: int) -> RequestFinished:
    return replace(ended(id, n), cached_tokens=0, prefill_s=0.4)


def three_of_one_key() -> list[Step]:
    return [(k, turn(f"r{k}", f"s{k}", 3000)) for k in range(3)]


def two_at_once() -> list[Step]:
    read = RequestProgressed("a", 3000, 0)
    return [(0, turn("a", "x", 3000)), (1, read), (2, turn("b", "y", 3000))]


Script = Callable[[], list[Step]]
SMALL_LAST, ONE, TWO, FOUR = (100_000, 4200), (100_000,), (100_000,) * 2, (100_000,) * 4
CALM: dict[str, Any] = {"keep": OFF, "cap": OFF, "cold": OFF}  # so that nobody waits for them
IN_TURN = {**CALM, "queue": ONE_AT_A_TIME}
# rule -> script, other policy, windows; and what is done only with the rule on, and only without.
SCRIPTS: dict[str, tuple[Script, dict[str, Any], tuple[int, ...], Done, Done]] = {
    "cost.fit": (a_guest_before_a_fast_engine, CALM, ONE, ["title>0/guest"], []),
    "home.enabled": (at_a_busy_home, CALM, TWO, ["b>1/home"], ["b>0/new"]),
    "home.by_session": (with_a_changed_head, CALM, TWO, ["b>1/session"], ["b>0/new"]),
    "home.patience": (at_a_busy_home, CALM, TWO, ["b>1/home"], ["b>0/new"]),
    "guest.enabled": (beside_live_conversations, CALM, TWO, [], ["title>1/affinity"]),
    "affinity.enabled": (displacing_the_cheaper, CALM, TWO, ["n>0/affinity"], ["n>1/affinity"]),
    "affinity.learn_gap": (after_quick_turns, CALM, TWO, ["n>0/affinity"], ["n>1/affinity"]),
    "affinity.protect_live": (sharing_a_head, CALM, TWO, ["n>0/new"], ["n>1/affinity"]),
    "window.enabled": (before_a_small_window, CALM, SMALL_LAST, ["a>0/new"], ["a>1/new"]),
    "window.cut_max_tokens": (asking_for_too_much, CALM, ONE, ["a>0/new 96436"], ["a>0/new"]),
    "order.enabled": (an_owner_behind_a_newcomer, IN_TURN, FOUR, ["x2>3/home"], ["new>1/new"]),
    "order.by_session": (the_older_asks_later, IN_TURN, FOUR, ["old2>3/home"], ["young2>2/home"]),
    "order.by_service": (one_key_had_more, IN_TURN, FOUR, ["ben>1/new"], ["ann>1/new"]),
    "order.background": (a_side_job_beside_a_prompt, CALM, TWO, [], ["t>0/guest"]),
    "keep.enabled": (a_newcomer_between_turns, {"cap": OFF}, TWO, [], ["n>1/affinity"]),
    "cap.enabled": (a_third_conversation, {"keep": OFF, "cold": OFF}, TWO, [], ["n>0/affinity"]),
    "cold.enabled": (two_long_prompts, {"keep": OFF, "cap": OFF}, TWO, [], ["b>0/new"]),
}
# The same for limits that are numbers: what it is set to, and to what instead.
LIMITS: dict[str, tuple[Script, Any, Any, Done, Done]] = {
    "home.branch_share": (with_an_edited_history, 0.5, 0.9, ["b>1/branch"], ["b>1/affinity"]),
    "queue.max_waiting_per_key": (three_of_one_key, 1, 2, ["r2!rate_limit_exceeded"], []),
    "queue.max_waiting": (three_of_one_key, 1, 2, ["r2!queue_full"], []),
    "queue.max_running": (two_at_once, 1, 2, [], ["b>0/new"]),
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
    same = len(commonprefix([first, second]))
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


def talks() -> list[Step]:
    """Two conversations in turn, on slots enough, and a call by itself."""
    steps: list[Step] = [*served(0, turn("a", "x", 5000)), *served(5, turn("b", "y", 4000))]
    for k in range(2, 12):
        steps += served(10 * k, turn(f"a{k}", "x", 5000 + 300 * k, k))
        steps += served(10 * k + 5, turn(f"b{k}", "y", 4000 + 200 * k, k))
    return [*steps, *served(130, turn("c", "z", 3000))]


def side_jobs() -> list[Step]:
    """Title jobs alone, one after the other."""
    return [step for k in range(20) for step in served(5 * k, side(f"t{k}"))]


# Where rules place conversations, only side jobs are without them, and the other way round.
ELSEWHERE = {"home.enabled": side_jobs, "affinity.enabled": side_jobs}


def journal(path: Path, steps: list[Step], policy: dict[str, Any]) -> bytes:
    scheduler = Scheduler({"p": params(**policy)})
    written = Journal(path)
    for now, event in [(0.0, EngineReady("e", "p", FOUR, None, True)), *steps]:
        written.write(now, event, scheduler.handle(event, now))
    written.close()
    return path.read_bytes()


@pytest.mark.parametrize("rule", SCRIPTS)
def test_where_a_rule_has_no_say_the_journal_is_the_same(rule: str, tmp_path: Path) -> None:
    steps = ELSEWHERE.get(rule, talks)()
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

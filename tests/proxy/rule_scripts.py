"""Short scripts of events in each of which one rule decides, and two in which few have a say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slotwise.policies.types import SIDE_JOB
from slotwise.proxy.core.events import (
    Event,
    RequestArrived,
    RequestFinished,
    RequestProgressed,
    Tick,
)
from tests.proxy.script import arrived, finished, text

Step = tuple[float, Event]
Script = Callable[[], list[Step]]


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


def at_a_busy_home() -> list[Step]:
    """b goes on where a still runs."""
    return [(0, turn("a", "x", 5000)), (1, turn("b", "x", 5200, 2)), (9, ended("a", 5000))]


def with_a_changed_head() -> list[Step]:
    """The same session, another system text."""
    other = arrived("b", text(("x", 50), ("y", 5150)), 1000, 2)
    in_session = RequestArrived(replace(other.request, session="x"))
    return [*served(0, turn("a", "x", 5000)), (1, in_session)]


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


def behind_another_guest() -> list[Step]:
    """A title job runs, the other slot holds a conversation; a second one comes."""
    return [
        *served(0, turn("a", "x", 5000)),
        *served(1, turn("a2", "x", 5200, 2)),
        (2, arrived("t1", text(("t1", 200)))),
        (3, arrived("t2", text(("t2", 200)))),
        (5, Tick()),
    ]


def back_from_the_ram_cache() -> list[Step]:
    """x lost its slot and is in the RAM cache; it comes back while a long prompt is read."""
    return [
        *served(0, turn("x", "x", 9000)),
        *served(10, turn("y", "y", 9000)),
        *served(20, turn("z", "z", 9000)),
        (30, turn("d", "d", 9000)),
        (31, turn("x2", "x", 9100, 2)),
    ]


def asked_for_in_a_full_cache() -> list[Step]:
    """x is in the RAM cache, which has no room for y beside it; x comes back."""
    return [
        *served(0, turn("x", "x", 30_000)),
        *served(1, turn("y", "y", 30_000)),
        (2, turn("x2", "x", 30_100, 2)),
    ]


def displacing_the_cheaper() -> list[Step]:
    """A conversation of 20,000 tokens, then a call of 3,000; then somebody else."""
    return [
        *served(0, turn("a", "x", 20_000)),
        *served(1, turn("a2", "x", 20_200, 2)),
        *served(2, turn("b", "y", 3000)),
        (3, turn("n", "z", 4000)),
    ]


def tools_after_an_answer() -> list[Step]:
    """x's last answer asked for tools a while ago, y's for nothing; x holds more."""
    return [
        *served(0, turn("x", "x", 8000)),
        *served(1, turn("y", "y", 6000)),
        (2, turn("x2", "x", 8200, 2)),
        (2, ended("x2", 8200, tool_calls=True)),
        *served(3, turn("y2", "y", 6200, 2)),
        (92, turn("n", "z", 4000)),
    ]


def two_in_turn_beside_a_chat() -> list[Step]:
    """A chat that is never heard of again, and two prompts in turn."""
    kinds = [text((f"kind{k % 2}", 2900), (f"q{k}", 100)) for k in range(8)]
    calls = [served(1 + k, arrived(f"q{k}", kind)) for k, kind in enumerate(kinds)]
    return [*served(0, turn("chat", "x", 9000)), *[step for call in calls for step in call]]


def before_a_small_window() -> list[Step]:
    return [(0, turn("a", "x", 3500, max_tokens=1000))]


def asking_for_too_much() -> list[Step]:
    return [(0, turn("a", "x", 3500, max_tokens=1_000_000))]


def an_owner_behind_a_newcomer() -> list[Step]:
    return [
        *served(0, turn("x", "x", 3000, session="x")),
        (1, turn("busy", "b", 30_000, session="b")),
        (2, turn("new", "n", 3000, session="n")),
        (3, turn("x2", "x", 3200, 2, session="x")),
        (9, ended("busy", 30_000)),
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


# ---------------------------------------------------------------- calm traces


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

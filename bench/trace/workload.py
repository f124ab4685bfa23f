"""In which order calls are sent, and made-up calls of the shapes that matter.

A trace holds sessions one after the other; real traffic interleaves them. :func:`interleave` keeps
a fixed number of sessions live and draws the next call at random among them, with a fixed seed, so
that every arm of a comparison sees the same calls in the same order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from slotwise.bench.trace import trace
from slotwise.bench.trace.trace import Call, Message

T = TypeVar("T")
Moment = list[Call]
"""Calls that a client sends at the same time."""

TITLES, NEWSROOM = "titles", "newsroom"


def sessions(calls: Iterable[Call]) -> list[list[Call]]:
    """The calls of each session in their order; sessions in the order of their first call."""
    by_name: dict[str, list[Call]] = {}
    for call in calls:
        by_name.setdefault(call.session, []).append(call)
    return list(by_name.values())


def interleave(calls: Iterable[Call], live: int, seed: int) -> list[Call]:
    """``live`` sessions at a time, the next call drawn at random among them.

    When a session ends the next one joins. Sessions come in a shuffled order. Raises ``ValueError``
    where ``live`` is below 1.
    """
    if live < 1:
        raise ValueError(f"live: expected at least 1 session, got {live}")
    rng = random.Random(seed)
    waiting = [session[::-1] for session in sessions(calls)]  # pop() takes the next call
    rng.shuffle(waiting)
    return drawn(waiting, live, rng)


def drawn(waiting: list[list[T]], live: int, rng: random.Random) -> list[T]:
    """One after the other, of ``live`` lists at a time; taken from their ends, all of them."""
    running: list[list[T]] = []
    order: list[T] = []
    while waiting or running:
        while waiting and len(running) < live:
            running.append(waiting.pop())
        chosen = rng.choice(running)
        order.append(chosen.pop())
        if not chosen:
            running.remove(chosen)
    return order


def moments(name: str, live: int, seed: int) -> list[Moment]:
    """The calls of a made-up workload (``titles``, ``newsroom``) or of a trace, interleaved.

    Raises :class:`bench.trace.trace.TraceError`, and ``ValueError`` for ``live`` below 1.
    """
    if name == TITLES:
        return conversations_with_titles()
    if name == NEWSROOM:
        return [[call] for call in newsroom()]
    return [[call] for call in interleave(trace.read(name), live, seed)]


# ---------------------------------------------------------------- made-up calls

_WORDS = re.findall(
    r"\w+",
    """order file test value route cache branch window engine system report flight ticket change
    number result query index letter garden signal market river winter paper station library""",
)


def text(words: int, seed: str) -> str:
    """Plain filler of so many words, the same for the same seed; about one token a word."""
    rng = random.Random(seed)
    return " ".join(rng.choices(_WORDS, k=words))


def conversation(
    name: str, turns: int, words_per_turn: int, answer_words: int = 20, head: str = ""
) -> Iterator[Call]:
    """A conversation that grows by ``words_per_turn`` a turn; ``head`` is its system text."""
    history: list[Message] = [{"role": "system", "content": head}] if head else []
    for turn in range(turns):
        question = text(words_per_turn, f"{name} question {turn}")
        answer = text(answer_words, f"{name} answer {turn}")
        history = [*history, {"role": "user", "content": question}]
        yield Call(name, turn, history, None, answer_words, answer, None, None)
        history = [*history, {"role": "assistant", "content": answer}]


def title_job(of: str, turn: int, words: int = 300) -> Call:
    """A short one-shot beside a conversation: names it from its last lines."""
    content = "Give a title of five words.\n" + text(words, f"{of} title {turn}")
    message = {"role": "user", "content": content}
    return Call(f"{of} title {turn}", 0, [message], None, 8, "A title", None, None)


def conversations_with_titles(
    count: int = 3, turns: int = 20, words_per_turn: int = 300, title_words: int = 150
) -> list[Moment]:
    """A turn and the title job of that turn, sent together.

    ``count`` conversations take turns; the shape in which a bare engine without a RAM cache can
    lose every prefix, because a title job takes the slot that was used longest ago.
    """
    running = [list(conversation(f"chat {n}", turns, words_per_turn)) for n in range(count)]
    return [
        [calls[turn], title_job(calls[turn].session, turn, title_words)]
        for turn in range(turns)
        for calls in running
    ]


def newsroom(calls: int = 66, head_words: int = 5000, own_words: int = 800) -> list[Call]:
    """One-shot calls with a long common preamble, as a production stage sends them."""
    head: Message = {"role": "system", "content": text(head_words, "newsroom")}
    return [
        Call(
            session=f"story {n}",
            turn=0,
            messages=[head, {"role": "user", "content": text(own_words, f"story {n}")}],
            tools=None,
            max_tokens=16,
            completion=text(16, f"answer {n}"),
            reply=None,
            t=None,
        )
        for n in range(calls)
    ]

"""Why each token of a prompt was computed again: every position falls in exactly one class.

The facts are positions in one prompt: how far the engine's cache reached, how far the slot it was
sent to held it, how far any other slot did, how far it was ever computed, and where it parts from
its conversation's earlier prompt. Each cause takes what lies beyond all causes before it, in the
order of :class:`Cause`, so the classes add up to the prompt by construction.

Of an answer only the number of tokens is known, not the tokens. Whether it came back as it was
generated shows when the slot that holds it is used again: an engine that reused the whole prompt
before it and then stopped inside it had other text before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from slotwise.policies.cost import prefill_s
from slotwise.policies.params import Cost
from slotwise.policies.types import Section

NO_SECTION = "unknown"
SECTIONS = ("tools", "system", "user", "assistant", "tool", "template", NO_SECTION)


class Cause(StrEnum):
    """What became of a prompt token; the ``reason`` label of the series."""

    CACHED = "cached"  # as the engine reports
    ENGINE = "engine"  # the right slot held it, the engine could not reuse it
    ELSEWHERE = "elsewhere"  # another slot held it
    EVICTED = "evicted"  # once computed, displaced since
    CHANGED = "changed"  # the conversation's earlier prompt held something else there
    NEW = "new"  # never computed before
    MIN_ONE = "min_one"  # the last token of a prompt that was held whole: always computed
    UNKNOWN = "unknown"  # the engine did not say


RECOMPUTED = tuple(c for c in Cause if c not in (Cause.CACHED, Cause.UNKNOWN))
AVOIDABLE = (Cause.ENGINE, Cause.ELSEWHERE, Cause.EVICTED, Cause.CHANGED)
_HELD = (Cause.ENGINE, Cause.ELSEWHERE, Cause.EVICTED)


class Span(NamedTuple):
    """Token positions ``start`` up to ``end``, of one class."""

    cause: Cause
    start: int
    end: int


class Share(NamedTuple):
    """The tokens of one class in one section, and the seconds of computing them (0: cached)."""

    cause: Cause
    section: str
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """The conversation's earlier prompt beside this one, in tokens."""

    length: int
    computed: int  # of it, less than ``length`` when it was ended early
    common: int  # longest common prefix with this prompt
    answer: int  # generated tokens kept behind it


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a finished request, in tokens. The prompt has ``n``."""

    n: int
    cached: int  # as the engine reports
    here: int = 0  # held by the slot it was sent to, by known ids
    tail: int = 0  # the conversation's answer, held there behind a prompt that this one contains
    elsewhere: int = 0  # the most that another slot held, by known ids
    ever: int = 0  # longest prefix on record as computed
    earlier: Earlier | None = None  # None: the conversation's first prompt, or not known
    sections: Sequence[Section] = ()


class Difference(NamedTuple):
    """Where a prompt first differs from the conversation so far."""

    position: int
    in_answer: bool  # the difference lies in the answer, whose earlier tokens are not known


@dataclass(frozen=True, slots=True)
class Attribution:
    """``spans`` lie end to end and cover the prompt."""

    spans: tuple[Span, ...]
    bound: int  # tokens that a cache which never forgets would have served
    difference: Difference | None  # None: no token is ``changed``


def attribute(facts: Facts) -> Attribution:
    """The class of every token position of one prompt."""
    n = facts.n
    cached = min(max(facts.cached, 0), n)
    answer_differs = _answer_differs(facts, cached)
    held = facts.here if answer_differs else _answer_end(facts, facts.here, facts.tail)
    elsewhere, ever = _reach(facts, answer_differs)
    cut = _Cutter(n)
    cut.up_to(cached, Cause.CACHED)
    cut.up_to(held, Cause.ENGINE)
    cut.up_to(elsewhere, Cause.ELSEWHERE)
    cut.up_to(ever, Cause.EVICTED)
    reach = cut.at
    difference = _change(facts, cached, answer_differs)
    if difference is not None:
        first, end = difference
        cut.up_to(first.position, Cause.NEW)
        cut.up_to(end, Cause.CHANGED)
    cut.up_to(n, Cause.NEW)
    spans = _min_one(cut.spans)
    changed = any(span.cause is Cause.CHANGED for span in spans)
    return Attribution(
        spans=tuple(spans),
        bound=max(cached, min(reach, n - 1)),
        difference=difference[0] if difference is not None and changed else None,
    )


def section_at(sections: Sequence[Section], position: int) -> Section | None:
    """The section that a position lies in; None: the sections do not reach that far."""
    index = bisect_right(sections, position, key=lambda s: s.end)
    return sections[index] if index < len(sections) else None


def shares(spans: Sequence[Span], sections: Sequence[Section], cost: Cost) -> tuple[Share, ...]:
    """The tokens and seconds of each class in each section, in the order of the prompt.

    The fixed cost of starting a prefill belongs to no token, so it is left out.
    """
    tokens: dict[tuple[Cause, str], int] = {}
    seconds: dict[tuple[Cause, str], float] = {}
    for cause, section, start, end in _pieces(spans, sections):
        key = (cause, section)
        tokens[key] = tokens.get(key, 0) + end - start
        work_s = 0.0 if cause is Cause.CACHED else token_s(cost, start, end)
        seconds[key] = seconds.get(key, 0.0) + work_s
    return tuple(Share(*key, count, seconds[key]) for key, count in tokens.items())


def token_s(cost: Cost, start: int, end: int) -> float:
    """Seconds to compute tokens ``start`` up to ``end``, without the cost of starting."""
    return prefill_s(cost, start, end) - cost.prefill_c_s if end > start else 0.0


def avoided_s(cost: Cost, n: int, cached: int) -> float:
    """Seconds of prefill that the cache saved."""
    return prefill_s(cost, 0, n) - prefill_s(cost, cached, n)


class _Cutter:
    """Cuts a prompt into spans from its start; what is behind the cut already stays as it is."""

    def __init__(self, n: int) -> None:
        self.at = 0
        self.spans: list[Span] = []
        self._n = n

    def up_to(self, end: int, cause: Cause) -> None:
        end = min(end, self._n)
        if end <= self.at:
            return
        if self.spans and self.spans[-1].cause is cause:
            self.spans[-1] = Span(cause, self.spans[-1].start, end)
        else:
            self.spans.append(Span(cause, self.at, end))
        self.at = end


def _answer_differs(facts: Facts, cached: int) -> bool:
    """The engine had the answer at hand, came up to it and stopped inside it.

    Where it did not even reuse the prompt before the answer, that proves nothing of the answer.
    """
    answer_end = min(_answer_end(facts, facts.here, facts.tail), facts.n - 1)
    return facts.here <= cached < answer_end


def _answer_end(facts: Facts, start: int, answer: int) -> int:
    """Where an answer of that many tokens ends that begins at ``start``: not past the turn that
    stands there now, which is shorter where a client leaves part of the answer out."""
    if not answer or not facts.sections:
        return start + answer
    section = section_at(facts.sections, start)
    if section is None or section.name != "assistant":
        return start
    return min(start + answer, section.end)


def _reach(facts: Facts, answer_differs: bool) -> tuple[int, int]:
    """How far another slot held the prompt, and how far it was ever computed."""
    earlier = facts.earlier
    if earlier is None:
        return facts.elsewhere, facts.ever
    ever = max(facts.ever, min(earlier.common, earlier.computed))
    if ever < earlier.length or earlier.common < earlier.length or answer_differs:
        return facts.elsewhere, ever
    # Whoever holds the whole earlier prompt holds its answer too.
    answer_end = _answer_end(facts, earlier.length, earlier.answer)
    elsewhere = facts.elsewhere
    if elsewhere >= earlier.length:
        elsewhere = max(elsewhere, answer_end)
    return elsewhere, max(ever, answer_end)


def _change(facts: Facts, cached: int, answer_differs: bool) -> tuple[Difference, int] | None:
    """Where the prompt first differs from the conversation so far, and where that ended."""
    if answer_differs:
        end = _answer_end(facts, facts.here, facts.tail)
        return Difference(cached, in_answer=True), end
    earlier = facts.earlier
    if earlier is None or earlier.common >= min(earlier.length, facts.n):
        return None
    end = _answer_end(facts, earlier.length, earlier.answer)
    return Difference(earlier.common, in_answer=False), end


def _min_one(spans: list[Span]) -> list[Span]:
    """A prompt that was held to its end: its last token would have been computed all the same."""
    if not spans or spans[-1].cause not in _HELD:
        return spans
    cause, start, end = spans.pop()
    if end - 1 > start:
        spans.append(Span(cause, start, end - 1))
    return [*spans, Span(Cause.MIN_ONE, end - 1, end)]


def _pieces(
    spans: Sequence[Span], sections: Sequence[Section]
) -> Iterator[tuple[Cause, str, int, int]]:
    """The spans cut at the ends of the sections: class, section, start, end."""
    index = 0
    for cause, start, end in spans:
        at = start
        while at < end:
            while index < len(sections) and sections[index].end <= at:
                index += 1
            inside = index < len(sections)
            stop = min(end, sections[index].end) if inside else end
            yield cause, sections[index].name if inside else NO_SECTION, at, stop
            at = stop

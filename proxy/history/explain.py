"""Why tokens were computed again, said in words: records as plain data, the culprit first.

The words are cut to what differs. They hold text of a prompt only where the caller hands it in:
:func:`ids_to_show` says which token ids to turn into text, and whoever may not see the text gets
the same answer without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from slotwise.policies.attribution import AVOIDABLE, SECTIONS, Cause
from slotwise.proxy.history.record import Changed, Record, times

MOST_LISTED = 1000
DEFAULT_KEEP_MIB = 64
_MOST_KEEP_MIB = 65_536
_DEFAULT_LISTED = 20
_SHOWN_CHARS = 60  # of each side of a difference
_LEAD_CHARS = 16  # of the word that the difference is in
_SAME_AGAIN_CHARS = 8  # so much in common ends a difference

_PLACES = {
    "tools": "the tools",
    "system": "the system text",
    "user": "the user text",
    "assistant": "the assistant text",
    "tool": "the tool result",
    "template": "the text of the chat template",
}


class Texts(NamedTuple):
    """The ids of :func:`ids_to_show` as text."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Explain:
    """A profile's ``explain`` section."""

    keep_mib: int = DEFAULT_KEEP_MIB  # prompts kept in memory, to tell what changed in the next one


def from_mapping(given: Mapping[str, Any], path: str = "explain") -> tuple[Explain, list[str]]:
    """Settings from plain data; faults name the YAML path, the value and the limit."""
    faults = [
        f"{path}.{name}: unknown key, expected keep_mib" for name in given if name != "keep_mib"
    ]
    keep_mib = given.get("keep_mib", DEFAULT_KEEP_MIB)
    if isinstance(keep_mib, bool) or not isinstance(keep_mib, int):
        faults.append(f"{path}.keep_mib: expected a whole number, got {keep_mib!r}")
    elif not 1 <= keep_mib <= _MOST_KEEP_MIB:
        faults.append(f"{path}.keep_mib: expected 1 to {_MOST_KEEP_MIB} MiB, got {keep_mib!r}")
    return (Explain() if faults else Explain(keep_mib)), faults


@dataclass(frozen=True, slots=True)
class ExplainQuery:
    """Which records are asked for."""

    session: str | None = None
    last: int = _DEFAULT_LISTED


def wanted(query: Mapping[str, str]) -> ExplainQuery:
    """The query of ``/slotwise/requests``; raises ``ValueError`` with a text for the client."""
    unknown = sorted(set(query) - {"session", "last"})
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown parameter, expected session or last")
    last = query.get("last", str(_DEFAULT_LISTED))
    # isdecimal alone takes digits of other scripts, and int() takes as long as the text
    if not (last.isascii() and last.isdecimal() and len(last) <= 9 and int(last) >= 1):
        raise ValueError(f"last: expected 1 to {MOST_LISTED}, got {last[:20]!r}")
    return ExplainQuery(query.get("session"), min(int(last), MOST_LISTED))


def ids_to_show(record: Record) -> tuple[list[int], list[int]] | None:
    """The token ids around the difference, before and after; None: nothing changed."""
    changed = record.changed
    if changed is None:
        return None
    lead = list(changed.lead)
    return lead + list(changed.before), lead + list(changed.after)


def listing(records: Iterable[Record], texts: Mapping[str, Texts]) -> dict[str, Any]:
    """The body of ``GET /slotwise/requests``; ``texts`` by request id, where they may be seen."""
    return {"requests": [as_json(record, texts.get(record.id)) for record in records]}


def as_json(record: Record, texts: Texts | None = None) -> dict[str, Any]:
    """The body of ``GET /slotwise/requests/ID``. Without ``texts`` it holds nothing of a prompt."""
    known = record.known
    return {
        "id": record.id,
        "lines": lines(record, texts),
        "profile": record.profile,
        "session": record.session,
        "kind": record.kind,
        "key": record.key,
        "client": known.client,
        "time": round(record.time, 3),
        "slot": str(record.slot),
        "rule": record.rule.value,
        "why": record.why,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached,
        "expected_cached_tokens": record.expected_cached,
        "bound_tokens": record.bound,
        "tokens": {cause.value: count for cause, count in record.tokens().items()},
        "sections": sections(record),
        "changed": _changed_json(record.changed, texts),
        "evicted": _evicted_json(record),
        "lost_s": round(record.lost_s(), 3),
        "avoided_s": round(record.avoided_s, 3),
        **times(record),
        "finish": known.finish,
        "failure": record.failure.value if record.failure else None,
    }


def sections(record: Record) -> list[dict[str, Any]]:
    """A row per section of the prompt: its tokens, cached, computed by cause, seconds lost."""
    rows: dict[str, dict[str, Any]] = {}
    for cause, section, tokens, seconds in record.shares:
        row = rows.setdefault(
            section,
            {"section": section, "tokens": 0, "cached": 0, "computed": {}, "lost_s": 0.0},
        )
        row["tokens"] += tokens
        if cause is Cause.CACHED:
            row["cached"] += tokens
        else:
            row["computed"][cause.value] = row["computed"].get(cause.value, 0) + tokens
        if cause in AVOIDABLE:
            row["lost_s"] = round(row["lost_s"] + seconds, 3)
    return [rows[name] for name in SECTIONS if name in rows]


def lines(record: Record, texts: Texts | None = None) -> list[str]:
    """The culprit, then where and when the request ran."""
    parts = [
        f"request {record.id}",
        f"{record.kind} of session {record.session or '(unknown)'}",
        f"slot {record.slot} by rule {record.rule}",
        f"waited {record.wait_s:.1f} s",
    ]
    if record.known.ttft_s is not None:
        parts.append(f"first token after {record.known.ttft_s:.1f} s")
    if record.cached is not None:
        parts.append(f"lost {record.lost_s():.1f} s, saved {record.avoided_s:.1f} s of prefill")
    return [culprit(record, texts), ", ".join(parts)]


def culprit(record: Record, texts: Texts | None = None) -> str:
    """In one line what cost most of the tokens that need not have been computed."""
    tokens, n = record.tokens(), record.prompt_tokens
    if record.failure is not None:
        return f"ended early ({record.failure}): nothing is known of its {n:,} prompt tokens"
    if record.cached is None:
        return f"the engine did not say how many of {n:,} tokens it reused"
    worst = max(AVOIDABLE, key=lambda cause: tokens.get(cause, 0))
    if worst in tokens:
        again = f"{tokens[worst]:,} of {n:,} tokens were computed again because"
        return f"{again} {_because(worst, record, texts)}"
    reused = f"{record.cached:,} of {n:,} tokens came from the cache"
    if Cause.UNKNOWN in tokens:
        return f"{reused}; no cause is known for the rest: the engine counts other tokens"
    return f"{reused}; {tokens.get(Cause.NEW, 0):,} were new"


def _because(cause: Cause, record: Record, texts: Texts | None) -> str:
    if cause is Cause.CHANGED and record.changed is not None:
        return _changed_text(record.changed, texts)
    if cause is Cause.ELSEWHERE:
        return f"another slot held them: rule {record.rule} chose slot {record.slot}"
    if cause is Cause.EVICTED:
        return _evicted_text(record)
    if not record.cache_prompt:
        return "the request asked for it (cache_prompt: false)"
    return f"the engine could not reuse them, though slot {record.slot} held them"


def _changed_text(changed: Changed, texts: Texts | None) -> str:
    message = f" (messages[{changed.message}])" if changed.message >= 0 else ""
    if changed.in_answer:
        return (
            f"the answer{message} came back otherwise than it was generated, "
            f"from token {changed.position:,} on"
        )
    place = _PLACES.get(changed.section, "the prompt")
    reported = f"{place}{message} changed at token {changed.position:,}"
    if texts is None:
        return reported
    before, after = short_diff(*texts)
    return f'{reported}: "{before}" became "{after}"'


def _evicted_text(record: Record) -> str:
    displaced = record.displaced
    if displaced is None:
        return "they had been displaced from the cache"
    ago = f"{_ago_s(record, displaced.time):,.0f} s before"
    if not displaced.by:
        return f"the engine that held them had ended {ago}"
    return f"request {displaced.by} had displaced them {ago}"


def _ago_s(record: Record, time: float) -> float:
    """From then to this request's dispatch."""
    return max(0.0, record.time - record.took_s + record.wait_s - time)


def _changed_json(changed: Changed | None, texts: Texts | None) -> dict[str, Any] | None:
    if changed is None:
        return None
    reported: dict[str, Any] = {
        "section": changed.section,
        "message": changed.message,
        "position": changed.position,
        "in_answer": changed.in_answer,
    }
    if texts is not None and not changed.in_answer:
        reported["before"], reported["after"] = short_diff(*texts)
    return reported


def _evicted_json(record: Record) -> dict[str, Any] | None:
    displaced = record.displaced
    if displaced is None:
        return None
    return {"by": displaced.by or None, "time": round(displaced.time, 3)}


# ---------------------------------------------------------------- text that differs


def short_diff(before: str, after: str) -> tuple[str, str]:
    """Both texts cut to where they first differ, from the start of that word until they agree
    again; what is not printable is escaped."""
    same = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            break
        same += 1
    start = same
    while start > max(0, same - _LEAD_CHARS) and not before[start - 1].isspace():
        start -= 1
    end_before, end_after = len(before), len(after)
    matcher = SequenceMatcher(None, before[same:], after[same:], autojunk=False)
    for match in matcher.get_matching_blocks():
        if match.size >= _SAME_AGAIN_CHARS:
            end_before, end_after = same + match.a, same + match.b
            break
    return _cut(before, start, end_before), _cut(after, start, end_after)


def _cut(text: str, start: int, end: int) -> str:
    shown = text[start : min(end, start + _SHOWN_CHARS)]
    lead = "..." if start else ""
    return lead + _printable(shown) + ("..." if start + _SHOWN_CHARS < end else "")


def _printable(text: str) -> str:
    """A prompt may hold what moves a terminal's cursor."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )

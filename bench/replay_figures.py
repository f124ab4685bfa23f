"""What a replay cost: one row per server, and every call as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from slotwise.bench.report import percentile
from slotwise.bench.sender import Outcome, Sent


def reuse(outcome: Outcome) -> float | None:
    """Cached over all prompt tokens as the engine reports them; None where it does not."""
    answers = [sent.answer for sent in outcome.calls if sent.answer is not None]
    if not any(answer.told_cached for answer in answers):
        return None
    prompt = sum(answer.prompt_tokens for answer in answers)
    return sum(answer.cached_tokens for answer in answers) / max(prompt, 1)


def sessions_s(outcome: Outcome) -> list[float]:
    """Of every session the seconds from when its first call was due to its last answer.

    Side jobs belong to none, and one-shots are no sessions. A session with a failed call is out.
    """
    calls: dict[str, list[Sent]] = {}
    for sent in outcome.calls:
        if not sent.step.side:
            calls.setdefault(sent.step.session, []).append(sent)
    return [
        max(sent.ended_s for sent in session) - min(sent.targeted_s for sent in session)
        for session in calls.values()
        if len(session) > 1 and all(sent.answer is not None for sent in session)
    ]


def row(outcome: Outcome) -> dict[str, Any]:
    """The figures of one replay; None where there is nothing to tell."""
    answered = [sent for sent in outcome.calls if sent.answer is not None]
    turns = [sent.ttft_s for sent in answered if not sent.step.side]
    side = [sent.ttft_s for sent in answered if sent.step.side]
    answers = [sent.answer for sent in answered if sent.answer is not None]
    whole = sessions_s(outcome)
    return {
        "calls": len(answered),
        "failed": len(outcome.failures),
        "prompt tokens": sum(answer.prompt_tokens for answer in answers),
        "reuse": reuse(outcome),
        "TTFT s": _mean(turns),
        "TTFT p50 s": _at(turns, 50),
        "TTFT p95 s": _at(turns, 95),
        "side TTFT s": _mean(side),
        "TPOT ms": _milli(_mean([tpot for sent in answered if (tpot := _tpot_s(sent))])),
        "E2E p50 s": _at([sent.ended_s - sent.targeted_s for sent in answered], 50),
        "E2E p95 s": _at([sent.ended_s - sent.targeted_s for sent in answered], 95),
        "session s": _mean(whole),
        "late p95 ms": _milli(_at([s.started_s - s.targeted_s for s in answered], 95)),
        "wall s": outcome.wall_s,
    }


def _tpot_s(sent: Sent) -> float | None:
    """Seconds of each token behind the first."""
    answer = sent.answer
    if answer is None or answer.completion_tokens < 2 or not answer.ttft_s:
        return None
    return (answer.total_s - answer.ttft_s) / (answer.completion_tokens - 1)


def notes(outcome: Outcome) -> list[str]:
    """What a reader of the row has to know, in words."""
    found = []
    if outcome.cut_off:
        found.append("the time was over before the script")
    if outcome.skipped:
        found.append(f"{outcome.skipped} calls were not sent")
    reasons = Counter(sent.error for sent in outcome.failures)
    found += [f"{count} failed: {reason}" for reason, count in reasons.most_common(5)]
    if outcome.calls and reuse(outcome) is None:
        found.append("the server does not say how much of a prompt it reused")
    return found


def plain(outcome: Outcome) -> list[dict[str, Any]]:
    """Every call, in the order of their starts; seconds since the start of the replay."""
    return [_plain(sent) for sent in outcome.calls]


def _plain(sent: Sent) -> dict[str, Any]:
    told: dict[str, Any] = {
        "id": sent.step.id,
        "session": sent.step.session,
        "side": sent.step.side,
        "targeted_s": sent.targeted_s,
        "started_s": sent.started_s,
        "ended_s": sent.ended_s,
    }
    answer = sent.answer
    if answer is None:
        return told | {"error": sent.error}
    return told | {
        "prompt_tokens": answer.prompt_tokens,
        "cached_tokens": answer.cached_tokens if answer.told_cached else None,
        "completion_tokens": answer.completion_tokens,
        "ttft_s": sent.ttft_s,
        "tpot_s": _tpot_s(sent),
        "prefill_s": answer.prefill_s,
        "decode_s": answer.decode_s,
        "slot": answer.slot,
        "rule": answer.rule,
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _at(values: Sequence[float], percent: float) -> float | None:
    return percentile(values, percent)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)

"""All that is to be seen at one moment, as plain data: the answer of ``/slotwise/status``.

The lanes page, ``slotwise status`` and ``slotwise top`` show this and nothing else, so they agree.
It holds names, figures and reasons, and no word of any prompt.
"""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from slotwise.policies.attribution import Cause
from slotwise.proxy.core import words
from slotwise.proxy.history import explain
from slotwise.proxy.history.last_hour import SPAN_S, Sums
from slotwise.proxy.history.record import Record
from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.life import EngineLife, ServedProfile, build_of

LAST_REQUESTS = 12


def overview(driver: Driver) -> dict[str, Any]:
    """Everything as of now. ``time``: the time of day (s)."""
    now = driver.clock()
    profiles: dict[str, Any] = driver.scheduler.snapshot(now)
    for name, profile in profiles.items():
        profile["last_hour"] = reuse(driver.history.last_hour(name, now))
    return {
        "version": version(),
        "time": round(driver.history.time_of_day(now), 3),
        "profiles": profiles,
        "engines": {
            life.name: _engine(life, driver.profiles[life.profile])
            for life in driver.engines.lives.values()
        },
        "requests": [_brief(r) for r in reversed(driver.history.records(last=LAST_REQUESTS))],
        "memory": driver.memory.json(now),
        "history": driver.history.kept(),
        "tokens": driver.tokenizer.snapshot(),
    }


def reuse(sums: Sums) -> dict[str, Any]:
    """Tokens by cause. Both ratios are of the requests whose cached tokens the engine reported;
    None: there are none."""
    known = sums.reported
    return {
        "span_s": SPAN_S,
        "requests": sums.requests,
        "prompt_tokens": sums.prompt_tokens,
        "reported_tokens": sums.reported,
        "cached_tokens": sums.tokens[Cause.CACHED],
        "bound_tokens": sums.bound,
        "ratio": round(sums.tokens[Cause.CACHED] / known, 4) if known else None,
        "bound_ratio": round(sums.bound / known, 4) if known else None,
        "avoided_s": round(sums.avoided_s, 1),
        "lost_s": round(sums.lost_s, 1),
        "causes": [
            {"cause": cause.value, "text": words.cause(cause), "tokens": sums.tokens[cause]}
            for cause in Cause
            if sums.tokens[cause]
        ],
    }


def _engine(life: EngineLife, served: ServedProfile) -> dict[str, Any]:
    return {
        "profile": life.profile,
        "state": life.state,
        "text": life.text,
        "pins": life.probe.pins if life.probe else None,
        "windows": life.probe.windows if life.probe else None,
        "build": build_of(life.probe, served) or None,
    }


@lru_cache(maxsize=2 * LAST_REQUESTS)
def _brief(record: Record) -> dict[str, Any]:
    """A request that ended, in one line; ``/slotwise/requests/ID`` tells more."""
    return {
        "id": record.id,
        "time": round(record.time, 3),
        "profile": record.profile,
        "session": record.session[: words.SESSION_CHARS],
        "kind": record.kind,
        "slot": str(record.slot),
        "rule": record.rule.value,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached,
        "out_tokens": record.out_tokens,
        "wait_s": round(record.wait_s, 3),
        "ttft_s": record.known.ttft_s,
        "failure": record.failure.value if record.failure else None,
        "text": explain.culprit(record),
    }


@cache
def version() -> str:
    """Of the installed package; looked for on the disk, so once."""
    try:
        return metadata.version("slotwise")
    except metadata.PackageNotFoundError:
        return "unknown"

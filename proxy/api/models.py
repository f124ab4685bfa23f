"""``/v1/models`` as the engines answer it, under the names that profiles have.

Clients read the context size from ``meta.n_ctx`` and use the ids as they are; so every id here is
a name that a request may use, and ``n_ctx`` is what one slot can hold. The engines' answers are
kept, so the list is there while an engine is busy, loading or gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slotwise.proxy.serving.driver import Driver
from slotwise.proxy.serving.served import ServedProfile


def models_answer(driver: Driver) -> dict[str, Any]:
    """All profiles, each under its name and its aliases."""
    entries = [entry for p in driver.profiles.values() for entry in _entries(driver, p)]
    described = [
        _described(driver.engines.models.get(p.name), p.name) for p in driver.profiles.values()
    ]
    return {
        "object": "list",
        "data": entries,
        # llama-server gives this second list, in another vendor's form, beside the first.
        "models": [entry for entry in described if entry is not None],
    }


def _entries(driver: Driver, profile: ServedProfile) -> Iterator[dict[str, Any]]:
    own = _first(driver.engines.models.get(profile.name), "data") or {
        "object": "model",
        "created": 0,
        "owned_by": "llamacpp",
    }
    names = [profile.name, *profile.aliases]
    n_ctx = driver.scheduler.largest_window(profile.name)
    meta = own.get("meta")
    for name in names:
        entry = {**own, "id": name, "aliases": names}
        if isinstance(meta, dict) and n_ctx is not None:
            entry["meta"] = {**meta, "n_ctx": n_ctx}
        yield entry


def _described(answer: Mapping[str, Any] | None, name: str) -> dict[str, Any] | None:
    own = _first(answer, "models")
    return None if own is None else {**own, "name": name, "model": name}


def _first(answer: Mapping[str, Any] | None, field: str) -> dict[str, Any] | None:
    """The one model that a llama-server tells of."""
    listed = answer.get(field) if isinstance(answer, Mapping) else None
    one = listed[0] if isinstance(listed, list) and listed else None
    return one if isinstance(one, dict) else None

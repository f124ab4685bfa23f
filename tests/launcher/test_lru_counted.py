"""An engine that chooses slots itself says so in its log, and slotwise counts it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.running_proxy import samples
from tests.support import Slotwise, stub_binary, wait_until

COUNTED = 'slotwise_engine_lru_selections_total{engine="main"}'


def profile(folder: Path, **stub: bool) -> Path:
    path = folder / "main.yaml"
    binary = str(stub_binary(folder, **stub))
    server = {"binary": binary, "model": "embedded:tiny", "parallel": 2, "ctx_size": 4096}
    memory = {"floor_gib": 0.1, "hard_floor_gib": 0.05}
    path.write_text(json.dumps({"name": "main", "server": server, "memory": memory}))
    return path


def counted_after_a_chat(slotwise: Slotwise) -> float:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = httpx.post(f"{slotwise.url}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == httpx.codes.OK, answer.text
    return samples(httpx.get(f"{slotwise.url}/metrics").text)[COUNTED]


@pytest.mark.slow
def test_a_choice_by_lru_is_counted(tmp_path: Path) -> None:
    with Slotwise(profile(tmp_path, own_choice=True), "--state-dir", tmp_path / "s") as slotwise:
        wait_until(lambda: counted_after_a_chat(slotwise) > 0, what="a counted choice")


@pytest.mark.slow
def test_pinned_requests_make_none(tmp_path: Path) -> None:
    with Slotwise(profile(tmp_path), "--state-dir", tmp_path / "s") as slotwise:
        assert counted_after_a_chat(slotwise) == 0

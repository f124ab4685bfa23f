"""``slotwise serve`` on a machine that runs out of memory, by a scripted meminfo: all of it real
but the figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_proxy import samples
from tests.scripted_meminfo import ScriptedMeminfo
from tests.support import Slotwise, wait_until

SMALL = ("titles", "vision", "spare")


def profile(folder: Path) -> Path:
    path = folder / "main.yaml"
    server = {"binary": "embedded", "model": "embedded:tiny", "parallel": 2, "ctx_size": 4096}
    memory = {
        "meminfo": "meminfo",
        "floor_gib": 15,
        "peak_gib": 0.5,
        "sample_s": 0.05,
        "reload_s": 0.5,
    }
    roles = [
        {"name": "titles", "profile": "small.yaml", "claim_gib": 3},
        {"name": "vision", "profile": "small.yaml", "claim_gib": 40},
        {"name": "spare", "profile": "small.yaml", "claim_gib": 1, "on_demand": True},
    ]
    tuned = {**server, "threads": 1}
    path.write_text(json.dumps({"name": "main", "server": tuned, "memory": memory, "roles": roles}))
    (folder / "small.yaml").write_text(json.dumps({"name": "small", "server": tuned}))
    return path


class Served:
    """A running slotwise, asked as clients and operators do."""

    def __init__(self, url: str) -> None:
        self.url = url

    def memory(self) -> dict[str, Any]:
        told: dict[str, Any] = httpx.get(f"{self.url}/slotwise/status").json()["memory"]
        return told

    def roles(self) -> dict[str, str]:
        states: dict[str, str] = self.memory()["roles"]
        return states

    def chat(self, model: str) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=30)

    def metrics(self) -> dict[str, float]:
        return samples(httpx.get(f"{self.url}/metrics").text)


@pytest.mark.slow
@pytest.mark.timeout(300)  # each wait in it has its own bound
def test_small_models_then_the_engine_give_way_and_all_come_back(tmp_path: Path) -> None:
    """Field report R44: below the hard floor the server is ended in order; nothing hangs."""
    state = tmp_path / "state"
    with (
        ScriptedMeminfo(tmp_path / "meminfo", 40) as machine,
        Slotwise(profile(tmp_path), "--state-dir", state) as slotwise,
    ):
        served = Served(slotwise.url)
        assert served.roles() == {"titles": "loaded", "vision": "unloaded", "spare": "off"}
        # One that is not there keeps nobody waiting.
        assert httpx.get(f"{slotwise.url}/health/ready").status_code == 200
        assert served.chat("main").status_code == 200
        assert served.chat("titles").status_code == 200
        assert served.chat("spare").status_code == 200  # loaded because it was asked for
        refused = served.chat("vision")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "unloaded_for_memory"
        assert int(refused.headers["retry-after"]) >= 1

        machine.say(8)
        wait_until(lambda: "main" in served.memory()["unloaded"], 30, "the engine is ended")
        assert set(served.roles().values()) == {"unloaded"}
        gone = served.chat("main")
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "unloaded_for_memory")
        assert httpx.get(f"{slotwise.url}/health").status_code == 200
        assert httpx.get(f"{slotwise.url}/health/ready").status_code == 503
        assert served.metrics()['slotwise_reclaims_total{level="role",result="too_little"}'] == 2

        machine.say(40)
        back = {"titles": "loaded", "vision": "unloaded", "spare": "loaded"}
        wait_until(lambda: served.roles() == back, 60, "the small models are back")
        wait_until(lambda: served.chat("main").status_code == 200, 30, "the engine serves again")
        assert served.metrics()['slotwise_role_state{role="titles",state="loaded"}'] == 1
    _journal_is_complete(state)


def _journal_is_complete(state: Path) -> None:
    lines = [json.loads(line) for line in (state / "residency.jsonl").read_text().splitlines()]
    told = [(line["action"], line["name"]) for line in lines]
    assert told[:4] == [
        ("load", "main"),
        ("load", "titles"),
        ("refuse", "vision"),
        ("load", "spare"),
    ]
    assert told[4:7] == [("unload", "spare"), ("unload", "titles"), ("unload", "main")]
    assert told[7:10] == [("load", "main"), ("load", "titles"), ("load", "spare")]
    assert "40.00 claim" in lines[2]["verdict"]
    assert all(line["time"] for line in lines)

"""One moment, seen four ways: the status, the page, the terminal and the series say the same."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from slotwise.launcher.cli import status as terminal
from slotwise.policies.admission import Limits
from slotwise.policies.params import Params
from slotwise.proxy.core.memory import MemoryRules
from slotwise.proxy.memory.meminfo import MemInfo
from slotwise.proxy.memory.watch import MemoryWatch
from tests.browser import chromium, page
from tests.proxy.api.test_lanes_page import PAGE, asking, known
from tests.running_proxy import RunningProxy, run_proxy
from tests.scripted_meminfo import GIB, ScriptedMeminfo, zones
from tests.support import StubServer, wait_until

SLOTS = range(4)
TWO_RUN = Params(max_running=2)


def in_terminal(url: str) -> str:
    """The first frame of ``slotwise top``, its lines with single spaces."""

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            super().write(text)
            if "last requests" in self.getvalue():
                raise KeyboardInterrupt
            return len(text)

    screen = Screen()
    console = Console(file=screen, force_terminal=True, color_system=None, width=150, height=90)
    args = argparse.Namespace(url=url, key=None, interval=1.0)
    assert terminal.run_top(args, console) == 0
    return "\n".join(" ".join(line.split()) for line in screen.getvalue().splitlines())


def on_page(seen: Any) -> dict[str, Any]:
    """What a person reads there."""
    tiles = {
        tile.locator("dt").inner_text(): tile.locator("dd").all_inner_texts()
        for tile in seen.locator(".tile").all()
    }
    return {
        "tiles": tiles,
        "resident": [
            int(meter.get_attribute("aria-valuenow")) for meter in seen.locator(".track").all()
        ],
        "states": seen.locator(".lane .does").all_inner_texts(),
        "why": seen.locator(".line .why").all_inner_texts(),
        "memory": {
            row.locator(".text").inner_text().partition(":")[0]: row.locator(".value").inner_text()
            for row in seen.locator("#memory li").all()
        },
    }


def check_terminal(told: dict[str, Any], text: str) -> None:
    profile, memory = told["profiles"]["p"], told["memory"]
    assert f"running {profile['running']} of 2 waiting {len(profile['waiting'])}" in text
    assert f"reuse, last hour {profile['last_hour']['ratio']:.1%}" in text
    assert f"memory {memory['available_bytes'] / GIB:.1f} GiB free, floor 15.0 GiB" in text
    for slot in profile["engines"]["p-0"]["slots"]:
        full = f"{slot['resident'] / slot['window']:.1%}"
        assert any(full in line and slot["text"] in line for line in text.splitlines()), slot
    for waiter in profile["waiting"]:
        assert waiter["text"] in text
    for name, n_bytes in memory["parts"].items():
        assert f"{n_bytes / GIB:.1f} GiB {name}" in text


def check_page(told: dict[str, Any], read: dict[str, Any]) -> None:
    profile, memory = told["profiles"]["p"], told["memory"]
    slots = profile["engines"]["p-0"]["slots"]
    assert read["tiles"]["Running"] == [str(profile["running"]), "of 2 at once"]
    assert read["tiles"]["Waiting"][0] == str(len(profile["waiting"]))
    assert read["tiles"]["Reuse, last hour"][0] == f"{profile['last_hour']['ratio']:.1%}".replace(
        "%", " %"
    )
    assert read["tiles"]["Memory available"] == [
        f"{memory['available_bytes'] / GIB:.1f} GiB",
        "floor 15.0 GiB",
    ]
    assert read["resident"] == [slot["resident"] for slot in slots]
    assert read["states"] == [slot["text"] for slot in slots]
    assert read["why"] == [waiter["text"] for waiter in profile["waiting"]]
    shown = {name: f"{n_bytes / GIB:.1f} GiB" for name, n_bytes in memory["parts"].items()}
    assert shown.keys() == {"slotwise", "other", "free_lists"}
    assert read["memory"].items() >= shown.items()


def check_series(told: dict[str, Any], series: dict[str, float]) -> None:
    profile, memory = told["profiles"]["p"], told["memory"]
    slots = profile["engines"]["p-0"]["slots"]
    assert series['slotwise_requests_running{engine="p-0"}'] == profile["running"]
    waiting = {k: v for k, v in series.items() if k.startswith("slotwise_requests_waiting") and v}
    reasons = [waiter["reason"] for waiter in profile["waiting"]]
    assert waiting == {
        f'slotwise_requests_waiting{{profile="p",reason="{reason}"}}': reasons.count(reason)
        for reason in reasons
    }
    for slot in slots:
        labels = f'{{engine="p-0",slot="{slot["id_slot"]}"}}'
        assert series[f"slotwise_slot_resident_tokens{labels}"] == slot["resident"]
        assert series[f"slotwise_slot_busy{labels}"] == (slot["state"] != "idle")
    hour = profile["last_hour"]
    for source, tokens in (
        ("cached", hour["cached_tokens"]),
        ("evaluated", hour["reported_tokens"] - hour["cached_tokens"]),
    ):
        total = "slotwise_prompt_tokens_total{"
        found = [v for k, v in series.items() if k.startswith(total) and source in k]
        assert sum(found) == tokens
    assert series["slotwise_memory_available_bytes"] == memory["available_bytes"]
    for part, n_bytes in memory["parts"].items():
        assert series[f'slotwise_memory_part_bytes{{part="{part}"}}'] == n_bytes
    assert series["slotwise_memory_floor_bytes"] == memory["floor_bytes"]
    assert series["slotwise_memory_hard_floor_bytes"] == memory["hard_floor_bytes"]


def watched(meminfo: Path) -> dict[str, Any]:
    limits = Limits(floor_gib=15)
    zoneinfo = meminfo.with_name("zoneinfo")
    zoneinfo.write_text(zones(3 * GIB))
    watch = MemoryWatch(MemInfo(meminfo, cgroup="off", zoneinfo=zoneinfo), 0.1)
    return {"memory": MemoryRules(limits), "watch": watch}


def moment(proxy: RunningProxy) -> tuple[dict[str, Any], str, dict[str, float]]:
    """Status, terminal and series, with nothing happening in between."""
    told = httpx.get(f"{proxy.url}/slotwise/status").json()
    return told, in_terminal(proxy.url), proxy.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("with_page", [False, True], ids=["terminal", "page"])
def test_status_page_top_and_metrics_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_page: bool
) -> None:
    monkeypatch.setattr(
        "slotwise.proxy.memory.watch._PARTS_EVERY_S", 3600.0
    )  # all see the same measurement
    with (
        ScriptedMeminfo(tmp_path / "meminfo", 60) as meminfo,
        StubServer() as stub,
        run_proxy(stub, params=TWO_RUN, driver_options=watched(meminfo.path)) as proxy,
    ):
        proxy.inside(proxy.driver.memory.start)
        for text in ("a " * 800, "a " * 800 + "b " * 90, "c " * 700):
            proxy.chat(text).raise_for_status()
        stub.configure(stall_after_tokens=2)
        wait_until(lambda: proxy.inside(lambda: proxy.driver.memory.watch.parts()))  # type: ignore[union-attr]
        with asking(proxy, "d " * 900, "e " * 900, "f " * 900, "g " * 900):
            wait_until(lambda: known(proxy) == (2, 2))
            wait_until(lambda: in_terminal(proxy.url).count("answering") == 2)
            told, text, series = moment(proxy)
            check_terminal(told, text)
            check_series(told, series)
            assert sum(told["memory"]["parts"].values()) == 68 * GIB
            assert told["memory"]["parts"]["free_lists"] == 3 * GIB
            assert min(told["memory"]["parts"].values()) >= 0
            if with_page:
                with chromium() as browser, page(browser, proxy.url + PAGE) as seen:
                    seen.locator(".lane").nth(3).wait_for()
                    check_page(told, on_page(seen))

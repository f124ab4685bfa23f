"""The committed dashboards are what the script writes, and what Grafana's own types take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from slotwise.configs.grafana import generate

NAMES = ("engine.json", "memory.json", "reuse.json", "scheduling.json")


def panels(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((generate.FOLDER / name).read_text())["panels"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    """The title and the expression of every query of every panel."""
    for name in NAMES:
        for panel in panels(name):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]


def test_the_files_are_what_the_script_writes_byte_for_byte() -> None:
    written = {path.name: path.read_bytes() for path in generate.FOLDER.glob("*.json")}
    assert written == {name: text.encode() for name, text in generate.files().items()}
    assert sorted(written) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_types_read_a_dashboard_and_lose_nothing(name: str) -> None:
    register_default_plugins()
    text = (generate.FOLDER / name).read_text()
    read = Dashboard.from_json(json.loads(text))
    assert JSONEncoder(sort_keys=True, indent=2).encode(read) + "\n" == text


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_a_unit_a_description_and_the_chosen_source(name: str) -> None:
    assert len({panel["id"] for panel in panels(name)}) == len(panels(name))
    for panel in panels(name):
        unit = panel["fieldConfig"]["defaults"].get("unit")
        assert unit
        assert panel["title"]
        assert len(panel["description"]) > 20
        assert {target["refId"] for target in panel["targets"]}
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("name", NAMES)
def test_source_profile_and_engine_can_be_chosen(name: str) -> None:
    told = json.loads((generate.FOLDER / name).read_text())
    variables = {one["name"]: one for one in told["templating"]["list"]}
    assert list(variables) == ["datasource", "profile", "engine"]
    assert variables["datasource"]["query"] == "prometheus"
    assert told["uid"] == f"slotwise-{name.removesuffix('.json')}"


def test_the_provisioned_path_is_where_the_documented_mount_puts_the_files() -> None:
    (provider,) = yaml.safe_load((generate.FOLDER / "slotwise.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/provisioning/dashboards"


def test_a_line_for_who_has_none_stands_beside_no_other() -> None:
    """PromQL's plain ``or`` adds whatever has other labels: 0 of nobody beside real figures."""
    told = [expr for _, expr in queries() if " or " in expr]
    assert len(told) == 3
    assert all(" or on() label_replace(vector(0)" in expr for expr in told)

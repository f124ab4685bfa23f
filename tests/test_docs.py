"""The pages under docs/ name what the code has, and nothing else."""

from __future__ import annotations

import re

from slotwise.launcher.profile.settings import LaunchedServer, MemorySection, RoleSection
from slotwise.policies.params import KNOBS
from slotwise.proxy.telemetry.metrics import Metrics
from tests.support import ROOT


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    text = (ROOT / "docs" / page).read_text()
    table = text.split(heading, 1)[1].split("\n## ", 1)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_server_key_is_described() -> None:
    assert [row[0] for row in rows("profiles.md", "## server")] == list(LaunchedServer.model_fields)


def test_every_memory_key_is_described_with_its_default() -> None:
    def shown(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value or "-")

    expected = {n: shown(f.default) for n, f in MemorySection.model_fields.items()}
    assert {row[0]: row[1] for row in rows("profiles.md", "## memory")} == expected


def test_every_role_key_is_described() -> None:
    assert [row[0] for row in rows("profiles.md", "## roles")] == list(RoleSection.model_fields)


def test_every_knob_is_described_with_its_default() -> None:
    def shown(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else f"{value:g}"

    expected = [
        [name, shown(knob.default), knob.metadata["unit"], knob.metadata["why"]]
        for name, knob in KNOBS.items()
    ]
    assert rows("profiles.md", "## policy") == expected


def test_every_series_is_described_with_its_labels() -> None:
    exposition = Metrics(["p"]).exposition()[0].decode()
    exported = set(re.findall(r"^# TYPE (slotwise_\w+)", exposition, re.MULTILINE))
    described = {row[0] for row in rows("metrics.md", "# Metrics")}
    assert described == exported

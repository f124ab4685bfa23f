"""Whose memory a GPU's is, by what ``nvidia-smi`` answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.launcher.plan import memory_plan


@pytest.mark.parametrize(
    ("answer", "own_mib"),
    [
        ("echo '[N/A]'", None),
        ("echo 'Not Supported'; exit 3", None),
        ("echo 24564; echo 24564", 49128),
    ],
)
def test_whose_memory_the_gpus_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, own_mib: int | None
) -> None:
    """Field report R30: on GB10 the tool knows no figure, and many readers stumble over that."""
    _tool(tmp_path, monkeypatch, answer)
    monkeypatch.setattr(memory_plan, "_ASK_LIMIT_S", 100.0)
    assert memory_plan.gpu_own_memory_mib() == own_mib


def test_a_tool_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _tool(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(memory_plan, "_ASK_LIMIT_S", 0.1)
    assert memory_plan.gpu_own_memory_mib() is None


def _tool(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_no_nvidia_smi_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory_plan.gpu_own_memory_mib() is None

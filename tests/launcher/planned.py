"""A machine made up, the profiles that come along on it, and the plan that is made for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slotwise.launcher.plan import memory_plan
from slotwise.launcher.plan.memory_plan import Outcome
from slotwise.launcher.plan.plan import Machine
from slotwise.launcher.profile import profile
from tests.launcher import big_models as big
from tests.launcher import headers

GB, GIB = 10**9, 2**30
BIG = {
    "qwen3.8-flash-next": (big.QWEN38_FLASH_NEXT, 93_600_000_000),
    "qwen3.8-27b": (big.QWEN35_27B, 20 * GB),
    "qwen3.6-35b-a3b": (big.QWEN36_35B_A3B, 37 * GB),
}


def meminfo_file(folder: Path, total_gib: float = 121.7, available_gib: float = 117.0) -> Path:
    """A GB10 box at rest."""
    path = folder / "meminfo"
    lines = [
        f"MemTotal:       {round(total_gib * 2**20)} kB",
        "MemFree:         2097152 kB",
        f"MemAvailable:   {round(available_gib * 2**20)} kB",
        "HugePages_Total:       0",
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def profile_file(folder: Path, name: str, **server: Any) -> Path:
    """A profile that comes along, its model a header of the right size, its engine a script."""
    values, size_bytes = BIG[name]
    data = yaml.safe_load((profile.CONFIGS / f"{name}.yaml").read_text())
    program = folder / "llama-server"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    model = headers.write(folder / f"{name}.gguf", values, size_bytes)
    data["server"] |= {"binary": str(program), "model": str(model)} | server
    data["memory"] |= {"meminfo": str(folder / "meminfo")}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def outcome_of(folder: Path, *paths: Path, available_gib: float = 117.0) -> Outcome:
    profiles = profile.load_all([str(path) for path in paths], {})
    box = Machine(round(121.7 * GIB), round(available_gib * GIB), 15 * GIB, "meminfo")
    return memory_plan.outcome(profiles, folder / "state", box)

"""Profiles and model headers as files, and the faults found in them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotwise.launcher.profile import profile
from slotwise.launcher.profile.profile import Profile, ProfileError


def no_policy_faults(policy: Mapping[str, Any]) -> list[str]:
    return [f"policy.{name}: bad" for name in policy if name == "bad"]


def gguf(path: Path, window: int | None = None, context: int = 4096) -> Path:
    """A GGUF header without tensors."""
    keys = {"llama.context_length": context}
    if window is not None:
        keys["llama.attention.sliding_window"] = window

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys) + 2)
    data += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    data += text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    for key, value in keys.items():
        data += text(key) + struct.pack("<II", 4, value)
    path.write_bytes(data)
    return path


def load(directory: Path, *profiles: Any) -> list[Profile]:
    """These profiles, given as data or as YAML, by way of files ``p0.yaml``, ``p1.yaml``, ..."""
    paths = []
    for number, data in enumerate(profiles):
        path = directory / f"p{number}.yaml"
        path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
        paths.append(str(path))
    return profile.load_all(paths, {"policy": no_policy_faults})


def faults_of(directory: Path, *profiles: Any) -> list[str]:
    """The faults, without the directory they name."""
    with pytest.raises(ProfileError) as raised:
        load(directory, *profiles)
    return [fault.replace(f"{directory}/", "") for fault in raised.value.faults]

"""The ``roles`` of a profile: small models with profiles of their own, or all faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotwise.launcher.profile.profile import Profile, ProfileError, load_all
from slotwise.launcher.profile.settings import NAME_RULE

SERVER = {"model": "embedded:tiny", "parallel": 1, "ctx_size": 1024}


def load(folder: Path, roles: Any, **files: Any) -> list[Profile]:
    """The profiles of a main model with these roles; ``files``: more profiles, by their names."""
    whole = {"main": {"name": "main", "server": SERVER, "roles": roles}, **files}
    for name, content in whole.items():
        (folder / f"{name}.yaml").write_text(json.dumps(content))
    return load_all([str(folder / "main.yaml")], {})


def test_each_is_a_profile_under_its_own_name_in_its_order(tmp_path: Path) -> None:
    roles = [
        {"name": "titles", "profile": "small.yaml", "claim_gib": 3, "order": 7},
        {"name": "vision", "profile": "small.yaml", "claim_gib": 6.5, "on_demand": True},
        {"name": "spare", "profile": "tiny", "claim_gib": 1, "unload": "never"},
    ]
    loaded = load(tmp_path, roles, small={"name": "small", "server": SERVER})
    assert [p.name for p in loaded] == ["main", "titles", "vision", "spare"]
    found = [p.role for p in loaded[1:] if p.role is not None]
    assert [r.order for r in found] == [7, 2, 3]
    assert [(r.on_demand, r.unload) for r in found] == [
        (False, "auto"),
        (True, "auto"),
        (False, "never"),
    ]
    assert loaded[0].role is None


@pytest.mark.parametrize(
    ("roles", "faults"),
    [
        (
            {"name": "a"},
            ["roles: expected a list of small models, each a section, got {'name': 'a'}"],
        ),
        (["a"], ["roles[0]: expected a list of small models, each a section, got 'a'"]),
        (
            [{"name": "a b", "profile": "tiny", "claim_gib": 0, "order": 0, "unload": "x", "z": 1}],
            [
                f"roles[0].name: expected {NAME_RULE}, got 'a b'",
                "roles[0].claim_gib: expected GiB that it takes at most, above 0, got 0",
                "roles[0].order: expected a number, 1 to 1000: the first is loaded first, got 0",
                "roles[0].unload: expected auto or never, got 'x'",
                "roles[0].z: unknown key, expected one of "
                "name, profile, claim_gib, order, on_demand, unload",
            ],
        ),
        (
            [{"name": "a", "profile": "gone.yaml", "claim_gib": 1}],
            ["roles[0].profile: expected a YAML file or a name, got 'gone.yaml': no file"],
        ),
        (
            [{"name": "a", "profile": "far.yaml", "claim_gib": 1}],
            ["roles[0].profile: far.yaml: server: expected a model that slotwise starts"],
        ),
        (
            [{"name": "a", "profile": "deep.yaml", "claim_gib": 1}],
            ["roles[0].profile: deep.yaml: roles: expected none beside another model"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_path(tmp_path: Path, roles: Any, faults: list[str]) -> None:
    attached = {"attach": "http://127.0.0.1:1", "parallel": 1, "kv_unified": False}
    far = {"name": "far", "server": {**attached, "cache_ram_mib": 0}}
    inner = [{"name": "b", "profile": "tiny", "claim_gib": 1}]
    deep = {"name": "deep", "server": SERVER, "roles": inner}
    with pytest.raises(ProfileError) as told:
        load(tmp_path, roles, far=far, deep=deep)
    assert [f.replace(f"{tmp_path}/", "") for f in told.value.faults] == [
        f"main.yaml: {fault}" for fault in faults
    ]

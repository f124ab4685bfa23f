"""A profile is right, or every fault in it is told at once, with its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotwise.launcher.profile import profile
from slotwise.launcher.profile.profile import ProfileError
from slotwise.launcher.profile.settings import AttachedServer, LaunchedServer
from tests.launcher.written import faults_of, gguf, load


def test_the_defaults_of_a_short_profile(tmp_path: Path, plain: dict[str, Any]) -> None:
    (one,) = load(tmp_path, plain)
    assert one.windows == [2048] * 4
    assert one.model == (tmp_path / "model.gguf").resolve()
    assert (one.server.cache_ram_mib, one.server.kv_unified, one.names) == (0, False, ("one",))


def test_every_fault_is_told_at_once_with_its_path(tmp_path: Path) -> None:
    data = {
        "name": "-x",
        "aliases": ["ok", 3],
        "nope": 1,
        "server": {
            "model": "gone.gguf",
            "parallel": "4",
            "gpu_layers": "many",
            "flash_attn": "perhaps",
            "env": {"A": 3, "LLAMA_ARG_X": "1"},
            "extra_args": ["-np", "3"],
            "unknown": 1,
        },
        "policy": {"bad": 1},
        "memory": {"floor_gb": 8},
        "api_keys_file": "gone.yaml",
    }
    faults = [fault.removeprefix("p0.yaml: ") for fault in faults_of(tmp_path, data)]
    assert [fault.split(": ")[0] for fault in faults] == [
        "name",
        "aliases[1]",
        "nope",
        "server.parallel",
        "server.ctx_size",
        "server.gpu_layers",
        "server.flash_attn",
        "server.env.A",
        "server.unknown",
        "server.model",
        "server.env.LLAMA_ARG_X",
        "server.extra_args[0]",
        "policy.bad",
        "memory.floor_gb",
        "api_keys_file",
    ]
    assert faults[3] == "server.parallel: expected a number of slots, 1 to 256, got '4'"
    assert faults[4].endswith("256 or more, got nothing")
    assert "unknown key, expected one of name, aliases, server" in faults[2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ctx_size": 512}, "server.ctx_size: expected at least 256 for each of 4 slots, 1024"),
        ({"ctx_size": 32768}, "server.ctx_size: expected at most 16384, 4096 (the model's own)"),
        ({"ubatch_size": 1024}, "server.ubatch_size: expected at most batch_size, 512, got 1024"),
        (
            {"batch_size": 3},
            "server.batch_size: expected a token for each slot, at least 4, got 3",
        ),
        ({"batch_size": 1}, "server.batch_size: expected a number of tokens, 2 to 65536, got 1"),
        ({"windows": [256] * 4}, "server.windows: expected none without kv_unified"),
        ({"kv_unified": True, "windows": [256]}, "server.windows: expected 4 numbers, one a slot"),
        (
            {"kv_unified": True, "windows": [4096] * 4},
            "server.windows: expected a sum of at most ctx_size, 8192",
        ),
        ({"mmproj": "gone"}, "server.mmproj: expected the path of a GGUF file, got 'gone'"),
        ({"binary": "no-such-llama"}, "server.binary: expected the name or path of a program"),
        (
            {"binary": "./model.gguf"},
            "server.binary: expected the name or path of a program, got './model.gguf': the file",
        ),
        ({"binary": "~nobody-here/llama-server"}, "server.binary: expected the name or path"),
        ({"model": "~nobody-here/m.gguf"}, "server.model: expected the path of a GGUF file"),
        ({"mmproj": "~nobody-here/m"}, "server.mmproj: expected the path of a GGUF file"),
        ({"model": "embedded:huge"}, "server.model: expected a path or one of embedded:smol"),
        ({"model": "p0.yaml"}, "server.model: expected a GGUF file, got 'p0.yaml': not a GGUF"),
        ({"extra_args": ["--foo"]}, "server.extra_args: the embedded engine says: invalid arg"),
        ({"parallel": True}, "server.parallel: expected a number of slots, 1 to 256, got True"),
        ({"start_timeout_s": 0}, "server.start_timeout_s: expected seconds, up to 86400, got 0"),
    ],
)
def test_what_does_not_fit_together_is_told(
    tmp_path: Path, plain: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    plain["server"] |= change
    (fault,) = faults_of(tmp_path, plain)
    assert fault.startswith(f"p0.yaml: {told}")


def test_cache_reuse_is_refused_with_a_sliding_window_and_with_images(
    tmp_path: Path, plain: dict[str, Any]
) -> None:
    gguf(tmp_path / "swa.gguf", window=512)
    plain["server"] |= {"model": "swa.gguf", "mmproj": "model.gguf", "cache_reuse": 256}
    faults = faults_of(tmp_path, plain)
    assert [fault.split(", got")[0] for fault in faults] == [
        "p0.yaml: server.cache_reuse: expected 0 with an mmproj",
        "p0.yaml: server.cache_reuse: expected 0 for a model with a sliding window (512 tokens)",
    ]


def test_a_sliding_window_without_swa_full_is_a_note(tmp_path: Path, plain: dict[str, Any]) -> None:
    gguf(tmp_path / "model.gguf", window=512)
    (one,) = load(tmp_path, plain)
    assert "sliding window of 512 tokens" in one.notes[0]
    plain["server"]["swa_full"] = True
    assert load(tmp_path, plain)[0].notes == ()


def test_a_window_is_padded_as_llama_cpp_pads_it(tmp_path: Path, plain: dict[str, Any]) -> None:
    plain["server"] |= {"ctx_size": 3000, "parallel": 2}
    assert load(tmp_path, plain)[0].windows == [1536, 1536]


def test_yaml_on_and_off_are_words(tmp_path: Path, plain: dict[str, Any]) -> None:
    text = yaml.safe_dump(plain).replace("parallel:", "flash_attn: off\n  parallel:")
    (one,) = load(tmp_path, text)
    assert not isinstance(one.server, AttachedServer)
    assert one.server.flash_attn == "off"


def test_an_attached_server_declares_what_it_does_not_tell(tmp_path: Path) -> None:
    data = {"name": "far", "server": {"attach": "http://127.0.0.1:8080/v1"}}
    faults = faults_of(tmp_path, data)
    assert [fault.split(": ")[1] for fault in faults] == [
        "server.attach",
        "server.parallel",
        "server.kv_unified",
        "server.cache_ram_mib",
    ]


def test_an_attached_server_may_have_a_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("# of the engine\nsecret-key\n")
    server = {"attach": "http://127.0.0.1:8080", "parallel": 4, "kv_unified": False}
    server |= {"cache_ram_mib": 0, "api_key_file": "key"}
    (far,) = load(tmp_path, {"name": "far", "server": server})
    assert far.engine_key == "secret-key"
    assert "secret-key" not in repr(far)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1", "line 1, column 6: "),
        ("name: a\nname: b\n", "line 2, column 1: the key 'name' is given twice"),
        ("- 1\n", "expected a mapping (key: value), got list"),
        ("", "expected a mapping (key: value), got NoneType"),
        ("a: \x00", ""),
        ("? [1]\n: 2\n", ""),
        ("!!python/object:os.system {}\n", ""),
    ],
)
def test_what_is_not_a_yaml_mapping_is_one_line(tmp_path: Path, text: str, told: str) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert fault.startswith(f"p0.yaml: {told}")
    assert "\n" not in fault


def test_a_value_that_unfolds_without_end_is_shown_short(tmp_path: Path) -> None:
    nest = "a: &a [x, x]\n" + "".join(
        f"{name}: &{name} [*{inner}, *{inner}]\n"
        for inner, name in zip(
            "abcdefghijklmnopqrstuvwxy", "bcdefghijklmnopqrstuvwxyz", strict=True
        )
    )
    faults = faults_of(tmp_path, f"{nest}name: *z\nserver: *z\n")
    assert max(len(fault) for fault in faults) < 300


def test_a_missing_profile_names_those_that_come_along(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"expected a YAML file, or one of demo, qwen3\.6-35b"):
        profile.load_all(["nosuch"], {})


def test_a_name_used_twice_is_a_fault(tmp_path: Path, plain: dict[str, Any]) -> None:
    other = plain | {"name": "two", "aliases": ["one"]}
    assert faults_of(tmp_path, plain, other) == [
        "p1.yaml: name or alias 'one' is used twice, also in p0.yaml"
    ]


def test_keys_are_read_by_name_and_never_shown(tmp_path: Path, plain: dict[str, Any]) -> None:
    plain["api_keys_file"] = "keys.yaml"
    (tmp_path / "keys.yaml").write_text("alice: alice-key-1\nbob: bob-key-22\n")
    assert load(tmp_path, plain)[0].api_keys == {"alice": "alice-key-1", "bob": "bob-key-22"}
    (tmp_path / "keys.yaml").write_text("alice: short\nbob: 123456789\n")
    faults = faults_of(tmp_path, plain)
    assert [fault.split(": ")[3] for fault in faults] == ["alice", "bob"]
    assert not any("short" in fault or "123456789" in fault for fault in faults)


def test_the_profiles_that_come_along_have_no_fault() -> None:
    from slotwise.policies.params import from_mapping

    names = profile.brought()
    assert {"demo", "tiny"} <= set(names)
    loaded = profile.load_all(["tiny"], {"policy": lambda policy: from_mapping(policy)[1]})
    assert loaded[0].windows == [32768] * 4


def test_a_path_to_the_engine_counts_from_the_profile_and_is_absolute_on_the_launch_line(
    tmp_path: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "bin" / "llama-server"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(own.parent), prepend=os.pathsep)
    for given, started in (
        ("bin/llama-server", str(own)),
        ("~/bin/llama-server", str(own)),
        ("llama-server", "llama-server"),
    ):
        plain["server"]["binary"] = given
        server = load(tmp_path, plain)[0].server
        assert isinstance(server, LaunchedServer)
        assert server.binary == started


def test_a_keys_file_may_lie_in_the_home_directory(
    tmp_path: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "keys.yaml").write_text("alice: a-long-secret\n")
    monkeypatch.setenv("HOME", str(home))
    plain["api_keys_file"] = "~/keys.yaml"
    assert load(tmp_path, plain)[0].api_keys == {"alice": "a-long-secret"}
    plain["api_keys_file"] = "~nobody-here/keys.yaml"
    assert "cannot read the file" in faults_of(tmp_path, plain)[0]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"floor_gib": 0}, "memory.floor_gib: expected GiB, above 0, got 0"),
        ({"floor_gib": float("inf")}, "memory.floor_gib: expected GiB, above 0, got inf"),
        (
            {"floor_gib": 8, "hard_floor_gib": 9},
            "memory.hard_floor_gib: expected at most floor_gib, 8, got 9",
        ),
        ({"stale_s": 0.8}, "memory.stale_s: expected at least twice sample_s, 1, got 0.8"),
        ({"meminfo": "gone"}, "memory.meminfo: expected the path of a file like /proc/meminfo"),
        ([1], "memory: expected a section, got [1]"),
    ],
)
def test_a_memory_section_that_does_not_fit_is_told(
    tmp_path: Path, plain: dict[str, Any], section: Any, told: str
) -> None:
    (fault,) = faults_of(tmp_path, plain | {"memory": section})
    assert fault.startswith(f"p0.yaml: {told}")


def test_a_memory_file_lies_beside_the_profile(tmp_path: Path, plain: dict[str, Any]) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    other = plain | {"name": "two", "memory": {"meminfo": "meminfo", "floor_gib": 8}}
    default, stated = (one.memory for one in load(tmp_path, plain, other))
    assert (default.meminfo, default.margin_gib, default.floor_gib) == ("/proc/meminfo", 4, None)
    assert (stated.meminfo, stated.floor_gib) == (str(tmp_path / "meminfo"), 8)

"""The launch line states all that pinning relies on, and a profile cannot break it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotwise.launcher.profile import engine_flags, launch
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import LaunchedServer

DIRECTORY = Path("/s")
HEAD = "-m /m/model.gguf --alias demo,other --host 127.0.0.1 --port 4711"
TAIL = "--slot-save-path /s/slots/ --metrics --slots"


def _profile(**server: Any) -> Profile:
    given: dict[str, Any] = {"model": "m", "parallel": 4, "ctx_size": 8192} | server
    model = Path("/m/model.gguf")
    return Profile("demo", ("other",), LaunchedServer(**given), {}, Path("demo.yaml"), model)


def _line(eye: Path | None = None, draft: Path | None = None, **server: Any) -> str:
    profile = replace(_profile(binary="llama-server", **server), mmproj=eye, draft_model=draft)
    line = launch.launch_line(profile, DIRECTORY, 4711)
    assert line[0] == "llama-server"
    return " ".join(line[1:])


def test_the_plain_line() -> None:
    assert _line() == (
        f"{HEAD} -np 4 -c 8192 --no-kv-unified --no-cache-idle-slots --cont-batching "
        f"--cache-prompt -sps 0 --cache-ram 0 --cache-reuse 0 --ctx-checkpoints 32 --fit off "
        f"-b 512 {TAIL}"
    )


def test_the_line_with_everything() -> None:
    assert _line(
        Path("/m/eye.gguf"),
        Path("/m/draft.gguf"),
        kv_unified=True,
        cache_ram_mib=2048,
        cache_reuse=256,
        swa_full=True,
        batch_size=1024,
        ubatch_size=256,
        threads=2,
        gpu_layers="all",
        flash_attn="on",
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        extra_args=["--no-warmup"],
    ) == (
        f"{HEAD} -np 4 -c 8192 --kv-unified --no-cache-idle-slots --cont-batching "
        f"--cache-prompt -sps 0.1 --cache-ram 2048 --cache-reuse 256 --ctx-checkpoints 32 "
        f"--fit off -b 1024 -ub 256 -t 2 -ngl all -fa on -ctk q8_0 -ctv q8_0 "
        f"--mmproj /m/eye.gguf -md /m/draft.gguf --swa-full {TAIL} --no-warmup"
    )


def test_a_ram_cache_without_limit_counts_as_one() -> None:
    assert "-sps 0.1 --cache-ram -1" in _line(cache_ram_mib=-1)


def test_the_embedded_engine_gets_the_same_flags() -> None:
    line = launch.launch_line(_profile(), DIRECTORY, 4711)
    assert line[:4] == [sys.executable, "-P", "-m", "slotwise.launcher.process.embedded"]
    assert " ".join(line[4:]) == _line()


@pytest.mark.parametrize(
    "given",
    [
        *("-np", "--parallel", "-c", "--ctx-size", "--kv-unified", "-no-kvu", "--cache-ram"),
        *("--cache-idle-slots", "--no-cache-prompt", "--no-cont-batching", "-nocb", "-sps"),
        *("--slot-prompt-similarity", "--host", "--port", "--api-key", "--api-key-file"),
        *("--slot-save-path", "--no-slots", "--sleep-idle-seconds", "--api-prefix"),
        *("--embedding", "--embeddings", "--reranking", "--lora-init-without-apply"),
        *("--context-shift", "--fit", "-hf", "--model", "--swa-full", "--batch-size"),
    ],
)
def test_an_argument_that_breaks_the_line_is_refused_in_every_spelling(given: str) -> None:
    spellings = [given, f"{given}=1"]
    if given.startswith("--"):
        spellings.append("--" + given[2:].replace("-", "_"))
    for spelling in spellings:
        (fault,) = engine_flags.extra_args_faults(["--no-warmup", spelling])
        assert fault.startswith(f"extra_args[1]: '{spelling}' is refused: ")


def test_an_argument_that_changes_nothing_here_is_let_through() -> None:
    assert engine_flags.extra_args_faults(["--no-warmup", "-lv", "4", "--lora", "a.gguf"]) == []


def test_the_engine_gets_its_key_by_the_environment_and_no_other_settings() -> None:
    server = LaunchedServer(
        binary="llama-server", model="m", parallel=1, ctx_size=256, env={"MINE": "1"}
    )
    inherited = {"PATH": "/bin", "LLAMA_ARG_N_PARALLEL": "9", "LLAMA_API_KEY": "old"}
    assert launch.launch_env(server, inherited, "new", Path("/s/engine")) == {
        "PATH": "/bin",
        "MINE": "1",
        "LLAMA_API_KEY": "new",
        "XDG_CONFIG_HOME": "/s/engine",
    }


def test_the_key_is_not_on_the_command_line() -> None:
    assert "--api-key" not in _line()


def test_llama_cpp_settings_in_the_environment_are_refused() -> None:
    assert (
        len(
            engine_flags.env_faults(["LLAMA_ARG_CTX_SIZE", "LLAMA_API_KEY", "CUDA_VISIBLE_DEVICES"])
        )
        == 2
    )


def test_what_shapes_the_prompts_of_infill_is_read_off_the_profile() -> None:
    def flags(*extra: str) -> dict[str, Any]:
        server = LaunchedServer(model="m", parallel=1, ctx_size=256, extra_args=list(extra))
        return launch.infill_flags(server)

    assert flags("--no-warmup", "-n") == {"n_batch": 512}
    assert flags("-n", "-1", "--spm-infill") == {
        "n_batch": 512,
        "n_predict": -1,
        "spm_infill": True,
    }
    assert flags("--n_predict", "64")["n_predict"] == 64


def test_a_line_without_extra_arguments_says_nothing_of_infill_but_the_batch() -> None:
    server = LaunchedServer(model="m", parallel=1, ctx_size=256)
    assert launch.infill_flags(server) == {"n_batch": 512}


def test_an_engine_process_does_not_load_what_reads_profiles() -> None:
    program = "import sys, slotwise.launcher.process.embedded; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0

"""Profile -> the command line of llama-server, and which extra arguments would break it.

The line states everything that pinning relies on, defaults included: a default may change with
the next build of the engine, and the line in the log is then still what ran.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotwise.launcher.settings import EMBEDDED, LaunchedServer

SIMILARITY_WITH_RAM_CACHE = "0.1"

# Spellings -> why a profile may not pass them by hand.
_REFUSED: Mapping[tuple[str, ...], str] = {
    ("-m", "--model", "-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"): (
        "set server.model"
    ),
    ("-a", "--alias"): "set name and aliases",
    ("-np", "--parallel"): "set server.parallel",
    ("-c", "--ctx-size"): "set server.ctx_size",
    ("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"): "set server.kv_unified",
    ("--kv-unified-per-slot",): "set server.windows",
    ("-cram", "--cache-ram"): "set server.cache_ram_mib",
    ("--cache-reuse",): "set server.cache_reuse",
    ("--swa-full",): "set server.swa_full",
    ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"): "set server.ctx_checkpoints",
    ("-b", "--batch-size"): "set server.batch_size",
    ("-ub", "--ubatch-size"): "set server.ubatch_size",
    ("-t", "--threads"): "set server.threads",
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): "set server.gpu_layers",
    ("-fa", "--flash-attn"): "set server.flash_attn",
    ("-ctk", "--cache-type-k"): "set server.cache_type_k",
    ("-ctv", "--cache-type-v"): "set server.cache_type_v",
    ("-mm", "--mmproj", "-mmu", "--mmproj-url"): "set server.mmproj",
    ("-md", "--model-draft", "--spec-draft-model"): "set server.draft_model",
    ("--cache-idle-slots", "--no-cache-idle-slots"): (
        "it decides whether idle slots are copied and emptied behind the scheduler's back"
    ),
    ("--no-cache-prompt",): "no prompt would be reused",
    ("-nocb", "--no-cont-batching"): "a prompt would wait until nothing is generated",
    ("-sps", "--slot-prompt-similarity"): "it sends pinned prompts through the RAM cache",
    ("-fit", "--fit", "-fitc", "--fit-ctx", "-fitt", "--fit-target"): (
        "the windows of the slots would shrink unasked"
    ),
    ("--context-shift",): "the engine would drop tokens that the scheduler counts on",
    ("--host", "--port", "--reuse-port"): "slotwise chooses where the engine listens",
    ("--api-key", "--api-key-file"): "slotwise gives the engine a key of its own",
    ("--api-prefix",): "slotwise calls the engine's paths without one",
    ("--ssl-key-file", "--ssl-cert-file"): "slotwise calls the engine without TLS, on loopback",
    ("--slot-save-path",): "slotwise keeps the slot files in its own state directory",
    ("--no-slots",): "slotwise asks /slots before it uses a slot again",
    ("--sleep-idle-seconds",): "a sleeping engine loses what its slots hold",
    ("--embedding", "--embeddings", "--rerank", "--reranking"): (
        "such requests empty the slot they land on"
    ),
    ("--lora-init-without-apply",): "exchanging adapters empties slots",
    ("--models-dir", "--models-preset", "--models-max"): "slotwise runs one model per engine",
}
_REFUSED_BY_SPELLING = {name: why for names, why in _REFUSED.items() for name in names}
_REFUSED_ENV = ("LLAMA_ARG_", "LLAMA_API_KEY")


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The files of one engine, as absolute paths; ``slots`` is a directory."""

    model: Path
    slots: Path
    mmproj: Path | None = None
    draft_model: Path | None = None


def launch_argv(
    server: LaunchedServer, names: Sequence[str], files: LaunchFiles, port: int | str
) -> list[str]:
    """The whole command line; ``names`` are the profile's name and aliases.

    For display ``port`` may be a word. The API key is not on the line: every user of the machine
    can read a command line.
    """
    line = command(server.binary)
    line += ["-m", str(files.model), "--alias", ",".join(names)]
    line += ["--host", "127.0.0.1", "--port", str(port)]
    line += ["-np", str(server.parallel), "-c", str(server.ctx_size)]
    line += ["--kv-unified" if server.kv_unified else "--no-kv-unified"]
    # With idle slots cached, a unified engine empties every idle slot at each launch of a request.
    line += ["--no-cache-idle-slots", "--cont-batching", "--cache-prompt"]
    # 0 keeps pinned prompts away from the RAM cache; with one, a lost conversation needs it.
    line += ["-sps", SIMILARITY_WITH_RAM_CACHE if server.cache_ram_mib else "0"]
    line += ["--cache-ram", str(server.cache_ram_mib), "--cache-reuse", str(server.cache_reuse)]
    line += ["--ctx-checkpoints", str(server.ctx_checkpoints), "--fit", "off"]
    line += ["-b", str(server.batch_size)]
    for flag, value in (
        ("-ub", server.ubatch_size),
        ("-t", server.threads),
        ("-ngl", server.gpu_layers),
        ("-fa", server.flash_attn),
        ("-ctk", server.cache_type_k),
        ("-ctv", server.cache_type_v),
        ("--mmproj", files.mmproj),
        ("-md", files.draft_model),
    ):
        if value is not None:
            line += [flag, str(value)]
    if server.swa_full:
        line += ["--swa-full"]
    line += ["--slot-save-path", f"{files.slots}/", "--metrics", "--slots"]
    return line + server.extra_args


def command(binary: str) -> list[str]:
    """How the engine's program is called."""
    if binary == EMBEDDED:
        return [sys.executable, "-P", "-m", "slotwise.launcher.embedded"]
    return [binary]


def infill_flags(server: LaunchedServer) -> dict[str, Any]:
    """What the line says of ``/infill``, as the fields of :class:`tokens.fim.InfillFlags`."""
    flags: dict[str, Any] = {"n_batch": server.batch_size}
    for given, value in pairwise([*server.extra_args, ""]):
        spelling = given.replace("_", "-") if given.startswith("--") else given
        if spelling in ("-n", "--predict", "--n-predict") and value.lstrip("-").isdigit():
            flags["n_predict"] = int(value)
        elif spelling == "--spm-infill":
            flags["spm_infill"] = True
    return flags


def extra_args_faults(extra_args: Sequence[str]) -> list[str]:
    """One line for every extra argument that the launch line must decide itself."""
    faults = []
    for position, given in enumerate(extra_args):
        spelling = given.split("=", 1)[0]
        if spelling.startswith("--"):  # the engine reads --ctx_size as --ctx-size
            spelling = spelling.replace("_", "-")
        why = _REFUSED_BY_SPELLING.get(spelling)
        if why:
            faults.append(f"extra_args[{position}]: {given!r} is refused: {why}")
    return faults


def env_faults(names: Sequence[str]) -> list[str]:
    """One line for every variable that would change the engine past its command line."""
    return [
        f"env.{name}: is refused: the launch line alone says how the engine runs"
        for name in names
        if name.startswith(_REFUSED_ENV)
    ]


def launch_env(
    server: LaunchedServer, inherited: Mapping[str, str], api_key: str, directory: Path
) -> dict[str, str]:
    """The engine's environment: ours without llama.cpp's settings, the profile's, and the key.

    ``directory`` is the engine's own: it stands in for the user's configuration directory, whose
    llama.cpp/config.ini would add settings that are not on the launch line.
    """
    kept = {name: v for name, v in inherited.items() if not name.startswith(_REFUSED_ENV)}
    return kept | {"XDG_CONFIG_HOME": str(directory)} | server.env | {"LLAMA_API_KEY": api_key}

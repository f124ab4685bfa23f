"""The engine of a profile: its directory, its launch line, its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotwise.launcher.profile.engine_flags import REFUSED_ENV
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import EMBEDDED, LaunchedServer

SIMILARITY_WITH_RAM_CACHE = "0.1"


class UsageError(Exception):
    """Something the user can put right; one line, exit status 2."""


def engine_dir(state_dir: Path, name: str) -> Path:
    """The part of the state directory that belongs to one engine."""
    return state_dir.resolve() / "engines" / name


def launch_line(profile: Profile, directory: Path, port: int | str = "PORT") -> list[str]:
    """The whole command line of an engine whose own directory is ``directory``.

    Without a ``port`` it is for display. The API key is not on the line: every user of the machine
    can read a command line.
    """
    server = profile.server
    assert isinstance(server, LaunchedServer)
    line = [server.binary]
    if server.binary == EMBEDDED:
        line = [sys.executable, "-P", "-m", "slotwise.launcher.process.embedded"]
    line += ["-m", str(profile.model), "--alias", ",".join(profile.names)]
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
        ("--mmproj", profile.mmproj),
        ("-md", profile.draft_model),
    ):
        if value is not None:
            line += [flag, str(value)]
    if server.swa_full:
        line += ["--swa-full"]
    line += ["--slot-save-path", f"{directory}/slots/", "--metrics", "--slots"]
    return line + server.extra_args


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


def launch_env(
    server: LaunchedServer, inherited: Mapping[str, str], api_key: str, directory: Path
) -> dict[str, str]:
    """The engine's environment: ours without llama.cpp's settings, the profile's, and the key.

    ``directory`` is the engine's own: it stands in for the user's configuration directory, whose
    llama.cpp/config.ini would add settings that are not on the launch line.
    """
    kept = {name: v for name, v in inherited.items() if not name.startswith(REFUSED_ENV)}
    return kept | {"XDG_CONFIG_HOME": str(directory)} | server.env | {"LLAMA_API_KEY": api_key}

"""From a profile to what its plan is made from: headers, file sizes, the last start's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from slotwise.launcher import gguf_header, gguf_tensors, measured, model_shape
from slotwise.launcher import plan as planning
from slotwise.launcher.cache_size import DEFAULT_UBATCH, CacheError, Context
from slotwise.launcher.command_line import engine_dir, launch_line
from slotwise.launcher.plan import GIB, Engine, Loaded, Plan
from slotwise.launcher.profile import Profile
from slotwise.launcher.settings import EMBEDDED, LaunchedServer

DRAFTED = "3"  # llama-server's default
LAZY_FROM_BYTES = 4 * GIB


class PlanError(ValueError):
    """A profile that cannot be planned; the text is one line and names the field."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One profile that slotwise starts, and its plan.

    ``growth_bytes``: where its engine runs already from this state directory, what that one may
    still take; all else of it is gone from MemAvailable.
    """

    profile: Profile
    server: LaunchedServer
    engine: Engine
    plan: Plan
    line: str
    directory: Path
    growth_bytes: int | None = None


def planned(profile: Profile, state_dir: Path, has_gpu: bool = False) -> Planned:
    """``has_gpu``: a GPU was found; else only the profile tells. Raises PlanError."""
    server = profile.server
    assert isinstance(server, LaunchedServer)
    assert profile.model is not None
    assert profile.header is not None
    directory = engine_dir(state_dir, profile.name)
    files = [path for path in (profile.model, profile.mmproj, profile.draft_model) if path]
    line = measured.line_key(launch_line(profile, directory), files)
    start = measured.last(directory, line)
    asked = server.gpu_layers not in (None, 0, "auto")
    on_gpu = server.binary != EMBEDDED and server.gpu_layers != 0 and (has_gpu or asked)
    peak_gib = profile.memory.peak_gib
    try:
        engine = Engine(
            name=profile.name,
            model=_loaded(profile.model, profile.header, _lazy(server, on_gpu)),
            context=context(server),
            checkpoints=server.ctx_checkpoints,
            cache_ram_mib=server.cache_ram_mib,
            process_bytes=_process_bytes(server, on_gpu),
            on_gpu=on_gpu,
            mmproj_bytes=profile.mmproj.stat().st_size if profile.mmproj else 0,
            draft=_draft(profile.draft_model),
            own_heads="mtp" in _given(server.extra_args, "--spec-type"),
            declared_peak_bytes=round(peak_gib * GIB) if peak_gib is not None else None,
            measured=start.measured() if start is not None else None,
        )
        plan = planning.make(engine)
    except (CacheError, gguf_header.HeaderError, PlanError) as error:
        raise PlanError(f"{profile.path}: server.model: {error}") from error
    except OSError as error:
        raise PlanError(f"{profile.path}: {error.filename}: {error.strerror}") from error
    running = measured.growth_of_running(directory, plan.peak_bytes)
    return Planned(profile, server, engine, plan, line, directory, running)


def context(server: LaunchedServer) -> Context:
    """The context that a launch line asks for."""
    return Context(
        ctx_size=server.ctx_size,
        slots=server.parallel,
        unified=server.kv_unified,
        batch=server.batch_size,
        ubatch=server.ubatch_size or DEFAULT_UBATCH,
        swa_full=server.swa_full,
        type_k=server.cache_type_k or "f16",
        type_v=server.cache_type_v or "f16",
        flash_attn=server.flash_attn != "off",
        rollback=_rollback(server.extra_args),
    )


def _loaded(path: Path, header: gguf_header.Header, lazy: str = "off") -> Loaded:
    """``lazy``: on, off, or auto, which leaves only large tables on disk."""
    files = gguf_tensors.parts(path)
    size = sum(part.stat().st_size for part in files)
    headers = [header if part == path else gguf_header.read(part) for part in files]
    table = sum(part.table_bytes for part in headers)
    on_disk = table if lazy == "on" or (lazy == "auto" and table > LAZY_FROM_BYTES) else 0
    try:
        shape = model_shape.from_header(header.values)
    except model_shape.ShapeError as error:
        return Loaded(size - on_disk, len(files), unknown=str(error), on_disk_bytes=on_disk)
    return Loaded(size - on_disk, len(files), shape, on_disk_bytes=on_disk)


def _lazy(server: LaunchedServer, on_gpu: bool) -> str:
    """Whether tables stay on disk; by itself the engine does that only where it can map files,
    which no GPU can that shares the machine's memory."""
    given = _given(server.extra_args, "-lzm") or _given(server.extra_args, "--lazy-mode")
    return given or ("off" if on_gpu else "auto")


def _draft(path: Path | None) -> Loaded | None:
    return _loaded(path, gguf_header.read(path)) if path is not None else None


def _process_bytes(server: LaunchedServer, on_gpu: bool) -> int:
    if server.binary == EMBEDDED:
        return planning.EMBEDDED_PROCESS_BYTES
    return planning.CUDA_PROCESS_BYTES if on_gpu else planning.SERVER_PROCESS_BYTES


def _rollback(extra_args: Sequence[str]) -> int:
    """States kept so that a draft can be taken back: as many as are drafted."""
    kinds = _given(extra_args, "--spec-type")
    if not any(kind in kinds for kind in ("mtp", "eagle3", "dflash", "dspark")):
        return 0
    drafted = _given(extra_args, "--spec-draft-n-max") or DRAFTED
    return int(drafted) if drafted.isdecimal() else 0


def _given(extra_args: Sequence[str], flag: str) -> str:
    """The value of a flag, empty without it."""
    return dict(pairwise([*extra_args, ""])).get(flag, "")

"""What the plan of an engine is made from: its model's header, and what its last starts took."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from slotwise.launcher.model import gguf_header, model_shape
from slotwise.launcher.plan import plan as planning
from slotwise.launcher.plan.fitting import growth_to_come
from slotwise.launcher.plan.plan import (
    DEFAULT_UBATCH,
    FELL,
    GIB,
    LOGGED,
    PROCESS,
    PROCESS_SIZE,
    VOCABULARY,
    CacheError,
    ContextSize,
    EnginePlan,
    Loaded,
    MeasuredStart,
    PlannedEngine,
    in_gib,
)
from slotwise.launcher.process import process
from slotwise.launcher.profile.launch import engine_dir, launch_line
from slotwise.launcher.profile.profile import Profile
from slotwise.launcher.profile.settings import EMBEDDED, LaunchedServer

FILE_NAME = "memory.json"
KEPT_LINES = 8
_FILE = TypeAdapter(dict[str, list[MeasuredStart]])
_MOST_LOG_BYTES = 4 * 2**20
_MOST_FILE_BYTES = 2**20
_BUFFER = re.compile(r"(model|KV|RS|compute|output) buffer size =\s*([\d.]+) MiB")
_COMPLETE = {"model", "compute"}  # a log without these does not show sizes


def line_key(argv: Sequence[str], files: Sequence[Path]) -> str:
    """Names a launch line together with the state of its files; the port must not be in it."""
    states = []
    for path in files:
        try:
            found = path.stat()
            states.append([str(path), found.st_size, found.st_mtime_ns])
        except OSError:
            states.append([str(path)])
    text = json.dumps([list(argv), states])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def starts(directory: Path) -> list[MeasuredStart]:
    """The kept starts of an engine, the newest last; none where the file is missing or broken."""
    try:
        with (directory / FILE_NAME).open("rb") as file:
            return _FILE.validate_json(file.read(_MOST_FILE_BYTES))["starts"]
    except (OSError, ValueError, KeyError):
        return []


def last(directory: Path, line: str) -> MeasuredStart | None:
    """The last start of this line."""
    return next((start for start in reversed(starts(directory)) if start.line == line), None)


def keep(directory: Path, start: MeasuredStart) -> None:
    """Adds a start, in place of an older one of its line; raises OSError."""
    others = [kept for kept in starts(directory) if kept.line != start.line]
    aside = directory / (FILE_NAME + ".new")
    aside.write_bytes(_FILE.dump_json({"starts": [*others, start][-KEPT_LINES:]}, indent=1))
    os.replace(aside, directory / FILE_NAME)


def growth_of_running(directory: Path, peak_bytes: int = 0) -> int | None:
    """What the engine that runs from this directory may still take; None: none runs.

    ``peak_bytes``: of its plan, for one that was not measured yet, as while it loads.
    """
    running = process.running(directory / "engine.pid")
    if running is None:
        return None
    resident, own = _sizes(running)
    start = next((one for one in starts(directory) if one.pid == running.pid), None)
    if start is None:
        return growth_to_come(peak_bytes, resident)
    return growth_to_come(start.growth_bytes, max(0, own - start.own_bytes))


class Meter:
    """Measures one start: ``begin`` before the process is made, ``ended`` once it is ready."""

    def __init__(self, directory: Path, line: str, plan: EnginePlan, on_gpu: bool) -> None:
        self._directory = directory
        self._line = line
        self._growth_bytes = plan.growth_bytes
        # A fall that is smaller is none of a load: a mapped model is page cache, managed memory
        # is taken when it is touched.
        self._least_bytes = plan.computed_load_bytes // 2
        self._unlogged_bytes = sum(
            part.size_bytes for part in plan.parts if part.name in (VOCABULARY, PROCESS)
        )
        self._on_gpu = on_gpu
        self._available_bytes: int | None = None
        self._log_offset = 0

    def begin(self, available_bytes: int | None) -> None:
        """``available_bytes``: MemAvailable, None while something else starts too."""
        self._available_bytes = available_bytes
        self._log_offset = _size(self._directory / "engine.log")

    def disturbed(self) -> None:
        """Something else began to start: how far MemAvailable falls says nothing any more."""
        self._available_bytes = None

    def ended(self, available_bytes: int | None) -> MeasuredStart | None:
        """The start, kept; None where nothing could be measured. Raises OSError."""
        running = process.running(self._directory / "engine.pid")
        if running is None:
            return None
        resident, own = _sizes(running)
        at_load, how = self._at_load(resident, available_bytes)
        if at_load <= 0:
            return None
        when = time.strftime("%Y-%m-%d %H:%M")
        grows = self._growth_bytes
        start = MeasuredStart(at_load, when, how, self._line, running.pid, own, grows)
        keep(self._directory, start)
        return start

    def _at_load(self, resident_bytes: int, available_bytes: int | None) -> tuple[int, str]:
        logged = logged_bytes(_tail(self._directory / "engine.log", self._log_offset))
        if logged:
            return logged + self._unlogged_bytes, LOGGED
        if not self._on_gpu:
            return resident_bytes, PROCESS_SIZE
        if self._available_bytes is None or available_bytes is None:
            return 0, ""
        fell = self._available_bytes - available_bytes
        return (fell, FELL) if fell >= self._least_bytes else (0, "")


def logged_bytes(text: str) -> int:
    """The sum of the buffers that a log of one start names; 0 where it does not show them all."""
    found = _BUFFER.findall(text)
    if not {kind for kind, _ in found} >= _COMPLETE:
        return 0
    return round(sum(float(mib) for _, mib in found) * 2**20)


def _sizes(process: psutil.Process) -> tuple[int, int]:
    """All that is resident, and that without files; pages that others map as well in full, since
    they may not be there the next time. Zeros where it has just ended."""
    try:
        info = process.memory_info()
    except psutil.Error:
        return 0, 0
    return int(info.rss), int(info.rss - info.shared)


def _tail(path: Path, offset: int) -> str:
    """The log from ``offset`` on; all of it where it was begun anew since."""
    try:
        with path.open("rb") as file:
            file.seek(offset if _size(path) >= offset else 0)
            return file.read(_MOST_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
    engine: PlannedEngine
    plan: EnginePlan
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
    line = line_key(launch_line(profile, directory), files)
    asked = server.gpu_layers not in (None, 0, "auto")
    on_gpu = server.binary != EMBEDDED and server.gpu_layers != 0 and (has_gpu or asked)
    peak_gib = profile.memory.peak_gib
    try:
        engine = PlannedEngine(
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
            measured=last(directory, line),
        )
        plan = planning.make(engine)
    except (CacheError, gguf_header.HeaderError, PlanError) as error:
        raise PlanError(f"{profile.path}: server.model: {error}") from error
    except OSError as error:
        raise PlanError(f"{profile.path}: {error.filename}: {error.strerror}") from error
    running = growth_of_running(directory, plan.peak_bytes)
    return Planned(profile, engine, plan, line, directory, running)


def context(server: LaunchedServer) -> ContextSize:
    """The context that a launch line asks for."""
    return ContextSize(
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
    files = gguf_header.parts(path)
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


log = logging.getLogger(__name__)


class Meters:
    """One meter for each engine. ``available``: MemAvailable in bytes now, None if unreadable."""

    def __init__(self, planned: Iterable[Planned], available: Callable[[], int | None]) -> None:
        self._available = available
        self._under_way: set[str] = set()
        self._meters = {
            one.plan.name: Meter(one.directory, one.line, one.plan, one.engine.on_gpu)
            for one in planned
        }

    def starting(self, engine: str) -> None:
        """Its process is about to be made."""
        meter = self._meters.get(engine)
        if meter is None:
            return
        for other in self._under_way - {engine}:
            self._meters[other].disturbed()
        meter.begin(None if self._under_way - {engine} else self._available())
        self._under_way.add(engine)

    def lost(self, engine: str) -> None:
        """It did not get ready, or is no longer."""
        self._under_way.discard(engine)

    def ready(self, engine: str) -> None:
        """It serves."""
        if engine not in self._under_way:
            return
        self._under_way.discard(engine)
        try:
            start = self._meters[engine].ended(self._available())
        except OSError as error:
            log.warning("%s: its size is not kept: %s", engine, error)
            return
        if start is not None:
            log.info("%s: took %s at load (%s)", engine, in_gib(start.at_load_bytes), start.how)

"""What an engine will take of the machine's memory, part by part, before it is started.

Weights are the size of the files. Caches are computed to the byte. What the engine lays out by
itself is estimated, or, from the second start of the same launch line on, measured. All of it is
taken at load, except what grows while it serves: checkpoints and the RAM cache. Nothing is read
here: the figures come in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from slotwise.launcher import cache_size, compute_size
from slotwise.launcher.cache_size import Cache, Context
from slotwise.launcher.model_shape import ModelShape

MIB, GIB = 2**20, 2**30
EMBEDDED_PROCESS_BYTES = 32 * MIB  # Python and the extension
SERVER_PROCESS_BYTES = 16 * MIB
VOCABULARY_TOKEN_BYTES = 128  # its texts and maps, measured: 29 MiB for 262,144 tokens
# CUDA's context and kernels; 749 MiB beside the engine's own buffers on a Blackwell card,
# github.com/ggml-org/llama.cpp/issues/27953.
CUDA_PROCESS_BYTES = 768 * MIB
NO_LIMIT = -1  # of the RAM cache
# Parts that are looked for by name.
COMPUTE, VOCABULARY, PROCESS = "compute buffers", "vocabulary", "the process itself"

Source = Literal["file", "computed", "estimated", "declared"]


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that takes memory; ``grows``: while it serves, not at load."""

    name: str
    size_bytes: int
    source: Source
    detail: str = ""
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """The files of a model, and what its header says of its context."""

    weights_bytes: int
    files: int = 1
    shape: ModelShape | None = None
    unknown: str = ""  # why there is no shape
    on_disk_bytes: int = 0  # of the files: read when needed, and not among the weights


@dataclass(frozen=True, slots=True)
class Measured:
    """What the last start of the same launch line took at load."""

    at_load_bytes: int
    when: str  # a date and time, for the reader
    how: str  # which figure it is
    is_whole: bool = False  # scratch that was reserved but not used yet is in it


@dataclass(frozen=True, slots=True)
class Engine:
    """Everything a plan is made from."""

    name: str
    model: Loaded
    context: Context
    checkpoints: int = 32  # per slot, at most
    cache_ram_mib: int = 0
    process_bytes: int = SERVER_PROCESS_BYTES
    on_gpu: bool = False
    mmproj_bytes: int = 0
    draft: Loaded | None = None
    own_heads: bool = False  # the model drafts for itself (MTP), in a context of its own
    declared_peak_bytes: int | None = None
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine's parts, and the figures that stand above their sum."""

    name: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    measured: Measured | None = None
    declared_peak_bytes: int | None = None
    bounded: bool = True  # False: something in it may grow without a limit

    @property
    def computed_load_bytes(self) -> int:
        """The sum of what is taken at load."""
        return sum(part.size_bytes for part in self.parts if not part.grows)

    @property
    def load_bytes(self) -> int:
        """Taken when it is ready: as measured at its last start, else as computed."""
        return self.measured.at_load_bytes if self.measured else self.computed_load_bytes

    @property
    def untouched_bytes(self) -> int:
        """Scratch that was reserved at the measured start, but not used by then."""
        if self.measured is None or self.measured.is_whole:
            return 0
        scratch = sum(part.size_bytes for part in self.parts if part.name == COMPUTE)
        return max(0, min(scratch, self.computed_load_bytes - self.load_bytes))

    @property
    def growth_bytes(self) -> int:
        """What it can still take after its load."""
        if self.declared_peak_bytes is not None:
            return max(0, self.declared_peak_bytes - self.load_bytes)
        grown = sum(part.size_bytes for part in self.parts if part.grows)
        return grown + self.untouched_bytes

    @property
    def peak_bytes(self) -> int:
        """The most it takes, all in all."""
        return self.load_bytes + self.growth_bytes


def make(engine: Engine) -> Plan:
    """The plan of one engine; raises cache_size.CacheError."""
    parts = [part for part in _at_load(engine) + _growth(engine) if part.size_bytes]
    return Plan(
        engine.name,
        tuple(parts),
        tuple(_notes(engine)),
        engine.measured,
        engine.declared_peak_bytes,
        bounded=engine.cache_ram_mib != NO_LIMIT,
    )


def in_gib(size_bytes: int) -> str:
    """A size for the reader: GiB, small ones in MiB."""
    if abs(size_bytes) < GIB:
        return f"{size_bytes / MIB:.1f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"


def context_caches(engine: Engine) -> list[Cache]:
    """Every cache of the model itself; none where its header is unknown."""
    shape = engine.model.shape
    return cache_size.caches(shape, engine.context) if shape is not None else []


def _at_load(engine: Engine) -> list[Part]:
    model, context = engine.model, engine.context
    files = f"{model.files} files" if model.files > 1 else "the file"
    parts = [Part("weights", model.weights_bytes, "file", files)]
    parts += [_cache_part(cache, context) for cache in context_caches(engine)]
    if engine.draft is not None:
        parts += _draft(engine.draft, context)
    if engine.own_heads and model.shape is not None:
        own = _f16(context)
        size = cache_size.draft_bytes(model.shape, own)
        parts.append(Part("draft heads' keys and values", size, "computed", "f16"))
    if engine.mmproj_bytes:
        parts.append(Part("projector (mmproj)", engine.mmproj_bytes, "file", "the file"))
    shapes = [one.shape for one in (model, engine.draft) if one is not None and one.shape]
    scratch = sum(
        compute_size.compute_bytes(shape, context)
        + (compute_size.host_bytes(shape, context) if engine.on_gpu else 0)
        for shape in shapes
    )
    batch = f"batches of {context.tokens_at_once} tokens"
    parts.append(Part(COMPUTE, scratch, "estimated", batch))
    output = sum(compute_size.output_bytes(shape, context) for shape in shapes)
    parts.append(Part("output buffer", output, "computed", f"{context.slots} slots"))
    tokens = sum(shape.vocabulary for shape in shapes)
    size = VOCABULARY_TOKEN_BYTES * tokens
    parts.append(Part(VOCABULARY, size, "estimated", f"{tokens} tokens"))
    kind = "with CUDA's own" if engine.on_gpu else ""
    parts.append(Part(PROCESS, engine.process_bytes, "estimated", kind))
    return parts


def _cache_part(cache: Cache, context: Context) -> Part:
    if cache.name == "recurrent states":
        detail = f"{cache.layers} layers, {cache.cells} slots, f32"
    else:
        kinds = (
            context.type_k
            if context.type_k == context.type_v
            else (f"{context.type_k} and {context.type_v}")
        )
        streams = f"{cache.streams} x {cache.cells}" if cache.streams > 1 else f"{cache.cells}"
        detail = f"{streams} cells, {cache.layers} layers, {kinds}"
    return Part(cache.name, cache.size_bytes, "computed", detail)


def _draft(draft: Loaded, context: Context) -> list[Part]:
    """A draft model has a context of its own, as long and for as many slots, in f16."""
    parts = [Part("draft model", draft.weights_bytes, "file", "the file")]
    if draft.shape is not None:
        found = cache_size.caches(draft.shape, _f16(context))
        size = sum(cache.size_bytes for cache in found)
        parts.append(Part("draft model's keys and values", size, "computed", "f16"))
    return parts


def _f16(context: Context) -> Context:
    return replace(context, type_k="f16", type_v="f16", rollback=0)


def _growth(engine: Engine) -> list[Part]:
    parts = []
    shape = engine.model.shape
    if shape is not None and engine.checkpoints > 0:
        one = cache_size.checkpoint_bytes(shape, engine.context)
        count = engine.context.slots * engine.checkpoints
        detail = f"up to {engine.checkpoints} for each of {engine.context.slots} slots"
        parts.append(
            Part("checkpoints", one * count, "computed", f"{detail}, {in_gib(one)} each", True)
        )
    if engine.cache_ram_mib > 0:
        size = engine.cache_ram_mib * MIB
        parts.append(Part("RAM cache", size, "declared", "its limit", True))
    return parts


def _notes(engine: Engine) -> list[str]:
    notes = []
    shape = engine.model.shape
    if shape is None:
        why = engine.model.unknown or "no header"
        notes.append(f"only the size of the model's file is known, its context is missing: {why}")
    elif not shape.is_complete:
        notes.append(
            f"the architecture {shape.architecture} keeps caches that are not known here: "
            "the plan is too small until the first start was measured"
        )
    if engine.model.on_disk_bytes:
        size = in_gib(engine.model.on_disk_bytes)
        notes.append(f"{size} of the file stay on disk and are read when needed (-lzm)")
    if engine.cache_ram_mib == NO_LIMIT:
        notes.append("the RAM cache has no limit (cache_ram_mib: -1): no plan can hold it")
    return notes

"""What an engine will take of the machine's memory, part by part, before it is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from slotwise.launcher.model.model_shape import LayerRow, ModelShape


@dataclass(frozen=True, slots=True)
class Machine:
    """One look at its memory, in bytes. ``problem``: why it cannot be told, else empty."""

    total_bytes: int
    available_bytes: int
    floor_bytes: int
    source: str
    problem: str = ""


CELL_PAD = 256  # llama.cpp rounds a stream's cells up to this
F32_BYTES = 4
DEFAULT_UBATCH = 512
# Type -> elements of a block, bytes of a block.
_BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


class CacheError(ValueError):
    """A cache the engine could not make; the text is one line."""


@dataclass(frozen=True, slots=True)
class ContextSize:
    """What of a launch line decides the size of the caches."""

    ctx_size: int  # tokens of all slots together
    slots: int
    unified: bool = False
    batch: int = 512
    ubatch: int = DEFAULT_UBATCH
    swa_full: bool = False
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True  # auto counts as on
    rollback: int = 0  # states kept beside the newest, for speculative decoding

    @property
    def cells(self) -> int:
        """Of one stream: a slot's own, or the pool."""
        whole = padded(self.ctx_size)
        return whole if self.unified else padded(whole // self.slots)

    @property
    def streams(self) -> int:
        return 1 if self.unified else self.slots

    @property
    def tokens_at_once(self) -> int:
        """The most tokens of one computation."""
        return min(self.ubatch, self.batch, self.cells * self.streams)


@dataclass(frozen=True, slots=True)
class Cache:
    """One buffer of the engine's context."""

    name: str
    cells: int  # of a stream; of a recurrent state: sequences
    streams: int
    layers: int
    k_bytes: int
    v_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.k_bytes + self.v_bytes


def padded(cells: int) -> int:
    """Rounded up to a multiple of CELL_PAD."""
    return -(-cells // CELL_PAD) * CELL_PAD


def row_bytes(elements: int, kind: str) -> int:
    """Bytes of so many elements of a cache type; raises CacheError."""
    per_block, block_bytes = _BLOCKS[kind]
    if elements % per_block:
        raise CacheError(f"{elements} elements a token are no multiple of {per_block} ({kind})")
    return elements // per_block * block_bytes


def caches(shape: ModelShape, context: ContextSize) -> list[Cache]:
    """Every cache of the context, none that is empty; raises CacheError."""
    whole = [row for row in shape.rows if not row.windowed]
    windowed = [row for row in shape.rows if row.windowed]
    indexer = [LayerRow(size, 0) for size in shape.indexer_rows]
    found = [
        _kv("keys and values", whole, context.cells, shape, context),
        _kv(
            "keys and values within the window",
            windowed,
            _window_cells(shape, context),
            shape,
            context,
        ),
        _kv("indexer keys", indexer, context.cells, shape, context),
        _recurrent(shape, context),
    ]
    return [cache for cache in found if cache.layers]


def checkpoint_bytes(shape: ModelShape, context: ContextSize) -> int:
    """One checkpoint of a slot: what it cannot roll back to without; 0 where it can."""
    size = (shape.r_elements + shape.s_elements) * shape.recurrent_layers * F32_BYTES
    size += shape.ple_elements * F32_BYTES
    if not context.swa_full:
        size += shape.window * sum(
            row_bytes(row.keys, context.type_k) + row_bytes(row.values, context.type_v)
            for row in shape.rows
            if row.windowed
        )
    return size


def token_bytes(shape: ModelShape, context: ContextSize) -> int:
    """Keys and values of one token that stay however far the conversation goes on."""
    whole = sum(
        row_bytes(row.keys, context.type_k) + row_bytes(row.values, context.type_v)
        for row in shape.rows
        if not row.windowed or context.swa_full
    )
    return whole + sum(row_bytes(size, context.type_k) for size in shape.indexer_rows)


def draft_bytes(shape: ModelShape, context: ContextSize) -> int:
    """The context of the model's own draft heads; raises CacheError."""
    return _kv("draft", shape.draft_rows, context.cells, shape, context).size_bytes


def _window_cells(shape: ModelShape, context: ContextSize) -> int:
    """A window for each sequence of the stream, and the batch that is being computed."""
    if context.swa_full:
        return context.cells
    windows = shape.window * (context.slots if context.unified else 1)
    return padded(min(context.cells, windows + min(context.ubatch, context.batch)))


def _kv(
    name: str, rows: Iterable[LayerRow], cells: int, shape: ModelShape, context: ContextSize
) -> Cache:
    rows = list(rows)
    tokens = cells * context.streams
    k_bytes = sum(row_bytes(row.keys, context.type_k) for row in rows) * tokens
    v_bytes = 0
    for row in rows:
        # Without flash attention the values lie transposed, all layers as wide as the widest.
        values = row.values if context.flash_attn or not row.values else shape.widest_values
        v_bytes += row_bytes(values, context.type_v) * tokens
    return Cache(name, cells, context.streams, len(rows), k_bytes, v_bytes)


def _recurrent(shape: ModelShape, context: ContextSize) -> Cache:
    rows = context.slots * (1 + context.rollback) * shape.recurrent_layers * F32_BYTES
    ple = context.slots * (1 + context.rollback) * shape.ple_elements * F32_BYTES
    return Cache(
        "recurrent states",
        context.slots,
        1,
        shape.recurrent_layers,
        rows * shape.r_elements + ple,
        rows * shape.s_elements,
    )


F16_BYTES = 2
_FEED_FORWARD_COPIES = 3  # up, gate and their product
_STREAM_COPIES = 5  # of the residual stream, beside them
_ATTENTION_COPIES = 8
_EXPERT_OUTPUTS = 2  # each expert's output, before and after it is weighed
# Of every cell, for each token: what sparse attention chooses by. From 1164 MiB at 65,536 cells,
# github.com/ggml-org/llama.cpp/issues/27953.
_INDEXER_SCORES = 7
_STATE_COPIES = 3


def compute_bytes(shape: ModelShape, context: ContextSize) -> int:
    """Scratch of the device that computes."""
    tokens = context.tokens_at_once
    per_token = max(
        _FEED_FORWARD_COPIES * shape.feed_forward
        + _STREAM_COPIES * shape.embedding
        + _EXPERT_OUTPUTS * shape.experts_used * shape.embedding,
        _ATTENTION_COPIES * max(shape.embedding, shape.attention),
    )
    states = _STATE_COPIES * context.slots * (shape.r_elements + shape.s_elements)
    logits = context.slots * shape.vocabulary
    floats = tokens * per_token + states + logits
    scores = _INDEXER_SCORES if shape.indexer_rows else 0
    if not context.flash_attn:
        scores += shape.heads
    floats += tokens * context.cells * scores
    return F32_BYTES * floats + _masks(shape, context)


def host_bytes(shape: ModelShape, context: ContextSize) -> int:
    """The inputs once more on the host's side, where a GPU computes."""
    return _masks(shape, context) + F32_BYTES * context.tokens_at_once * shape.embedding


def output_bytes(shape: ModelShape, context: ContextSize) -> int:
    """The logits that are read: one token of each slot."""
    return F32_BYTES * context.slots * shape.vocabulary


def _masks(shape: ModelShape, context: ContextSize) -> int:
    """Which cell each token sees: one mask for the layers that see all, one for the others."""
    seen = 0
    if any(not row.windowed for row in shape.rows):
        seen += context.cells
    if any(row.windowed for row in shape.rows):
        seen += min(context.cells, shape.window + context.ubatch)
    return context.tokens_at_once * seen * (F16_BYTES if context.flash_attn else F32_BYTES)


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
class PlanPart:
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


# How the size of a start was measured.
LOGGED, PROCESS_SIZE, FELL = "the engine's log", "size of the process", "fall of MemAvailable"


@dataclass(frozen=True, slots=True)
class MeasuredStart:
    """A start of a launch line that became ready, and what it took."""

    at_load_bytes: int
    when: str  # a date and time, for the reader
    how: str  # LOGGED, PROCESS_SIZE or FELL: which figure ``at_load_bytes`` is
    line: str = ""  # key of the launch line
    pid: int = 0
    own_bytes: int = 0  # of the process when it was ready, without the files it maps
    growth_bytes: int = 0  # what may come on top

    @property
    def is_whole(self) -> bool:
        """Scratch that was reserved but not used yet is in it."""
        return self.how == LOGGED


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """Everything a plan is made from."""

    name: str
    model: Loaded
    context: ContextSize
    checkpoints: int = 32  # per slot, at most
    cache_ram_mib: int = 0
    process_bytes: int = SERVER_PROCESS_BYTES
    on_gpu: bool = False
    mmproj_bytes: int = 0
    draft: Loaded | None = None
    own_heads: bool = False  # the model drafts for itself (MTP), in a context of its own
    declared_peak_bytes: int | None = None
    measured: MeasuredStart | None = None


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine's parts, and the figures that stand above their sum."""

    name: str
    parts: tuple[PlanPart, ...]
    notes: tuple[str, ...] = ()
    measured: MeasuredStart | None = None
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


def make(engine: PlannedEngine) -> EnginePlan:
    """The plan of one engine; raises cache_size.CacheError."""
    parts = [part for part in _at_load(engine) + _growth(engine) if part.size_bytes]
    return EnginePlan(
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


def _at_load(engine: PlannedEngine) -> list[PlanPart]:
    model, context = engine.model, engine.context
    files = f"{model.files} files" if model.files > 1 else "the file"
    parts = [PlanPart("weights", model.weights_bytes, "file", files)]
    if model.shape is not None:
        parts += [_cache_part(cache, context) for cache in caches(model.shape, context)]
    if engine.draft is not None:
        parts += _draft(engine.draft, context)
    if engine.own_heads and model.shape is not None:
        own = _f16(context)
        size = draft_bytes(model.shape, own)
        parts.append(PlanPart("draft heads' keys and values", size, "computed", "f16"))
    if engine.mmproj_bytes:
        parts.append(PlanPart("projector (mmproj)", engine.mmproj_bytes, "file", "the file"))
    shapes = [one.shape for one in (model, engine.draft) if one is not None and one.shape]
    scratch = sum(
        compute_bytes(shape, context) + (host_bytes(shape, context) if engine.on_gpu else 0)
        for shape in shapes
    )
    batch = f"batches of {context.tokens_at_once} tokens"
    parts.append(PlanPart(COMPUTE, scratch, "estimated", batch))
    output = sum(output_bytes(shape, context) for shape in shapes)
    parts.append(PlanPart("output buffer", output, "computed", f"{context.slots} slots"))
    tokens = sum(shape.vocabulary for shape in shapes)
    size = VOCABULARY_TOKEN_BYTES * tokens
    parts.append(PlanPart(VOCABULARY, size, "estimated", f"{tokens} tokens"))
    kind = "with CUDA's own" if engine.on_gpu else ""
    parts.append(PlanPart(PROCESS, engine.process_bytes, "estimated", kind))
    return parts


def _cache_part(cache: Cache, context: ContextSize) -> PlanPart:
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
    return PlanPart(cache.name, cache.size_bytes, "computed", detail)


def _draft(draft: Loaded, context: ContextSize) -> list[PlanPart]:
    """A draft model has a context of its own, as long and for as many slots, in f16."""
    parts = [PlanPart("draft model", draft.weights_bytes, "file", "the file")]
    if draft.shape is not None:
        found = caches(draft.shape, _f16(context))
        size = sum(cache.size_bytes for cache in found)
        parts.append(PlanPart("draft model's keys and values", size, "computed", "f16"))
    return parts


def _f16(context: ContextSize) -> ContextSize:
    return replace(context, type_k="f16", type_v="f16", rollback=0)


def _growth(engine: PlannedEngine) -> list[PlanPart]:
    parts = []
    shape = engine.model.shape
    if shape is not None and engine.checkpoints > 0:
        one = checkpoint_bytes(shape, engine.context)
        count = engine.context.slots * engine.checkpoints
        detail = f"up to {engine.checkpoints} for each of {engine.context.slots} slots"
        parts.append(
            PlanPart("checkpoints", one * count, "computed", f"{detail}, {in_gib(one)} each", True)
        )
    if engine.cache_ram_mib > 0:
        size = engine.cache_ram_mib * MIB
        parts.append(PlanPart("RAM cache", size, "declared", "its limit", True))
    return parts


def _notes(engine: PlannedEngine) -> list[str]:
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

"""How many bytes llama.cpp takes for the context of a model: keys and values, recurrent states.

Pure arithmetic, equal to the byte to what the engine logs at load (``llama_kv_cache: size = ...``).
Everything here is allocated and cleared at load, whole: a running engine's caches do not grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotwise.launcher.model_shape import ModelShape, Row

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
class Context:
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


def caches(shape: ModelShape, context: Context) -> list[Cache]:
    """Every cache of the context, none that is empty; raises CacheError."""
    whole = [row for row in shape.rows if not row.windowed]
    windowed = [row for row in shape.rows if row.windowed]
    indexer = [Row(size, 0) for size in shape.indexer_rows]
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


def checkpoint_bytes(shape: ModelShape, context: Context) -> int:
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


def token_bytes(shape: ModelShape, context: Context) -> int:
    """Keys and values of one token that stay however far the conversation goes on."""
    whole = sum(
        row_bytes(row.keys, context.type_k) + row_bytes(row.values, context.type_v)
        for row in shape.rows
        if not row.windowed or context.swa_full
    )
    return whole + sum(row_bytes(size, context.type_k) for size in shape.indexer_rows)


def draft_bytes(shape: ModelShape, context: Context) -> int:
    """The context of the model's own draft heads; raises CacheError."""
    return _kv("draft", shape.draft_rows, context.cells, shape, context).size_bytes


def _window_cells(shape: ModelShape, context: Context) -> int:
    """A window for each sequence of the stream, and the batch that is being computed."""
    if context.swa_full:
        return context.cells
    windows = shape.window * (context.slots if context.unified else 1)
    return padded(min(context.cells, windows + min(context.ubatch, context.batch)))


def _kv(name: str, rows: Iterable[Row], cells: int, shape: ModelShape, context: Context) -> Cache:
    rows = list(rows)
    tokens = cells * context.streams
    k_bytes = sum(row_bytes(row.keys, context.type_k) for row in rows) * tokens
    v_bytes = 0
    for row in rows:
        # Without flash attention the values lie transposed, all layers as wide as the widest.
        values = row.values if context.flash_attn or not row.values else shape.widest_values
        v_bytes += row_bytes(values, context.type_v) * tokens
    return Cache(name, cells, context.streams, len(rows), k_bytes, v_bytes)


def _recurrent(shape: ModelShape, context: Context) -> Cache:
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

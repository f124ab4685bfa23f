"""How many bytes of scratch the engine reserves for its largest computation: an estimate.

The engine finds the true size by laying out its graph, which cannot be repeated here. The terms
are those that dominate. Their factors were read off builds 11434 and 11549 on dense models of many
shapes, within a seventh of the engine's own figure; those of experts and of sparse attention are
coarser. After the first start the measured size takes the place of this one.
"""

from __future__ import annotations

from slotwise.launcher.cache_size import F32_BYTES, Context
from slotwise.launcher.model_shape import ModelShape

F16_BYTES = 2
_FEED_FORWARD_COPIES = 3  # up, gate and their product
_STREAM_COPIES = 5  # of the residual stream, beside them
_ATTENTION_COPIES = 8
_EXPERT_OUTPUTS = 2  # each expert's output, before and after it is weighed
# Of every cell, for each token: what sparse attention chooses by. From 1164 MiB at 65,536 cells,
# github.com/ggml-org/llama.cpp/issues/27953.
_INDEXER_SCORES = 7
_STATE_COPIES = 3


def compute_bytes(shape: ModelShape, context: Context) -> int:
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


def host_bytes(shape: ModelShape, context: Context) -> int:
    """The inputs once more on the host's side, where a GPU computes."""
    return _masks(shape, context) + F32_BYTES * context.tokens_at_once * shape.embedding


def output_bytes(shape: ModelShape, context: Context) -> int:
    """The logits that are read: one token of each slot."""
    return F32_BYTES * context.slots * shape.vocabulary


def _masks(shape: ModelShape, context: Context) -> int:
    """Which cell each token sees: one mask for the layers that see all, one for the others."""
    seen = 0
    if any(not row.windowed for row in shape.rows):
        seen += context.cells
    if any(row.windowed for row in shape.rows):
        seen += min(context.cells, shape.window + context.ubatch)
    return context.tokens_at_once * seen * (F16_BYTES if context.flash_attn else F32_BYTES)

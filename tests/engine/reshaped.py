"""The tiny model with fewer key heads, or with windows: its own tensors, cut and renamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from slotwise.launcher.model import tiny_model
from tests.engine.rewriting import rewriting

DIM, HEADS, KV_HEADS, LAYERS = 128, 4, 2, 2  # heads of 32: one block of q8_0


def grouped(folder: Path) -> Path:
    """Two key heads for four query heads."""
    model = tiny_model.build(folder, tiny_model.Shape(dim=DIM, heads=HEADS, layers=LAYERS))
    return _rewritten(model, folder / "grouped.gguf", "llama")


def windowed(folder: Path, window: int) -> Path:
    """The same as gemma3 does it: layer 0 sees ``window`` tokens, layer 1 everything."""
    model = tiny_model.build(folder, tiny_model.Shape(dim=DIM, heads=HEADS, layers=LAYERS))
    return _rewritten(model, folder / "windowed.gguf", "gemma3", window)


def _rewritten(model: Path, target: Path, architecture: str, window: int = 0) -> Path:
    changed = {"llama.attention.head_count_kv": KV_HEADS}
    head = DIM // HEADS
    with rewriting(model, target, architecture, changed) as (reader, writer):
        if window:
            writer.add_sliding_window(window)
            writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", 2)
            writer.add_key_length(head)
            writer.add_value_length(head)
        for tensor in reader.tensors:
            is_cut = tensor.name.endswith(("attn_k.weight", "attn_v.weight"))
            data = tensor.data[: KV_HEADS * head] if is_cut else tensor.data
            writer.add_tensor(tensor.name, data)
        for layer in range(LAYERS if window else 0):
            for norm, size in (("attn_q_norm", head), ("attn_k_norm", head)):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(size, np.float32))
            for norm in ("post_attention_norm", "post_ffw_norm"):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(DIM, np.float32))
    return target

"""The tiny model with fewer key heads, or with windows: its own tensors, cut and renamed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from launcher import tiny_model

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
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds: list[Any] = field.types
        value = KV_HEADS if name == "llama.attention.head_count_kv" else field.contents()
        new_name = name.replace("llama.", f"{architecture}.")
        writer.add_key_value(new_name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    head = DIM // HEADS
    if window:
        writer.add_sliding_window(window)
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", 2)
        writer.add_key_length(head)
        writer.add_value_length(head)
    for tensor in reader.tensors:
        is_cut = tensor.name.endswith(("attn_k.weight", "attn_v.weight"))
        writer.add_tensor(tensor.name, tensor.data[: KV_HEADS * head] if is_cut else tensor.data)
    if window:
        for layer in range(LAYERS):
            for norm, size in (("attn_q_norm", head), ("attn_k_norm", head)):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(size, np.float32))
            for norm in ("post_attention_norm", "post_ffw_norm"):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(DIM, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target

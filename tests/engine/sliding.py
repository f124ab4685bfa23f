"""The tiny model with sliding-window attention: its own tensors under the names of gemma3."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.engine.rewriting import OLD, rewriting

WINDOW_TOKENS = 64


def sliding(model: Path, target: Path) -> Path:
    """Write ``model`` as one whose layers see only the last ``WINDOW_TOKENS`` tokens to ``target``.

    What gemma3 normalises in addition is weighed with ones.
    """
    with rewriting(model, target, "gemma3") as (reader, writer):
        dim = int(reader.fields[f"{OLD}.embedding_length"].contents())
        writer.add_sliding_window(WINDOW_TOKENS)
        writer.add_key_length(dim)
        writer.add_value_length(dim)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data)
        ones = np.ones(dim, np.float32)
        for layer in range(int(reader.fields[f"{OLD}.block_count"].contents())):
            for norm in ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"):
                writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
    return target

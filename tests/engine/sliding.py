"""The tiny model with sliding-window attention: its own tensors under the names of gemma3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

WINDOW_TOKENS = 64
_OLD, _NEW = "llama", "gemma3"


def sliding(model: Path, target: Path) -> Path:
    """Write ``model`` as one whose layers see only the last ``WINDOW_TOKENS`` tokens to ``target``.

    What gemma3 normalises in addition is weighed with ones.
    """
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, _NEW)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds: list[Any] = field.types
        sub_type = kinds[1] if len(kinds) > 1 else None
        new_name = name.replace(f"{_OLD}.", f"{_NEW}.")
        writer.add_key_value(new_name, field.contents(), kinds[0], sub_type)
    writer.add_sliding_window(WINDOW_TOKENS)
    dim = int(reader.fields[f"{_OLD}.embedding_length"].contents())
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    ones = np.ones(dim, np.float32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    for layer in range(int(reader.fields[f"{_OLD}.block_count"].contents())):
        for norm in ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target

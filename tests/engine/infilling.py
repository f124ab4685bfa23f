"""The tiny model with tokens for filling in the middle: rows that are added to its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

BY_TEXT = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
"""The engine finds these by their texts; the file does not name them."""

BY_KEY = {"fim_pre": "<A>", "fim_suf": "<B>", "fim_mid": "<C>"}
"""These have texts of their own and are named by the file; there are none for files."""

_TOKENIZER = "tokenizer.ggml."
_NEVER = -40.0  # in channel 0 of the output: such a token is not generated


def infilling(model: Path, target: Path, *, by_key: bool = False, bos: bool = False) -> Path:
    """Write ``model`` with such tokens to ``target``; ``bos``: each prompt begins with that one."""
    texts = list(BY_KEY.values() if by_key else BY_TEXT)
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, "llama")
    size = len(reader.fields[_TOKENIZER + "tokens"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds: list[Any] = field.types
        value = field.contents()
        if name == _TOKENIZER + "tokens":
            value = [*value, *texts]
        elif name == _TOKENIZER + "token_type":
            value = [*value, *[int(gguf.TokenType.CONTROL)] * len(texts)]
        elif name == "llama.vocab_size":
            value = size + len(texts)
        elif name == _TOKENIZER + "add_bos_token":
            value = bos
        writer.add_key_value(name, value, kinds[0], kinds[1] if len(kinds) > 1 else None)
    for i, key in enumerate(BY_KEY if by_key else ()):
        writer.add_uint32(f"{_TOKENIZER}{key}_token_id", size + i)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, _grown(tensor, len(texts)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _grown(tensor: Any, n: int) -> Any:
    """With ``n`` more rows, where there is one for each token."""
    if tensor.name not in ("token_embd.weight", "output.weight"):
        return tensor.data
    rows = tensor.data[:n].copy()
    if tensor.name == "output.weight":
        rows[:, 0] = _NEVER
    return np.concatenate([tensor.data, rows])

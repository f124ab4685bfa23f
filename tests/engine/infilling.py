"""The tiny model with tokens for filling in the middle: rows that are added to its vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.engine.rewriting import rewriting

BY_TEXT = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
"""The engine finds these by their texts; the file does not name them."""

BY_KEY = {"fim_pre": "<A>", "fim_suf": "<B>", "fim_mid": "<C>"}
"""These have texts of their own and are named by the file; there are none for files."""

_TOKENIZER = "tokenizer.ggml."
_NEVER = -40.0  # in channel 0 of the output: such a token is not generated


def infilling(model: Path, target: Path, *, by_key: bool = False, bos: bool = False) -> Path:
    """Write ``model`` with such tokens to ``target``; ``bos``: each prompt begins with that one."""
    texts = list(BY_KEY.values() if by_key else BY_TEXT)
    more = len(texts)
    fields = gguf.GGUFReader(model).fields
    known, kinds = (fields[_TOKENIZER + name].contents() for name in ("tokens", "token_type"))
    changed = {
        _TOKENIZER + "tokens": [*known, *texts],
        _TOKENIZER + "token_type": [*kinds, *[int(gguf.TokenType.CONTROL)] * more],
        _TOKENIZER + "add_bos_token": bos,
        "llama.vocab_size": len(known) + more,
    }
    with rewriting(model, target, changed=changed) as (reader, writer):
        for i, key in enumerate(BY_KEY if by_key else ()):
            writer.add_uint32(f"{_TOKENIZER}{key}_token_id", len(known) + i)
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, _grown(tensor, more))
    return target


def _grown(tensor: Any, n: int) -> Any:
    """With ``n`` more rows, where there is one for each token."""
    if tensor.name not in ("token_embd.weight", "output.weight"):
        return tensor.data
    rows = tensor.data[:n].copy()
    if tensor.name == "output.weight":
        rows[:, 0] = _NEVER
    return np.concatenate([tensor.data, rows])

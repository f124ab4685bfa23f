"""A GGUF file written anew from another: its keys are copied, who asks adds what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf

OLD = "llama"  # the architecture of the tiny model


@contextmanager
def rewriting(
    model: Path, target: Path, architecture: str = OLD, changed: Mapping[str, Any] | None = None
) -> Iterator[tuple[gguf.GGUFReader, gguf.GGUFWriter]]:
    """What reads ``model``, and what writes ``target`` once it was given the tensors.

    ``changed``: values to be put in the place of the model's, by the keys they have there.
    """
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, architecture)
    values = changed or {}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kinds: list[Any] = field.types
        value = values[name] if name in values else field.contents()
        sub_type = kinds[1] if len(kinds) > 1 else None
        writer.add_key_value(name.replace(f"{OLD}.", f"{architecture}."), value, kinds[0], sub_type)
    yield reader, writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""Reads a YAML mapping and says in one line what is wrong with it, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LARGEST_BYTES = 1_000_000


class YamlError(ValueError):
    """The file is missing, not YAML, or not a mapping; the text is one line."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: the first value would be dropped silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in this file; raises YamlError."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1).decode("utf-8")
        if len(text) > _LARGEST_BYTES:
            raise YamlError(f"expected at most {_LARGEST_BYTES} bytes of YAML")
        data = yaml.load(text, Loader=_Loader)
    except OSError as error:
        raise YamlError(f"cannot read the file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise YamlError("expected YAML in UTF-8") from error
    except yaml.YAMLError as error:
        raise YamlError(_told(error)) from error
    except RecursionError as error:
        raise YamlError("the file nests too deeply") from error
    if not isinstance(data, dict):
        raise YamlError(f"expected a mapping (key: value), got {type(data).__name__}")
    return data


def _told(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{where}{problem}"

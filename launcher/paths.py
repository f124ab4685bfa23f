"""Paths as a profile gives them: from the profile's own directory, ``~`` is the home directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


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

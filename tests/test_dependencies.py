"""What the code imports is what the project declares, so that a fresh install starts."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"slotwise"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def _imported(package: str) -> set[str]:
    """The top-level modules of others that a package's files import, also inside functions."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - OURS - sys.stdlib_module_names


def _declared(*extras: str) -> set[str]:
    """The distributions named by the project and these extras, in their normal spelling."""
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    return {_normal(re.split(r"[<>=!~;\[ ]", line)[0]) for line in wanted}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "extras"),
    [
        ("policies", ()),
        ("proxy", ()),
        ("launcher", ("embedded", "bench")),  # gguf and numpy, to make the tiny model
        ("bench", ("embedded", "bench")),
    ],
)
def test_every_imported_package_is_declared(package: str, extras: tuple[str, ...]) -> None:
    told = metadata.packages_distributions()
    declared = _declared(*extras)
    missing = {
        module
        for module in _imported(package)
        if not declared & {_normal(name) for name in told.get(module, [module])}
    }
    assert not missing, f"{package} imports {sorted(missing)}, which pyproject.toml does not name"

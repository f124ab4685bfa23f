"""Who may import whom: the two tables in CONTRIBUTING.md, read from the imports of every file.

An import anywhere in a file counts, also one inside a function or under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policies", "proxy", "launcher", "bench")
# What reads a clock, draws lots, waits, or reaches outside.
EFFECTS = frozenset(
    {
        *("asyncio", "time", "random", "secrets", "os", "logging", "io", "pathlib", "shutil"),
        *("socket", "ssl", "select", "subprocess", "threading", "queue", "concurrent"),
        *("multiprocessing", "signal", "urllib", "http", "tempfile", "datetime", "importlib"),
    }
)
WRONG_NAME = "by its folder's name: it is installed as a part of slotwise"
MOVE = "CONTRIBUTING.md does not allow that; move what is needed, or pass it in"


@dataclass(frozen=True)
class Room:
    """A row of the tables: a folder or a file, and what it may import."""

    modules: tuple[str, ...]  # of ours, each with all below it
    packages: frozenset[str]  # of others; a pure room's also from the standard library
    pure: bool

    def allows(self, module: str) -> bool:
        return any(module == m or module.startswith(f"{m}.") for m in self.modules)


def tables() -> list[list[list[str]]]:
    """The cells of each table, without its line of dashes."""
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Who may import whom", 1)[1]
    found: list[list[list[str]]] = []
    for part in text.split("\n## ")[0].split("\n\n"):
        lines = [line for line in part.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found += [[row for row in cells if not row[0].startswith("---")]] if cells else []
    return found


def rooms() -> dict[str, Room]:
    (names, *of_proxy), (_, *others) = tables()
    found: dict[str, Room] = {}
    for name, *cells in of_proxy:
        room = name.rstrip("*")
        modules = [f"proxy.{room}"]
        modules += [] if room in ("core", "history") else ["proxy.errors"]
        for column, cell in zip(names[1:-1], cells[:-1], strict=True):
            source = "policies" if column == "policies" else f"proxy.{column}"
            modules += [source] if cell == "x" else [f"{source}.{one}" for one in cell.split()]
        found[f"proxy/{room}"] = _room(name, modules, cells[-1])
    for name, allowed, packages in others:
        found[name.rstrip("*")] = _room(name, allowed.split(), packages)
    return found


def _room(name: str, modules: list[str], packages: str) -> Room:
    return Room(tuple(modules), frozenset(packages.split()), name.endswith("*"))


ROOMS = rooms()


def violations(root: Path) -> list[str]:
    """Every import that breaks a law, as ``file:line: what``, and what to do."""
    found: list[str] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            room = ROOMS.get(file) or ROOMS.get(PurePosixPath(file).parent.as_posix())
            if room is not None:
                found += _of_room(path, file, room, root)
            elif path.name != "__init__.py" or path.read_text().count('"""') != 2:
                found.append(f"{file}:1: lies in no room: move it to one of {', '.join(ROOMS)}")
    return found


def _of_room(path: Path, file: str, room: Room, root: Path) -> Iterator[str]:
    for line, module in imports(path, root):
        top = module.partition(".")[0]
        if module.endswith(WRONG_NAME):
            yield f"{file}:{line}: imports {module}"
        elif top in PACKAGES:
            if not room.allows(module):
                yield f"{file}:{line}: imports {module}: {MOVE}"
        elif top in sys.stdlib_module_names:
            if room.pure and top in EFFECTS - room.packages:
                told = "the room is pure; move the file, or pass in what it asks for"
                yield f"{file}:{line}: imports {module}: {told}"
        elif top not in room.packages:
            yield f"{file}:{line}: imports {module}: CONTRIBUTING.md does not name that package"


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and module of each import, ours without ``slotwise.``: ``from slotwise.proxy.core import
    events`` imports proxy.core.events. Ours by another name is ``by its folder's name``."""
    for line, module in _imports(path, root):
        top, _, inner = module.partition(".")
        if top == "slotwise":
            yield line, inner
        else:
            yield line, f"{module} {WRONG_NAME}" if top in PACKAGES else module


def _imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    package = ("slotwise", *path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*above, *([node.module] if node.module else [])))
            inner = [f"{source}.{alias.name}" for alias in node.names]
            files = [root.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in inner]
            of_modules = [name for name, file in zip(inner, files, strict=True) if file.exists()]
            yield from ((node.lineno, name) for name in of_modules)
            if len(of_modules) < len(inner):
                yield node.lineno, source


def test_every_import_keeps_the_law() -> None:
    assert violations(ROOT) == []


def test_the_tables_have_every_folder_and_no_other() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    with_files = {f for f in folders if any(p.name != "__init__.py" for p in f.glob("*.py"))}
    named = {(ROOT / room).parent if room.endswith(".py") else ROOT / room for room in ROOMS}
    assert named == with_files
    pure = {name for name, room in ROOMS.items() if room.pure}
    assert pure >= {"policies", "proxy/core", "proxy/history", "proxy/chat"}


def test_rooms_are_no_larger_than_a_person_can_look_over() -> None:
    for name in ROOMS:
        folder = ROOT / name
        assert not folder.is_dir() or len(list(folder.glob("*.py"))) <= 20, name


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("proxy/new.py", "", "lies in no room: move it to one of proxy/core"),
        ("launcher/new.py", "", "lies in no room: move it to one of proxy/core"),
        ("proxy/deep/new/new.py", "import asyncio", "lies in no room"),
        ("proxy/core/new.py", "import asyncio", "the room is pure; move the file"),
        ("policies/guest.py", "def f():\n    import logging", "the room is pure"),
        ("launcher/plan/plan.py", "import subprocess", "the room is pure"),
        ("proxy/chat/new.py", "import httpx", "does not name that package"),
        ("proxy/tokens/new.py", "from slotwise.proxy.serving.driver import Driver", MOVE),
        ("proxy/serving/driver.py", "import policies.guest", WRONG_NAME),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    tmp_path: Path, file: str, line: str, told: str
) -> None:
    assert [told in found for found in _written(tmp_path, file, line)] == [True]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("policies/guest.py", "from slotwise.proxy.core.events import Tick"),
        ("proxy/core/scheduler.py", "from slotwise.proxy.serving import driver"),
        ("proxy/core/scheduler.py", "from ..serving import driver"),
        ("proxy/core/scheduler.py", "from ..serving.driver import Driver"),
        ("proxy/history/explain.py", "from slotwise.proxy.errors import ProxyError"),
        ("proxy/chat/kinds.py", "from slotwise.proxy.core.events import Tick"),
        ("proxy/serving/driver.py", "import slotwise.launcher"),
        ("proxy/serving/driver.py", "from slotwise.bench import trace"),
        ("launcher/model/models.py", "from slotwise.launcher.plan.plan import Plan"),
        ("launcher/process/process.py", "from slotwise.proxy.serving.driver import Driver"),
        ("launcher/process/process.py", "from slotwise.launcher.cli.command import main"),
        ("launcher/process/process.py", "from slotwise.launcher.engines import Engines"),
        ("launcher/wiring.py", "import slotwise.bench.run.demo"),
        ("bench/sim/bounds.py", "from slotwise.bench.run.demo import Demo"),
        ("bench/sim/bounds.py", "from slotwise.proxy.serving.driver import Driver"),
        ("bench/run/demo.py", "from slotwise.launcher.cli.command import main"),
    ],
)
def test_an_import_against_the_law_is_found(tmp_path: Path, file: str, line: str) -> None:
    for there in ("proxy/serving/driver.py", "launcher/engines.py", "bench/trace/trace.py"):
        (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / there).touch()
    assert [found.partition(":")[0] for found in _written(tmp_path, file, line)][:1] == [file]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("policies/guest.py", "from slotwise.policies.types import Rule\nimport math"),
        ("proxy/core/scheduler.py", "from slotwise.policies import guest"),
        ("proxy/serving/driver.py", "import asyncio\nfrom slotwise.proxy.core import events"),
        ("launcher/cli/command.py", "import slotwise.bench.run.demo"),
        ("bench/run/demo.py", "import httpx\nfrom slotwise.proxy.core.scheduler import Scheduler"),
    ],
)
def test_an_import_within_the_law_is_not(tmp_path: Path, file: str, line: str) -> None:
    for there in ("policies/guest.py", "proxy/core/events.py"):
        (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / there).touch()
    assert _written(tmp_path, file, line) == []


def _written(root: Path, file: str, text: str) -> list[str]:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return violations(root)

"""Who may import whom, read from the imports of every file.

The rooms of ``proxy/`` keep the table in CONTRIBUTING.md. For the other folders the rules are here:
the first entry of ``LAWS`` that fits a file is its law. An import anywhere in a file counts, also
one inside a function or under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("policies", "proxy", "launcher", "bench")

POLICIES = ("policies", "policies.*")
# Of the proxy, what has no effects: a measurement may use it.
PURE_MODULES = (
    *("proxy", "proxy.core", "proxy.core.*", "proxy.history", "proxy.history.*", "proxy.chat"),
    *("proxy.chat.*", "proxy.engine", "proxy.engine.sse", "proxy.engine.asking"),
)
# The arithmetic of memory: figures in, figures and words out.
PLANNING = (
    *("architectures", "cache_size", "compute_size", "fitting", "model_shape", "plan"),
    *("plan_words", "residency"),
)
PLANNING_FILES = tuple(f"launcher/{name}.py" for name in PLANNING)
PLANNING_MODULES = ("launcher", "launcher.gguf_header", *(f"launcher.{n}" for n in PLANNING))
# Where launcher and proxy meet: the command, what a profile means, the engines that run.
JOINING = ("launcher/cli.py", "launcher/wiring.py", "launcher/engines.py")
JOINING_MODULES = ("launcher.wiring", "launcher.engines")
# What reads a clock, draws lots, waits, or reaches outside.
EFFECTS = frozenset(
    {
        *("asyncio", "time", "random", "secrets", "os", "logging", "io", "pathlib", "shutil"),
        *("socket", "ssl", "select", "subprocess", "threading", "queue", "concurrent"),
        *("multiprocessing", "signal", "urllib", "http", "tempfile", "datetime", "importlib"),
    }
)
SERVING = frozenset({"httpx", "orjson", "prometheus_client", "pydantic", "starlette", "uvicorn"})
SERVING |= {"httptools", "uvloop"}
SERVING |= {"jinja2", "tokenizers"}
STARTING = frozenset({"gguf", "httpx", "numpy", "psutil", "pydantic"})
STARTING |= {"rich", "tokenizers", "xllamacpp", "yaml"}
MEASURING = frozenset({"numpy", "orjson", "psutil", "rich", "scipy", "tokenizers", "yaml"})
MEASURING |= {"matplotlib", "pydantic"}


ASKING = (
    *("causes", "client", "compare", "demo", "memory_cost", "memory_other", "replay", "sender"),
    "as_simulated",
)


@dataclass(frozen=True)
class Law:
    files: tuple[str, ...]  # patterns
    modules: tuple[str, ...]  # of ours that it may import: patterns
    packages: frozenset[str] = frozenset()  # of others
    banned: frozenset[str] = frozenset()  # of the standard library


LAWS = (
    Law(("policies/*.py",), POLICIES, banned=EFFECTS),
    Law(("proxy/errors.py",), ("proxy.core", "proxy.core.actions"), frozenset({"orjson"})),
    Law(("proxy/__init__.py",), ()),
    Law(JOINING, ("*",), SERVING | STARTING | MEASURING),
    Law(PLANNING_FILES, PLANNING_MODULES, banned=EFFECTS),
    Law(("launcher/*.py",), ("launcher", "launcher.*"), STARTING),
    Law(
        # it measures the very encoding that serves, on the vocabulary as it is read for it
        ("bench/tokens_bench.py",),
        ("bench", "bench.*", *POLICIES, "proxy", "proxy.*", "launcher", "launcher.gguf_header"),
        MEASURING | {"httpx"},
    ),
    Law(
        # it is the proxy as it serves, with a switch
        ("bench/seeing_server.py",),
        ("bench", "bench.*", *POLICIES, "proxy", "proxy.*"),
        SERVING,
    ),
    Law(
        # what they start shall end with them, as slotwise's engines do
        ("bench/engines.py", "bench/seeing_cost.py"),
        ("bench", "bench.*", "launcher", "launcher.parent_death"),
        MEASURING | {"httpx"},
    ),
    Law(
        # these talk to a running server
        tuple(f"bench/{name}.py" for name in ASKING),
        ("bench", "bench.*", *POLICIES, *PURE_MODULES),
        MEASURING | {"httpx"},
    ),
    Law(
        ("bench/floor/engine.py",),
        ("bench", "bench.*", *POLICIES, *PURE_MODULES),
        MEASURING | {"httpx"},
    ),
    Law(
        ("bench/*.py", "bench/floor/*.py"),
        ("bench", "bench.*", *POLICIES, *PURE_MODULES),
        MEASURING,
    ),
)
ONLY_CLI_MAY = "bench"
NOBODY_MAY = "launcher.cli"


WRONG_NAME = "by its folder's name: it is installed as a part of slotwise"


@dataclass(frozen=True)
class Room:
    """A folder of ``proxy/``, as the table in CONTRIBUTING.md has it."""

    modules: tuple[str, ...]  # of ours that it may import: patterns
    packages: frozenset[str]  # of others; a pure room's also from the standard library
    pure: bool


def rooms() -> dict[str, Room]:
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## Who may import whom", 1)[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    names, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found: dict[str, Room] = {}
    for name, *cells in (row for row in rows if not row[0].startswith("---")):
        room = name.rstrip("*")
        modules = [f"proxy.{room}", f"proxy.{room}.*", "proxy"]
        modules += [] if room in ("core", "history") else ["proxy.errors"]
        for column, cell in zip(names[1:-1], cells[:-1], strict=True):
            source = "policies" if column == "policies" else f"proxy.{column}"
            allowed = ["*"] if cell == "x" else cell.split()
            modules += [source] if allowed else []
            modules += [f"{source}.{module}" for module in allowed]
        found[room] = Room(tuple(modules), frozenset(cells[-1].split()), name.endswith("*"))
    return found


ROOMS = rooms()
NO_ROOM = {"proxy/__init__.py", "proxy/errors.py"}


def violations(root: Path) -> list[str]:
    """Every import that breaks a law, as ``file:line: what``, and what to do."""
    found: list[str] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if package == "proxy" and file not in NO_ROOM:
                found += in_proxy(path, file, root)
                continue
            law = next((law for law in LAWS if fits(law, file)), None)
            if law is None:
                found.append(f"{file}:1: no law for this file: add one to LAWS")
                continue
            for line, module in imports(path, root):
                if not allowed(file, law, module):
                    found.append(f"{file}:{line}: imports {module}")
    return found


def in_proxy(path: Path, file: str, root: Path) -> Iterator[str]:
    name = PurePosixPath(file).parent.name
    room = ROOMS.get(name)
    if room is None or file.count("/") != 2:
        names = ", ".join(ROOMS)
        yield f"{file}:1: lies in no room: move it to one of proxy/ {names} (CONTRIBUTING.md)"
        return
    for line, module in imports(path, root):
        top = module.partition(".")[0]
        if module.endswith(WRONG_NAME):
            yield f"{file}:{line}: imports {module}"
        elif top in PACKAGES:
            if not any(fnmatch(module, pattern) for pattern in room.modules):
                told = "its row in CONTRIBUTING.md does not name that; move what is needed, or it"
                yield f"{file}:{line}: {name} imports {module}: {told}"
        elif top in sys.stdlib_module_names:
            if room.pure and top in EFFECTS - room.packages:
                told = (
                    "the room is pure; move the file to another room, or pass in what it asks for"
                )
                yield f"{file}:{line}: {name} imports {module}: {told}"
        elif top not in room.packages:
            told = "its row in CONTRIBUTING.md does not name that package"
            yield f"{file}:{line}: {name} imports {module}: {told}"


def fits(law: Law, file: str) -> bool:
    return any(PurePosixPath(file).match(pattern) for pattern in law.files)


def allowed(file: str, law: Law, module: str) -> bool:
    top = module.partition(".")[0]
    if module == NOBODY_MAY:
        return False
    if module in JOINING_MODULES and file not in JOINING:
        return False
    if top == ONLY_CLI_MAY and not file.startswith("bench/"):
        return file == "launcher/cli.py"
    if module.endswith(WRONG_NAME):
        return False
    if top in PACKAGES:
        return any(fnmatch(module, pattern) for pattern in law.modules)
    if top in sys.stdlib_module_names:
        return top not in law.banned
    return top in law.packages


def imports(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Line and module of each import, ours without ``slotwise.``: ``from slotwise.proxy import
    sse`` imports proxy.sse. Ours by another name is ``by its folder's name``."""
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
            yield node.lineno, source
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if root.joinpath(*inner.split(".")[1:]).with_suffix(".py").exists():
                    yield node.lineno, inner


def test_every_import_keeps_the_law() -> None:
    assert violations(ROOT) == []


def test_the_table_has_every_room() -> None:
    assert set(ROOMS) == {path.parent.name for path in ROOT.glob("proxy/*/__init__.py")}
    assert [name for name, room in ROOMS.items() if room.pure] == ["core", "history", "chat"]


@pytest.mark.parametrize(
    ("file", "line", "told"),
    [
        ("proxy/new.py", "", "lies in no room: move it to one of proxy/ core"),
        ("proxy/core/new.py", "import asyncio", "the room is pure; move the file to another room"),
        ("proxy/chat/new.py", "import httpx", "does not name that package"),
        (
            "proxy/tokens/new.py",
            "from slotwise.proxy.serving.driver import Driver",
            "its row in CONTRIBUTING.md does not name that",
        ),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    tmp_path: Path, file: str, line: str, told: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    [found] = violations(tmp_path)
    assert told in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("policies/guest.py", "import time"),
        ("policies/guest.py", "import httpx"),
        ("policies/guest.py", "from slotwise.proxy.core.events import Tick"),
        ("policies/guest.py", "def f():\n    import logging"),
        ("proxy/core/scheduler.py", "import asyncio"),
        ("proxy/core/scheduler.py", "from slotwise.proxy.serving.driver import Driver"),
        ("proxy/core/scheduler.py", "from slotwise.proxy.serving import driver"),
        ("proxy/core/scheduler.py", "from ..serving import driver"),
        ("proxy/core/scheduler.py", "from ..serving.driver import Driver"),
        ("proxy/engine/sse.py", "import starlette"),
        ("proxy/history/explain.py", "from slotwise.proxy.errors import ProxyError"),
        ("proxy/chat/kinds.py", "from slotwise.proxy.core.events import Tick"),
        ("proxy/serving/driver.py", "from slotwise.launcher.process import Process"),
        ("proxy/serving/driver.py", "import slotwise.launcher"),
        ("proxy/serving/driver.py", "import numpy"),
        ("proxy/serving/driver.py", "from slotwise.bench import trace"),
        ("proxy/deep/new.py", "import asyncio"),
        ("launcher/process.py", "from slotwise.proxy.serving.driver import Driver"),
        ("launcher/process.py", "from slotwise.policies.types import Rule"),
        ("launcher/process.py", "import slotwise.bench.demo"),
        ("launcher/process.py", "from slotwise.launcher.cli import main"),
        ("launcher/process.py", "from slotwise.launcher import cli"),
        ("launcher/process.py", "from slotwise.launcher.engines import Engines"),
        ("launcher/wiring.py", "import slotwise.bench.demo"),
        ("proxy/serving/driver.py", "from proxy.events import Tick"),
        ("proxy/serving/driver.py", "import policies.guest"),
        ("bench/bounds.py", "import httpx"),
        ("bench/bounds.py", "from slotwise.proxy.serving.driver import Driver"),
        ("bench/demo.py", "from slotwise.launcher.process import Process"),
        ("bench/demo.py", "from slotwise.launcher.cli import main"),
    ],
)
def test_an_import_against_the_law_is_found(tmp_path: Path, file: str, line: str) -> None:
    there = (
        "proxy/serving/driver.py",
        "launcher/cli.py",
        "launcher/engines.py",
        "bench/trace.py",
        file,
    )
    for name in there:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / file).write_text(line + "\n")
    assert [found.partition(":")[0] for found in violations(tmp_path)][:1] == [file]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("policies/guest.py", "from slotwise.policies.types import Rule\nimport math"),
        (
            "proxy/core/scheduler.py",
            "from slotwise.policies import guest\nfrom slotwise.proxy.core.events import Tick",
        ),
        (
            "proxy/serving/driver.py",
            "import asyncio\nfrom slotwise.proxy.core.scheduler import Scheduler",
        ),
        (
            "launcher/cli.py",
            "import slotwise.bench.demo\nfrom slotwise.proxy.serving.driver import Driver",
        ),
        ("bench/demo.py", "import httpx\nfrom slotwise.proxy.core.scheduler import Scheduler"),
    ],
)
def test_an_import_within_the_law_is_not(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    assert violations(tmp_path) == []

"""A wheel of the sources, in an environment without them: all that a user needs is in it."""

from __future__ import annotations

import json
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.support import Process

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bench", "configs", "launcher", "policies", "proxy")
LIMIT_S = 300
# Not in the extra `embedded`: nothing but measuring may need them.
MORE = ("gguf", "matplotlib", "scipy")


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Its output; a failure shows what it said."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building leaves files beside the sources."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("dist")
    for folder in FOLDERS:
        leftover = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, sources / folder, ignore=leftover)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    run((*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", built, "."), sources)
    [made] = built.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment with the wheel. What it depends on lies in ours, and is
    found there; ours does not run its hooks there, so slotwise comes from the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    inside = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(inside, "of_others.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    python = folder / "bin" / "python"
    run((*pip, "--python", python, "install", "--no-deps", "--no-index", wheel), folder)
    return folder / "bin"


def test_nothing_of_ours_lies_at_the_top_level_but_slotwise(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"slotwise"}
    assert len(tops) == 2


def test_what_is_no_code_travels_with_it(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, suffixes in (
        ("configs", (".yaml", ".yml", ".json")),
        ("proxy/api/lanes", (".js", ".css", ".html", ".svg")),
        ("bench/costs", (".yaml",)),
    ):
        ours = {
            f"slotwise/{path.relative_to(ROOT).as_posix()}"
            for path in (ROOT / folder).rglob("*")
            if path.suffix in suffixes
        }
        assert ours
        assert ours <= names


def test_the_commands_come_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    program = "import slotwise.launcher.cli.command as cli; print(cli.__file__)"
    found = run((environment / "python", "-c", program), tmp_path)
    assert Path(found.strip()).is_relative_to(environment.parent)
    assert run((environment / "slotwise", "--version"), tmp_path).startswith("slotwise ")
    assert "demo" in run((environment / "slotwise", "configs"), tmp_path).split()
    run((environment / "slotwise", "configs", "--write", tmp_path / "mine"), tmp_path)
    assert (tmp_path / "mine" / "grafana" / "dashboards" / "memory.json").exists()


def test_it_simulates_without_what_only_measuring_needs(environment: Path, tmp_path: Path) -> None:
    blocks = [
        json.dumps(
            {
                **{"session": f"s{session}", "agent": "main", "turn": turn, "t": 9.0 * turn},
                **{"in": 640 * (turn + 1), "out": 9, "api_time": 1.0, "think_time": 2.0},
                **{"stop": "tool_use", "new": "text"},
                "blocks": f"{1000 * session + 1}-{1000 * session + 10 * (turn + 1)}",
            }
        )
        for session in range(3)
        for turn in range(3)
    ]
    trace = tmp_path / "mine.blocks.jsonl"
    trace.write_text("\n".join(blocks) + "\n")
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in MORE)
    arguments = ["simulate", str(trace), "--grid", "2/2/0", "--seeds", "1", "--cost", "tiny"]
    program = (
        f"import sys; {blocked}; from slotwise.launcher.cli import command; "
        f"sys.exit(command.main({arguments!r}))"
    )
    told = run((environment / "python", "-c", program), tmp_path)
    assert "slotwise" in told
    assert "llama.cpp" in told


@pytest.mark.skipif(not find_spec("xllamacpp"), reason="no embedded engine (xllamacpp)")
def test_the_demo_and_its_page_are_served(environment: Path, tmp_path: Path) -> None:
    arguments = ("--port", "0", "--state-dir", str(tmp_path / "state"))
    with Process([str(environment / "slotwise"), "serve", "demo", *arguments]) as served:
        url = served.wait_for_line("slotwise ready on ")
        assert "lanes" in httpx.get(f"{url}/slotwise/", timeout=LIMIT_S).text
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=LIMIT_S)
        assert answer.json()["usage"]["completion_tokens"] == 3

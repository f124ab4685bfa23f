"""A file that has grown past 300 lines holds more than one concept, and is to be split by them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("policies", "proxy", "launcher", "bench", "configs", "tests")
MOST_LINES = 300


def too_long(root: Path) -> list[str]:
    """Each Python file of the project with more lines, and how many it has."""
    files = [*root.glob("*.py"), *(f for name in FOLDERS for f in (root / name).rglob("*.py"))]
    lines = {file: len(file.read_text("utf-8").splitlines()) for file in files}
    return sorted(f"{f.relative_to(root)}: {n}" for f, n in lines.items() if n > MOST_LINES)


def test_no_file_is_over_300_lines() -> None:
    assert too_long(ROOT) == []


def test_a_file_that_is_too_long_is_named(tmp_path: Path) -> None:
    for name, lines in (("proxy/deep/long.py", 301), ("tests/short.py", 300), ("setup.py", 302)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines)
    assert too_long(tmp_path) == ["proxy/deep/long.py: 301", "setup.py: 302"]

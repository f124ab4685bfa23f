"""A headless browser for tests of pages: Debian's chromium, driven by playwright.

Where one of them is missing the tests skip with a line that says which. axe, which judges how a
page serves those who cannot see or point, comes from npm: ``SLOTWISE_AXE`` names its script.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 15_000


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser with an empty profile of its own; skips the test where there is none."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=binary, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page(browser: Any, url: str, **options: Any) -> Iterator[Any]:
    """A page at ``url``; fails at its end if a script of it did."""
    faults: list[str] = []
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    try:
        opened.goto(url)
        yield opened
    finally:
        context.close()
    assert not faults, faults


def axe_source() -> str:
    """The script of axe; skips the test where it is not there."""
    given = os.environ.get("SLOTWISE_AXE", "")
    path = Path(given) if given else Path("node_modules/axe-core/axe.min.js")
    if not path.is_file():
        pytest.skip(f"axe-core is not there: {path} (npm install axe-core; SLOTWISE_AXE names it)")
    return path.read_text()


def grave_findings(opened: Any, source: str) -> list[str]:
    """What axe finds of weight serious or above, as ``rule: element``."""
    found = opened.evaluate(source + "; axe.run()")
    assert found["passes"], "axe looked at nothing"
    return [
        f"{rule['id']}: {node['html'][:120]}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]

"""A Prometheus of a test's own: the committed configuration, at a test's pace, on a free port."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import ROOT, Process, wait_until

CONFIG = ROOT / "configs" / "prometheus"
RULES = sorted((CONFIG / "rules").glob("*.yml"))
_LISTENING = re.compile(r'msg="Listening on" address=([0-9.]+:[0-9]+)')


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; skips the test where it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on PATH (Debian: apt install prometheus)")
    return found


class Prometheus(Process):
    """Scrapes one slotwise each second and evaluates the rules as often."""

    def __init__(self, folder: Path, slotwise: str) -> None:
        text = (CONFIG / "prometheus.yml").read_text()
        text = re.sub(r"_interval: 15s.*", "_interval: 1s", text)
        text = text.replace("127.0.0.1:8000", slotwise.removeprefix("http://"))
        config = folder / "prometheus.yml"
        config.write_text(text.replace("rules/*.yml", f"{CONFIG}/rules/*.yml"))
        flags = ("--config.file", config, "--storage.tsdb.path", folder / "data")
        super().__init__([program("prometheus"), *flags, "--web.listen-address", "127.0.0.1:0"])
        try:
            found = wait_until(lambda: _LISTENING.search(self.output), 20, "Prometheus listens")
            assert found is not None
            self._client = httpx.Client(base_url=f"http://{found[1]}", timeout=10)
            wait_until(lambda: self.values("up == 1"), 20, "slotwise was scraped")
        except BaseException:
            self.__exit__()
            raise

    def values(self, expr: str) -> list[float]:
        """What an expression gives now, NaN left out; an AssertionError where it does not parse."""
        try:
            answer = self._client.post("/api/v1/query", data={"query": expr})
        except httpx.TransportError:  # it is not up yet
            return []
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return []
        told: dict[str, Any] = answer.json()
        assert told["status"] == "success", f"{expr}: {told}"
        found = [float(one["value"][1]) for one in told["data"]["result"]]
        return [value for value in found if not math.isnan(value)]

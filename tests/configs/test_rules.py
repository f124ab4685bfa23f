"""The rules and every query of the dashboards, by Prometheus itself."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.configs.prometheus import CONFIG, RULES, Prometheus, program
from tests.configs.test_dashboards import queries
from tests.support import ROOT, Slotwise, wait_until

CASES = ROOT / "tests" / "configs" / "alerts_test.yml"
CONVERSATIONS, TURNS = 3, 3
_TESTS = "promql_expr_test"


def rules() -> Iterator[dict[str, Any]]:
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def run(*line: str | Path) -> str:
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    run(program("promtool"), "check", "config", CONFIG / "prometheus.yml")
    told = run(program("promtool"), "check", "rules", *RULES)
    assert told.count("SUCCESS") == len(RULES) == 2


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    """The cases are in the file; that each alert has both kinds is held here."""
    run(program("promtool"), "test", "rules", CASES)


def test_every_alert_has_a_firing_and_a_quiet_case_and_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    told = {case["name"]: case for case in yaml.safe_load(CASES.read_text())["tests"]}
    for alert in alerts:
        name = alert["alert"]
        firing, quiet = (
            [test for n in told if n.startswith(f"{name} {word}") for test in told[n][_TESTS]]
            for word in ("fires", "is quiet")
        )
        assert firing
        assert quiet
        assert all(f'"{name}"' in test["expr"] for test in firing + quiet)
        assert all(test["exp_samples"] for test in firing)
        assert not any(test["exp_samples"] for test in quiet)
        assert len(alert["annotations"]["action"]) > 60
        assert alert["annotations"]["summary"]
    assert len(alerts) == 9


def profile(folder: Path) -> Path:
    path = folder / "main.yaml"
    server = {"binary": "embedded", "model": "embedded:tiny", "parallel": 4, "ctx_size": 16384}
    whole = {
        "name": "main",
        "server": {**server, "cache_ram_mib": 0, "threads": 1},
        # Of the machine that runs the test nothing is expected but that it can.
        "memory": {"floor_gib": 0.1, "hard_floor_gib": 0.05},
    }
    path.write_text(json.dumps(whole))
    return path


def talk(url: str, number: int) -> None:
    """A conversation that grows, each turn with a title job beside it."""
    system = f"You are agent {number}. " + "Be helpful, and brief. " * 20
    messages = [{"role": "system", "content": system}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"question {turn} of {number}"})
        answer = _ask(url, messages)
        messages.append(answer.json()["choices"][0]["message"])
        title = {"role": "user", "content": f"A title for chat {number}, turn {turn}"}
        _ask(url, [title], stream=True)  # only a stream has a time to its first token


def _ask(url: str, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 4, **more}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer


@contextmanager
def talking(url: str) -> Iterator[None]:
    """Conversations side by side, for as long as the block needs them."""
    over = threading.Event()

    def until_over(number: int) -> None:
        while not over.is_set():
            talk(url, number)
            over.wait(1)

    talkers = [threading.Thread(target=until_over, args=(n,)) for n in range(CONVERSATIONS)]
    for talker in talkers:
        talker.start()
    try:
        yield
    finally:
        over.set()
        for talker in talkers:
            talker.join(60)


def filled_in(expr: str) -> str:
    """As Grafana sends it when all of everything is chosen."""
    chosen = {"$profile": ".*", "$engine": ".*", "$__rate_interval": "30s", "$__range": "5m"}
    for name, value in chosen.items():
        expr = expr.replace(name, value)
    assert "$" not in expr
    return expr


@pytest.mark.slow
def test_every_query_of_every_panel_and_rule_returns_data(tmp_path: Path) -> None:
    """On a fresh install with some conversations: no panel is empty. Alerts are empty as long as
    nothing is wrong: their expressions return data in the cases above."""
    program("prometheus")
    left = [(title, filled_in(expr)) for title, expr in queries()]
    left += [("recorded", rule["record"]) for rule in rules() if "record" in rule]
    assert len(left) > 50
    files = ("--state-dir", tmp_path / "state")
    with (
        Slotwise(profile(tmp_path), *files) as slotwise,
        Prometheus(tmp_path, slotwise.url) as prometheus,
        talking(slotwise.url),
    ):

        def answered() -> bool:
            nonlocal left
            left = [(title, expr) for title, expr in left if not prometheus.values(expr)]
            return not left

        try:
            wait_until(answered, 40)
        except AssertionError:
            raise AssertionError(f"no data: {left}") from None
        # Neither does the engine choose a slot by itself, nor has it been lost.
        assert prometheus.values('ALERTS{alertstate="firing"}') == []

"""``slotwise status`` and ``slotwise top`` before a small server that answers as slotwise does."""

from __future__ import annotations

import argparse
import copy
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from slotwise.launcher.cli import status
from slotwise.launcher.cli.status import ago, percent, span, view
from tests.launcher.test_explain import Server, serving

HOSTILE = "[bold]x[/]\x1b[2J"
SLOT: dict[str, Any] = {
    **{"id_slot": 0, "state": "running", "text": "reading 9,000 of 12,000", "since_s": 3.0},
    **{"window": 32768, "resident": 9000, "prompt": 12000, "cached": 8000, "computed": 1000},
    **{"answer": 0, "session": "3a76833a", "kind": "agent", "key": "ann", "request": "req-1"},
}
WAITER: dict[str, Any] = {
    **{"id": "req-2", "session": "77ab12cd", "kind": HOSTILE, "key": HOSTILE, "ahead": 0},
    **{"prompt_tokens": 22104, "reason": "home_busy", "why": "", "waited_s": 4.0},
    **{"text": "home slot busy; may go elsewhere in 2 s"},
}
HOUR: dict[str, Any] = {
    **{"requests": 2, "prompt_tokens": 20000, "reported_tokens": 20000, "cached_tokens": 15000},
    **{"bound_tokens": 16000, "avoided_s": 700.0, "lost_s": 1.5},
    "causes": [
        {"cause": "cached", "text": "from the cache", "tokens": 15000},
        {"cause": "new", "text": "new, never seen before", "tokens": 5000},
    ],
}
ENDED: dict[str, Any] = {
    **{"id": "req-0", "time": 1.0, "profile": "p", "session": "3a76833a", "kind": "agent"},
    **{"slot": "p/0", "rule": "home", "prompt_tokens": 100, "cached_tokens": 75, "out_tokens": 2},
    **{"wait_s": 0.0, "ttft_s": 1.25, "failure": None, "text": "75 of 100 tokens came"},
}
GIB = 2**30
STATUS: dict[str, Any] = {
    "version": "1",
    "time": 1.0,
    "profiles": {
        "p": {
            "running": 1,
            "max_running": 2,
            "engines": {"p": {"pins": True, "pool": None, "slots": [SLOT]}},
            "waiting": [WAITER],
            "last_hour": HOUR,
        }
    },
    "engines": {"p": {"profile": "p", "state": "up", "text": "", "pins": True, "build": "b1"}},
    "requests": [ENDED],
    "memory": {
        **{"enabled": True, "available_bytes": 29 * GIB, "total_bytes": 120 * GIB},
        **{"floor_bytes": 15 * GIB, "hard_floor_bytes": 8 * GIB, "reserved_bytes": GIB},
        **{"parts": {"p": 80 * GIB, "other": 11 * GIB}, "problem": None},
    },
}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        server.body = json.dumps(STATUS).encode()
        yield server


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slotwise")
    status.add_parsers(parser.add_subparsers(dest="command"))
    return parser.parse_args(arguments)


def shown(found: dict[str, Any], width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(view(found, width))
    return out.getvalue()


def test_the_status_is_shown_with_reasons_in_words(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.run_status(parsed("status", "--url", server.url + "/", "--key", "k")) == 0
    assert server.asked == [("/slotwise/status", "Bearer k")]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    text = "\n".join(lines)
    assert "running 1 of 2 waiting 1 reuse, last hour 75.0% of 80.0%" in text
    assert "0 agent 3a76833a ██████▓░░" in text
    assert "27.5% 8,000 1,000 - reading 9,000 of 12,000, 3 s" in text
    assert "22,104 4 s home slot busy; may go elsewhere in 2 s" in text
    assert "75.0% 15,000 from the cache" in text
    assert "80.0 GiB p" in text
    assert "floor 15.0 GiB, hard floor 8.0 GiB, reserved 1.0 GiB" in text
    assert "home 100 75.0% 1.25 s 75 of 100 tokens came" in text


def test_what_comes_from_clients_moves_no_cursor(server: Server) -> None:
    out = shown(STATUS)
    assert "\x1b" not in out
    assert "[bold]x[/]?[2J" in out


def test_eighty_columns_still_say_what_a_slot_does_and_why_who_waits() -> None:
    lines = " ".join(shown(STATUS, 80).split())
    assert "reading" in lines
    assert "home slot busy" in lines
    assert "…" not in lines.split("last requests")[0]


def test_long_words_of_an_ended_request_leave_its_figures_alone() -> None:
    found = copy.deepcopy(STATUS)
    found["requests"] = [{**ENDED, "text": "19 of 7,606 tokens were computed again " * 9}]
    line = next(line for line in shown(found, 110).splitlines() if "1.25 s" in line)
    assert " ".join(line.split()).startswith("00:00:01 agent 3a76833a 0 home 100 75.0% 1.25 s 19")
    assert line.rstrip().endswith("…")


def test_json_is_the_answer_as_it_came(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.run_status(parsed("status", "--url", server.url, "--json")) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_a_dead_engine_and_unknown_memory_are_said() -> None:
    found = copy.deepcopy(STATUS)
    found["engines"]["p"] |= {"state": "down", "text": "status 137"}
    found["profiles"]["p"]["engines"] = {}
    found["memory"] |= {"available_bytes": None, "problem": "/proc/meminfo is not there"}
    out = shown(found)
    assert "engine p is down: status 137" in out
    assert "/proc/meminfo is not there" in out


def test_a_long_line_of_waiters_is_counted() -> None:
    found = copy.deepcopy(STATUS)
    found["profiles"]["p"]["waiting"] = [{**WAITER, "ahead": n} for n in range(200)]
    assert "and 185 more" in shown(found)
    assert len(shown(found).splitlines()) < 60


@pytest.mark.parametrize("absent", ["memory", None])
def test_what_an_older_slotwise_does_not_tell_is_left_out(absent: str | None) -> None:
    found = {name: value for name, value in STATUS.items() if name != absent}
    assert ("hard floor" in shown(found)) is (absent is None)


@pytest.mark.parametrize(
    ("code", "body", "told"),
    [
        (401, b'{"error": {"message": "a valid key is needed"}}', "answers 401: a valid key"),
        (200, b"{}", "answers, but not as slotwise does"),
        (200, b'{"profiles": {"p": {}}, "engines": {}, "time": 1}', "not as slotwise does"),
        (200, b"[]", "answers, but not as slotwise does"),
        (200, b"\xff\xfe", "and not with JSON"),
    ],
)
@pytest.mark.parametrize("command", ["status", "top"])
def test_what_goes_wrong_is_one_line(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    command: str,
    code: int,
    body: bytes,
    told: str,
) -> None:
    server.status, server.body = code, body
    args = parsed(command, "--url", server.url)
    if command == "status":
        assert status.run_status(args) == status.EXIT_FAULT
    else:
        console = Console(file=io.StringIO(), force_terminal=True)
        assert status.run_top(args, console) == status.EXIT_FAULT
    error = capsys.readouterr().err
    assert error.startswith("slotwise: ")
    assert error.count("\n") == 1
    assert told in error


def test_nobody_at_the_address_is_one_line(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.run_status(parsed("status", "--url", nobody)) == 1
    assert f"{nobody}/slotwise/status cannot be asked" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Presses Ctrl-C once it was shown so many times what it waits for."""

    def __init__(self, awaited: str, times: int) -> None:
        super().__init__()
        self.awaited, self.times = awaited, times

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count(self.awaited) >= self.times:
            self.times = 10**9
            raise KeyboardInterrupt
        return written


def test_top_goes_on_until_ctrl_c_and_leaves_the_screen_as_it_was(server: Server) -> None:
    terminal = Terminal("reading 9,000", 3)
    console = Console(file=terminal, force_terminal=True, width=140, height=60)
    assert status.run_top(parsed("top", "--url", server.url, "--interval", "0.2"), console) == 0
    assert len(server.asked) >= 2
    # the cursor is back, and what was on the screen before
    assert terminal.getvalue().endswith("\x1b[?25h\x1b[?1049l")


def test_top_waits_for_an_answer_that_fails_to_come(server: Server) -> None:
    terminal = Terminal("trying again", 1)
    console = Console(file=terminal, force_terminal=True, width=140, height=60)
    server.after = lambda: setattr(server, "status", 503)
    assert status.run_top(parsed("top", "--url", server.url, "--interval", "0.2"), console) == 0
    assert "no answer, trying again" in terminal.getvalue()


def test_top_needs_a_terminal(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert status.run_top(parsed("top", "--url", server.url)) == status.EXIT_FAULT
    assert "top needs a terminal; `slotwise status`" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["0", "0.1", "61", "x", "nan"])
def test_an_interval_out_of_bounds_is_refused(
    interval: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed("top", "--interval", interval)
    assert "expected 0.2 to 60 s" in capsys.readouterr().err


def test_figures_are_as_coarse_as_they_are_large() -> None:
    assert [ago(s) for s in (0.9, 119, 120, 7199, 7200, 200_000)] == [
        *("0 s", "119 s", "2 min", "119 min", "2 h", "2 d"),
    ]
    assert [span(s) for s in (1.5, 700, 8000)] == ["1.5 s", "11.7 min", "2.2 h"]
    assert [percent(r) for r in (None, 0.5)] == ["-", "50.0%"]

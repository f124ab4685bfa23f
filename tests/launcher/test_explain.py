"""``slotwise explain`` before a small server that answers as slotwise does."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slotwise.launcher.cli import client, explain

REQUEST: dict[str, Any] = {
    "id": "req-1",
    "lines": ["9 of 10 tokens were computed again because [bold]x[/]\x1b[2J", "slot e/0"],
    "prompt_tokens": 1210,
    "tokens": {"cached": 10, "changed": 1200},
    "sections": [
        {
            "section": "system",
            "tokens": 1210,
            "cached": 10,
            "computed": {"changed": 1200},
            "lost_s": 2.5,
        }
    ],
    "lost_s": 2.5,
}


class Server(ThreadingHTTPServer):
    """Answers everything with ``body``; remembers paths and keys."""

    daemon_threads = True
    status = 200
    body: bytes = json.dumps(REQUEST).encode()

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []
        self.after: Callable[[], None] = lambda: None  # called after each answer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)
        self.server.after()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    """The server, at work in a thread."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slotwise")
    explain.add_parser(parser.add_subparsers(dest="command"))
    return parser.parse_args(["explain", *arguments])


def test_a_request_is_shown_with_the_culprit_first(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.run(parsed("req-1", "--url", server.url + "/", "--key", "k")) == 0
    assert server.asked == [("/slotwise/requests/req-1", "Bearer k")]
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "9 of 10 tokens were computed again because [bold]x[/]?[2J"
    assert out[1] == "slot e/0"
    table = [line.split() for line in out[2:] if line.strip(" ─")]
    assert table == [
        ["section", "tokens", "cached", "changed", "lost", "s"],
        ["system", "1,210", "10", "1,200", "2.50"],
        ["total", "1,210", "10", "1,200", "2.50"],
    ]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (("--session", "a b&c"), "/slotwise/requests?session=a%20b%26c"),
        (("--last", "3"), "/slotwise/requests?last=3"),
    ],
)
def test_a_session_or_the_last_ones_are_listed(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    path: str,
) -> None:
    server.body = json.dumps({"requests": [REQUEST, REQUEST]}).encode()
    assert explain.run(parsed(*arguments, "--url", server.url)) == 0
    assert server.asked[0][0].replace("+", "%20") == path
    assert capsys.readouterr().out.count("9 of 10 tokens") == 2


def test_an_id_cannot_leave_its_path(server: Server) -> None:
    explain.run(parsed("../status", "--url", server.url))
    assert server.asked[0][0] == "/slotwise/requests/..%2Fstatus"


def test_the_key_may_come_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(client.KEY_VARIABLE, "secret")
    explain.run(parsed("req-1", "--url", server.url))
    assert server.asked[0][1] == "Bearer secret"


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (404, b'{"error": {"message": "no request req-1"}}', "answers 404: no request req-1"),
        (502, b"<html>", "answers 502, and not with JSON"),
        (200, b"[]", "answers, but not as slotwise does"),
        (200, b'{"object": "list"}', "answers, but not as slotwise does"),
    ],
)
def test_what_goes_wrong_is_one_line(
    server: Server,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: bytes,
    told: str,
) -> None:
    server.status, server.body = status, body
    assert explain.run(parsed("req-1", "--url", server.url)) == explain.EXIT_FAULT
    error = capsys.readouterr().err
    assert error.startswith("slotwise: ")
    assert error.count("\n") == 1
    assert told in error


def test_a_session_without_requests_is_said(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = b'{"requests": []}'
    assert explain.run(parsed("--session", "s", "--url", server.url)) == explain.EXIT_FAULT
    assert "no request of that session ended" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["nobody", "ftp://x", "nonsense", "http://[", ""])
def test_an_address_where_nobody_answers_is_one_line(
    url: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = nobody if url == "nobody" else url
    assert explain.run(parsed("--last", "1", "--url", asked)) == explain.EXIT_FAULT
    error = capsys.readouterr().err
    assert error.startswith("slotwise: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("a", "--last", "1"), ("--last", "0"), ("--last", "x")])
def test_exactly_one_question_is_asked(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err

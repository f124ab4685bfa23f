"""The command as its user sees it: one clear line per fault, the right status, a clean end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from slotwise.launcher.cli import command
from slotwise.launcher.model import tiny_model
from tests.engine import engines
from tests.launcher import children

READY = "slotwise ready on "
STUB = """
name: stub
server: {attach: "http://127.0.0.1:9", parallel: 1, kv_unified: false, cache_ram_mib: 0}
"""


def _slotwise(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that is expected to end by itself."""
    line = [sys.executable, "-m", "slotwise.launcher.cli.command", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A profile of the tiny model with two small slots."""
    model = tiny_model.build(tmp_path / "model")
    server = {"model": str(model), "parallel": 2, "ctx_size": 4096, "threads": 1}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny", "server": server}))
    return path


@dataclass
class Serving:
    process: subprocess.Popen[str]
    output: Path
    errors: Path

    def url(self) -> str:
        """Where it serves, once it is ready."""
        children.until(lambda: READY in self.output.read_text() or self.process.poll() is not None)
        assert READY in self.output.read_text(), self.errors.read_text()
        return self.output.read_text().strip().removeprefix(READY)


@contextlib.contextmanager
def _serving(directory: Path, *arguments: str) -> Iterator[Serving]:
    output, errors = directory / "stdout", directory / "stderr"
    line = [sys.executable, "-m", "slotwise.launcher.cli.command", "serve", "--port", "0"]
    line += ["--state-dir", str(directory / "state"), *arguments]
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(line, stdout=out, stderr=err, text=True)
    try:
        yield Serving(process, output, errors)
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait(10)


def engines_of(serving: Serving) -> list[psutil.Process]:
    """The engines among its children; the tokenizer has a process of its own."""
    parent = psutil.Process(serving.process.pid)
    return [child for child in parent.children() if _is_engine(child, parent)]


def _is_engine(child: psutil.Process, parent: psutil.Process) -> bool:
    """Not the tokenizer, nor what has just ended, nor what is not yet what it was forked to be."""
    try:
        line = child.cmdline()
        return "slotwise.proxy.tokens.encoder_process" not in line and line != parent.cmdline()
    except psutil.Error:
        return False


def engine_of(serving: Serving) -> psutil.Process:
    (engine,) = engines_of(serving)
    return engine


@pytest.mark.slow
def test_check_prints_the_launch_line_and_the_windows(tiny: Path) -> None:
    done = _slotwise("check", str(tiny))
    assert (done.returncode, done.stderr) == (0, "")
    assert "-np 2 -c 4096 --no-kv-unified --no-cache-idle-slots" in done.stdout
    assert "windows: 2 slots x 2048 tokens" in done.stdout


def test_check_tells_the_faults_of_all_profiles_and_ends_with_status_2(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("name: one\nserver: {model: gone.gguf, parallel: 0, ctx_size: 4096}\n")
    two.write_text(STUB + "policy: {nope: 1}\nextra: 1\n")
    done = _slotwise("check", str(one), str(two), "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    told = [line.split(": ")[2] for line in done.stderr.splitlines()]
    assert told == [
        "server.parallel",
        "server.model",
        "extra",
        "policy.nope",
        "no such profile",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0: expected a loopback address"),
        (["--host", "::"], "--host ::: expected a loopback address"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid port 8000"),
        (["--port", "0", "--journal", "/nowhere/j"], "--journal /nowhere/j: No such file"),
        (["--port", "0", "--state-dir", "/proc/none"], "--state-dir /proc/none: "),
        (["--cors-origin", "localhost:3000"], "--cors-origin: expected an origin like http://"),
        (["--cors-origin", "*"], "--cors-origin *: expected an api_keys_file in the profile"),
    ],
)
def test_a_start_that_cannot_be_is_one_line_and_status_2(
    tiny: Path, arguments: list[str], told: str
) -> None:
    done = _slotwise("serve", str(tiny), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"slotwise: {told}")


@pytest.mark.slow
def test_a_taken_port_is_one_line_and_status_2(tmp_path: Path, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = _slotwise("serve", str(tiny), "--port", port, "--state-dir", str(tmp_path / "s"))
    assert done.returncode == 2
    told = f"slotwise: cannot listen on 127.0.0.1 port {port}: {os.strerror(errno.EADDRINUSE)}\n"
    assert done.stderr == told


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["serve"], ["serve", "x", "--port", "70000"], ["no"]])
def test_a_wrong_argument_is_status_2_and_no_traceback(arguments: list[str]) -> None:
    done = _slotwise(*arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("binary", engines.commands())
def test_it_serves_the_model_and_ends_cleanly_on_a_signal(
    tmp_path: Path, tiny: Path, binary: str
) -> None:
    tiny.write_text(tiny.read_text().replace("server:\n", f"server:\n  binary: {binary}\n"))
    with _serving(tmp_path, str(tiny)) as serving:
        url = serving.url()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
        engine = engine_of(serving)
        serving.process.terminate()
        assert serving.process.wait(20) == 0
        assert not psutil.pid_exists(engine.pid)
    assert serving.output.read_text() == f"{READY}{url}\n"
    assert "Traceback" not in serving.errors.read_text()


@pytest.mark.slow
def test_health_answers_before_any_engine_is_ready(tmp_path: Path) -> None:
    stub = tmp_path / "stub.yaml"
    stub.write_text(STUB)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with _serving(tmp_path, str(stub), "--port", str(port)) as serving:

        def status(path: str) -> int | None:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).status_code
            return None

        children.until(lambda: status("/health") == 200)
        assert status("/health/ready") == 503
        assert status("/v1/models") == 200
        assert serving.output.read_text() == ""
        serving.process.send_signal(signal.SIGINT)
        assert serving.process.wait(20) == 0


@pytest.mark.slow
def test_a_killed_slotwise_takes_its_engine_along(tmp_path: Path, tiny: Path) -> None:
    with _serving(tmp_path, str(tiny)) as serving:
        serving.url()
        started = psutil.Process(serving.process.pid).children()
        assert engine_of(serving) in started
        serving.process.kill()
        serving.process.wait(10)
        children.until(lambda: not any(children.runs(child.pid) for child in started), limit_s=2)


@pytest.mark.slow
def test_a_killed_engine_comes_back_and_is_served_again(tmp_path: Path, tiny: Path) -> None:
    with _serving(tmp_path, str(tiny)) as serving:
        url = serving.url()
        engine = engine_of(serving)
        engine.kill()
        body = {"prompt": "hello", "max_tokens": 2}

        def served() -> bool:
            now = engines_of(serving)
            if not now or now[0].pid == engine.pid:
                return False
            return httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200

        children.until(served)
        metrics = httpx.get(f"{url}/metrics", timeout=10).text
        assert 'slotwise_engine_restarts_total{engine="tiny",reason="exited"} 1.0' in metrics


@pytest.mark.slow
def test_keys_open_it_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("alice: alice-key-1\n")
    stub = tmp_path / "stub.yaml"
    stub.write_text(STUB + "api_keys_file: keys.yaml\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with _serving(tmp_path, str(stub), "--port", str(port)):

        def status(key: str) -> int | None:
            with contextlib.suppress(httpx.TransportError):
                headers = {"authorization": f"Bearer {key}"}
                return httpx.get(f"{url}/v1/models", headers=headers, timeout=10).status_code
            return None

        children.until(lambda: status("alice-key-1") == 200)
        assert status("wrong") == 401


@pytest.mark.slow
def test_two_do_not_share_a_state_directory(tmp_path: Path, tiny: Path) -> None:
    with _serving(tmp_path, str(tiny)) as serving:
        serving.url()
        done = _slotwise("serve", str(tiny), "--port", "0", "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 2
    assert f"slotwise: another slotwise (pid {serving.process.pid}) runs tiny" in done.stderr


def test_accepted_connections_send_small_writes_at_once() -> None:
    """Else the first token waits for the client's delayed acknowledgement of the head: 40 ms."""
    with (
        command._listen("127.0.0.1", 0, has_keys=False) as listening,
        socket.create_connection(listening.getsockname(), timeout=5),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

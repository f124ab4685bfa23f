"""What stands between client and engine in the overhead benchmark, each a process of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from slotwise.bench import engines, scratch
from slotwise.bench.engines import Model, ServerError

RUNNING = 16
SLOTS = RUNNING + 2  # so that all streams find the slot they had
WINDOW = 131_072
FAKE = "slotwise.bench.fake_engine"
SLOTWISE = f"slotwise serve PROFILE, parallel: {SLOTS}, max_running: {RUNNING}, binary: the fake"
NGINX = """\
daemon off;
master_process off;
{user}
pid {folder}/nginx.pid;
error_log stderr error;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 1000000;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engine {{ server 127.0.0.1:{to}; keepalive 32; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Arm:
    """Something to send requests to."""

    name: str
    url: str
    processes: tuple[psutil.Process, ...] = ()  # whose time is the arm's
    line: str = ""  # how it was started

    def cpu_s(self) -> float:
        """Processor seconds so far, of all its processes."""
        times = [process.cpu_times() for process in self.processes]
        return sum(one.user + one.system for one in times)


@contextmanager
def fake_engine(engine_url: str) -> Iterator[Arm]:
    """The upstream of all arms but slotwise's, which start one like it; named ``direct``."""
    port = engines.free_port()
    command = [sys.executable, "-m", FAKE, "--engine", engine_url, "--port", str(port)]
    command += ["-np", str(SLOTS), "-c", str(SLOTS * WINDOW)]
    with engines.running(command) as server:
        yield Arm("direct", server.url, line=f"python -m {FAKE} -np {SLOTS} -c {SLOTS * WINDOW}")


def has_nginx() -> bool:
    return shutil.which("nginx") is not None


@contextmanager
def nginx(to: str) -> Iterator[Arm]:
    """nginx as a plain pass-through to this URL; raises :class:`ServerError`."""
    port = engines.free_port()
    with scratch.folder() as folder:
        config = folder / "nginx.conf"
        user = "user root;" if os.getuid() == 0 else ""
        text = NGINX.format(folder=folder, port=port, to=to.rsplit(":", 1)[1], user=user)
        config.write_text(text)
        command = [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(config)]
        with engines.running(command, port) as server:
            how = "nginx, one worker, proxy_buffering off, keepalive both ways"
            yield Arm("nginx", server.url, _tree(server.pid), how)


@contextmanager
def slotwise(name: str, model: Model, engine_url: str, checkout: Path | None) -> Iterator[Arm]:
    """``slotwise serve`` of this or another version of the code, with the fake as its engine.

    The profile is as it comes, but for more slots and requests at once.
    """
    with scratch.folder() as folder:
        program = folder / "llama-server"
        fake = shlex.join([sys.executable, "-P", "-m", FAKE, "--engine", engine_url])
        # The fake is always this version's: only the proxy is exchanged.
        program.write_text(f'#!/bin/sh\nexec {fake} "$@"\n')
        program.chmod(0o755)
        started = engines.slotwise(
            model,
            SLOTS,
            SLOTS * WINDOW,
            binary=str(program),
            policy={"max_running": RUNNING},
            checkout=checkout,
        )
        with started as server:
            _wait_until_proven(server.url)
            yield Arm(name, server.url, _tree(server.pid), SLOTWISE)


def _wait_until_proven(url: str) -> None:
    """Prompts are encoded and rendered by slotwise itself; raises :class:`ServerError`."""
    until = time.monotonic() + engines.START_S
    while time.monotonic() < until:
        parts = engines.tokens_by(url)
        if set(parts) == {"local"}:
            return
        if "engine" in parts:
            raise ServerError(f"slotwise does not encode and render itself: {parts}")
        time.sleep(0.1)
    raise ServerError(f"slotwise did not prove its tokens within {engines.START_S:g} s")


def _tree(pid: int) -> tuple[psutil.Process, ...]:
    """A process and those it started, the fake engine left out."""
    root = psutil.Process(pid)
    every = (root, *root.children(recursive=True))
    return tuple(one for one in every if FAKE not in one.cmdline())

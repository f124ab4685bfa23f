"""Child programs for tests, as scripts, and a bounded wait for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

# Says a lot, then answers: proof that its output never blocked it.
TALKER = """
import sys, pathlib
for i in range(100_000):
    print("x" * 100)
print("y" * 5_000_000)
sys.stdout.flush()
pathlib.Path(sys.argv[1]).write_text("still alive")
import time
time.sleep(60)
"""

# Ignores SIGTERM.
STUBBORN = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
pathlib.Path(sys.argv[1]).write_text("ready")
while True:
    time.sleep(60)
"""

# A parent that starts a child by slotwise.launcher.process.process, tells its pid, and waits.
PARENT = """
import asyncio, pathlib, sys
from slotwise.launcher.process import process
async def main():
    directory = pathlib.Path(sys.argv[1])
    log = process.RotatingLog(directory / "log")
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = process.spawn(argv, {}, directory, log, directory / "pid")
    aside = directory / "told.new"
    aside.write_text(str(child.pid))
    aside.rename(directory / "told")
    await asyncio.sleep(60)
asyncio.run(main())
"""

# A server that fails in the way its plan says; argv: PLAN_DIR PORT [KEY from LLAMA_API_KEY].
# The directory holds one file "starts" that counts starts; "plan" has one word for each start:
# exit | sick (503 for ever) | slow (503 for a while) | well
SERVER = """
import http.server, json, os, pathlib, sys
plan_dir, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
count = plan_dir / "starts"
starts = int(count.read_text()) if count.exists() else 0
count.write_text(str(starts + 1))
plan = (plan_dir / "plan").read_text().split()
mode = plan[min(starts, len(plan) - 1)]
print("this start is:", mode, flush=True)
if (plan_dir / "say").exists():
    print((plan_dir / "say").read_text(), flush=True)
if mode == "exit":
    print("error: no luck today", flush=True)
    sys.exit(1)
asked = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        status, body = 200, []
        if mode == "sick" or (mode == "slow" and asked < 4):
            status, body = 503, {"error": {"message": "Loading model"}}
        elif self.path == "/slots":
            key = self.headers.get("authorization")
            status = 200 if key == "Bearer " + os.environ["LLAMA_API_KEY"] else 401
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Returns once the condition holds; fails after the limit."""
    bound = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < bound, "the condition did not come true in time"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process is at work. One that has ended and that nobody has asked for is not: who
    inherits the children of a killed parent may take seconds to."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def script(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path

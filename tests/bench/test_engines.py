"""What a benchmark starts ends with it, whatever ends it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from slotwise.bench.run import engines
from tests.support import Process, wait_until

# a benchmark in the midst of its work; argv: the server's script, its port, a temporary folder
BENCHMARK = """
import sys, tempfile, time
from slotwise.bench.run import engines
tempfile.tempdir = sys.argv.pop()
with engines.running([sys.executable, *sys.argv[1:]], int(sys.argv[2])) as server:
    print("measures", server.pid, flush=True)
    time.sleep(60)
"""
SERVER = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


def test_a_server_ends_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    command = [sys.executable, "-c", BENCHMARK, str(script), str(engines.free_port())]
    with Process([*command, str(tmp_path)]) as benchmark:
        server = psutil.Process(int(benchmark.wait_for_line("measures ")))
        assert server.is_running()
        benchmark.popen.kill()
        benchmark.popen.wait(10)
        wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 5)

"""The embedded engine is llama-server: same flags, same endpoints, same signals and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from slotwise.launcher.profile import engine_flags
from slotwise.launcher.profile.profile import load_all
from slotwise.launcher.profile.settings import LaunchedServer
from tests.engine import engines
from tests.engine.conftest import StartEngine
from tests.support import wait_until

SEPARATE = ("-np", "4", "-c", "65536", "--no-kv-unified", "--cache-ram", "0", "-sps", "0")


def _run(command: tuple[str, ...], *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs an engine that is expected to refuse."""
    return subprocess.run([*command, *flags], capture_output=True, text=True, timeout=30)


def test_plain_defaults_are_four_slots_over_one_shared_buffer(start_engine: StartEngine) -> None:
    engine = start_engine("-c", "8192")
    props = engine.get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert engine.get("/metrics").status_code == 501


def test_a_pinned_prompt_stays_on_its_slot_and_is_reused_there(start_engine: StartEngine) -> None:
    engine = start_engine(*SEPARATE)
    prompt = "alpha beta gamma " * 100
    reports = []
    for pinned in (2, 1, 2):
        text = prompt if pinned == 2 else "a title please"
        body = {"prompt": text, "n_predict": 1, "id_slot": pinned}
        reports.append(engine.post("/completion", body).json())
    assert [report["id_slot"] for report in reports] == [2, 1, 2]
    assert reports[0]["timings"]["cache_n"] == 0
    assert reports[2]["timings"]["prompt_n"] == 1  # all but the one that is always evaluated


def test_flags_reach_the_engine(start_engine: StartEngine, tmp_path: Path) -> None:
    engine = start_engine(
        *SEPARATE,
        *("--metrics", "--slots", "--api-key", "one,two", "--alias", "named"),
        *("-b", "512", "-ub", "256", "--ctx-checkpoints", "4", "--cache-reuse", "0"),
        *("--fit", "off", "--no-cache-idle-slots", "--cont-batching", "--cache-prompt"),
        *("--slot-save-path", f"{tmp_path}/", "--swa-full", "-fa", "on", "-ctk", "q8_0"),
    )
    key = {"authorization": "Bearer two"}
    assert engine.get("/slots").status_code == 401
    assert [slot["n_ctx"] for slot in engine.get("/slots", headers=key).json()] == [16384] * 4
    assert engine.get("/metrics", headers=key).status_code == 200
    assert engine.get("/v1/models", headers=key).json()["data"][0]["id"] == "named"
    saved = engine.post("/slots/0?action=save", {"filename": "zero"}, headers=key)
    assert saved.status_code == 200
    assert (tmp_path / "zero").exists()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_0_once_nobody_is_connected(
    start_engine: StartEngine, ending: signal.Signals
) -> None:
    engine = start_engine("-np", "1", "-c", "1024")
    # The engine answers before this process waits for signals.
    wait_until(lambda: _catches(engine.process.pid, ending))
    os.kill(engine.process.pid, ending)
    assert engine.process.wait(60) == 0


def _catches(pid: int, ending: signal.Signals) -> bool:
    """Whether the process has a handler for it."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (ending - 1) & 1)


def test_the_embedded_engine_ends_at_once_beside_an_open_stream(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    engine = engines.start(
        engines.EMBEDDED, tiny_gguf, tmp_path / "log", "-t", "1", "-np", "1", "-c", "65536"
    )
    streaming, broken = threading.Event(), threading.Event()

    def read() -> None:
        body = {"prompt": "alpha", "n_predict": 60000, "stream": True}
        with httpx.stream("POST", engine.url + "/completion", json=body, timeout=30) as response:
            try:
                for _ in response.iter_bytes():
                    streaming.set()
            except httpx.TransportError:
                broken.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert streaming.wait(30)
        engine.process.terminate()
        assert engine.process.wait(5) == 0
    finally:
        engine.stop()
        reader.join(30)
    assert broken.is_set()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("-m", "{model}", "--no-such-flag"), "invalid argument: --no-such-flag"),
        (("-m", "/nowhere/m.gguf"), "cannot read the model /nowhere/m.gguf"),
        (("-m", "{junk}"), "is not a GGUF file"),
        (("-m", "{cut}", "--port", "0"), "the engine did not start with"),
        (("-m", "{model}", "--port", "70000"), "--port: expected 0 to 65535, got 70000"),
    ],
)
def test_a_bad_start_is_one_line_and_exit_code_1(
    tiny_gguf: Path, tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    junk, cut = tmp_path / "junk.gguf", tmp_path / "cut.gguf"
    junk.write_bytes(b"not a model at all")
    cut.write_bytes(tiny_gguf.read_bytes()[:300_000])
    names = {"model": tiny_gguf, "junk": junk, "cut": cut}
    ended = _run(engines.EMBEDDED, *(flag.format(**names) for flag in flags))
    assert ended.returncode == 1
    assert told in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_one_line_and_exit_code_1(
    tiny_gguf: Path, start_engine: StartEngine
) -> None:
    port = start_engine("-np", "1", "-c", "1024").url.rsplit(":", 1)[1]
    ended = _run(engines.EMBEDDED, "-m", str(tiny_gguf), "--port", port)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr.splitlines()[-1]


def test_the_key_may_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# mine\nfrom-file\n")
    line = ["-m", "x.gguf", "--api-key-file", str(keys)]
    settings = engine_flags.parse(line, {"LLAMA_API_KEY": "from-environment"})
    assert settings["api_keys"] == ["from-environment", "from-file"]


def test_an_explicit_number_of_slots_leaves_the_buffers_separate() -> None:
    assert "kv_unified" not in engine_flags.parse(["-m", "x.gguf", "-np", "4"], {})
    assert engine_flags.parse(["-m", "x.gguf"], {})["kv_unified"] is True


def test_an_answer_without_a_limit_of_its_own_gets_the_servers(start_engine: StartEngine) -> None:
    engine = start_engine(*SEPARATE, "-n", "5")
    for asked, written in (({}, 5), ({"n_predict": 9}, 9)):
        body = {"prompt": "alpha beta", "ignore_eos": True, **asked}
        assert engine.post("/completion", body).json()["tokens_predicted"] == written


def test_an_answer_is_sampled_as_the_launch_line_says(start_engine: StartEngine) -> None:
    engine = start_engine(*SEPARATE, "--temp", "0.25", "--top-p", "0.5")
    told = httpx.get(f"{engine.url}/props", timeout=30).json()["default_generation_settings"]
    assert told["params"]["temperature"] == 0.25
    assert told["params"]["top_p"] == 0.5


def test_the_demo_ends_an_answer_though_its_model_may_repeat_itself() -> None:
    demo = load_all(["demo"], {})[0].server
    assert isinstance(demo, LaunchedServer)
    assert engine_flags.parse(["-m", "x.gguf", *demo.extra_args], {})["n_predict"] == 512


def test_prompts_are_read_by_as_many_threads_as_texts_are_written() -> None:
    settings = engine_flags.parse(["-m", "x.gguf", "-t", "1"], {})
    assert settings["cpuparams_batch.n_threads"] == 1

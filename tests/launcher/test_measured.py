"""What an engine took at its last start is kept, per launch line, and found again."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from slotwise.launcher.plan import plan, starts
from slotwise.launcher.plan.plan import ContextSize, Loaded, MeasuredStart, PlannedEngine
from slotwise.launcher.plan.starts import Meter, logged_bytes
from slotwise.launcher.process import process

# As llama-server writes them with -lv 4, and older builds always.
LOG = """
0.00.019.025 I load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
0.00.019.762 I llama_context:        CPU  output buffer size =     4.00 MiB
0.00.023.743 I llama_kv_cache:        CPU KV buffer size =    96.00 MiB
0.00.023.743 I llama_memory_recurrent:      CUDA0 RS buffer size =    50.25 MiB
0.00.108.371 I sched_reserve:        CPU compute buffer size =    27.25 MiB
"""


def _start(line: str, size: int = 1) -> MeasuredStart:
    return MeasuredStart(size, "then", "how", line, 1)


def _meter(directory: Path, line: str, on_gpu: bool = False) -> Meter:
    """Of an engine whose plan says 60 GiB at load, and 7 MiB that it may still take."""
    model = Loaded(60 * plan.GIB)
    engine = PlannedEngine("m", model, ContextSize(4096, 1), cache_ram_mib=7, process_bytes=100)
    return Meter(directory, line, plan.make(engine), on_gpu)


def _runs(directory: Path) -> int:
    """This very process stands for the engine."""
    pid = os.getpid()
    process.write(directory / "engine.pid", pid, psutil.Process(pid).cmdline())
    return pid


def test_the_last_start_of_each_line_is_kept(tmp_path: Path) -> None:
    for number in range(20):
        starts.keep(tmp_path, _start(f"line {number % 10}", number))
    kept = starts.starts(tmp_path)
    assert [start.at_load_bytes for start in kept] == list(range(12, 20))
    assert starts.last(tmp_path, "line 5") == _start("line 5", 15)
    assert starts.last(tmp_path, "line 1") is None


def test_a_broken_file_is_no_file(tmp_path: Path) -> None:
    for text in ("", "{", '{"starts": [{"line": 1}]}', '{"starts": 3}', "[]"):
        (tmp_path / starts.FILE_NAME).write_text(text)
        assert starts.starts(tmp_path) == []
    starts.keep(tmp_path, _start("a"))
    assert starts.starts(tmp_path) == [_start("a")]


def test_another_file_under_the_same_name_is_another_line(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"a")
    first = starts.line_key(["llama-server", "-m", str(model)], [model])
    assert first == starts.line_key(["llama-server", "-m", str(model)], [model])
    model.write_bytes(b"ab")
    assert first != starts.line_key(["llama-server", "-m", str(model)], [model])
    assert first != starts.line_key(["llama-server", "-c", "1"], [model])


def test_the_engines_own_log_is_the_best_source(tmp_path: Path) -> None:
    _runs(tmp_path)
    log = tmp_path / "engine.log"
    log.write_text(LOG.replace("235.16", "999.00"))  # of an earlier start
    meter = _meter(tmp_path, "line", on_gpu=True)
    meter.begin(None)
    with log.open("a") as file:
        file.write(LOG)
    start = meter.ended(None)
    assert start is not None
    assert start.at_load_bytes == 100 + round(412.66 * 2**20)
    assert (start.how, start.growth_bytes) == ("the engine's log", 7 * plan.MIB)
    assert starts.last(tmp_path, "line") == start
    assert start.is_whole


def test_a_log_that_shows_no_sizes_is_no_source() -> None:
    assert logged_bytes("srv load_model: initializing") == 0
    assert logged_bytes(LOG.replace("compute buffer", "other buffer")) == 0


def test_without_a_gpu_the_process_tells(tmp_path: Path) -> None:
    pid = _runs(tmp_path)
    meter = _meter(tmp_path, "line")
    meter.begin(None)
    start = meter.ended(None)
    assert start is not None
    assert start.how == "size of the process"
    assert abs(start.at_load_bytes - psutil.Process(pid).memory_info().rss) < 2**26


def test_with_one_it_is_what_became_unavailable_while_it_alone_started(tmp_path: Path) -> None:
    _runs(tmp_path)
    alone = _meter(tmp_path, "line", on_gpu=True)
    alone.begin(100 * 2**30)
    start = alone.ended(30 * 2**30)
    assert start is not None
    assert (start.at_load_bytes, start.how) == (70 * 2**30, "fall of MemAvailable")
    disturbed = _meter(tmp_path, "other", on_gpu=True)
    disturbed.begin(100 * 2**30)
    disturbed.disturbed()
    assert disturbed.ended(30 * 2**30) is None
    mapped = _meter(tmp_path, "other", on_gpu=True)
    mapped.begin(100 * 2**30)
    assert mapped.ended(71 * 2**30) is None  # weights of 60 GiB are nowhere in it
    assert starts.last(tmp_path, "other") is None


def test_an_engine_that_runs_may_only_grow(tmp_path: Path) -> None:
    assert starts.growth_of_running(tmp_path, 100) is None
    pid = _runs(tmp_path)
    resident = psutil.Process(pid).memory_info().rss
    now = resident - psutil.Process(pid).memory_info().shared
    # It loads: of its peak, what it has not taken yet.
    told = starts.growth_of_running(tmp_path, resident + 2**30)
    assert told is not None
    assert abs(told - 2**30) < 2**26
    # It is ready: what it may still take, less what it has grown by.
    for at_ready, expected in ((now, 2**30), (now - 2**29, 2**29)):
        starts.keep(tmp_path, MeasuredStart(now, "then", "how", "line", pid, at_ready, 2**30))
        told = starts.growth_of_running(tmp_path, 5 * 2**30)
        assert told is not None
        assert abs(told - expected) < 2**26


def test_an_engine_that_is_gone_is_not_measured(tmp_path: Path) -> None:
    meter = _meter(tmp_path, "line")
    meter.begin(None)
    assert meter.ended(None) is None
    assert starts.starts(tmp_path) == []

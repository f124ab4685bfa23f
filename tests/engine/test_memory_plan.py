"""The memory plan against the real engine: its own figures at load, and what its process takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from slotwise.launcher.model import gguf_header, model_shape, models
from slotwise.launcher.plan import plan
from slotwise.launcher.plan.plan import ContextSize, Loaded, PlannedEngine
from tests.engine import engines, reshaped
from tests.engine.gemma import gemma
from tests.support import ROOT

WINDOW = 64
_LINE = re.compile(
    r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +\d+/(\d+) seqs\)"
)
# A process with the engine in it, but no model.
_WITHOUT_MODEL = (
    "import sys, slotwise.launcher.process.embedded, xllamacpp; xllamacpp.CommonParams(); "
    "print('ready', flush=True); sys.stdin.read()"
)

CASES = {
    "grouped, split": ("grouped", ContextSize(8192, 4)),
    "grouped, one pool, q8_0": (
        "grouped",
        ContextSize(8192, 4, unified=True, type_k="q8_0", type_v="q8_0"),
    ),
    "grouped, three slots, q8_0 and f16": ("grouped", ContextSize(4096, 3, type_k="q8_0")),
    "windows, split": ("windowed", ContextSize(8192, 4, ubatch=256)),
    "windows, one pool, q8_0": (
        "windowed",
        ContextSize(8192, 4, unified=True, type_k="q8_0", type_v="q8_0"),
    ),
    "windows kept whole": ("windowed", ContextSize(8192, 2, swa_full=True)),
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reshaped")
    return {"grouped": reshaped.grouped(folder), "windowed": reshaped.windowed(folder, WINDOW)}


def _flags(context: ContextSize) -> list[str]:
    flags = ["-np", str(context.slots), "-c", str(context.ctx_size), "-b", str(context.batch)]
    flags += ["-ub", str(context.ubatch), "-ctk", context.type_k, "-ctv", context.type_v]
    flags += ["--kv-unified" if context.unified else "--no-kv-unified", "-fa", "on"]
    flags += ["--swa-full"] if context.swa_full else []
    return [*flags, "--cache-ram", "0", "--fit", "off", "--no-warmup", "-lv", "4", "-t", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_planned_keys_and_values_are_what_the_engine_logs(
    engine_command: tuple[str, ...], built: dict[str, Path], tmp_path: Path, case: str
) -> None:
    """The log shows hundredths of a MiB. The smallest step of any size here, 256 cells of one
    layer in q8_0, is 17 KiB and more than that: equal figures are equal bytes."""
    name, context = CASES[case]
    model = built[name]
    shape = model_shape.from_header(gguf_header.read(model).values)
    planned = [
        (f"{one.size_bytes / 2**20:.2f}", one.cells, one.layers, one.streams)
        for one in plan.caches(shape, context)
    ]
    log = tmp_path / "engine.log"
    engines.start(engine_command, model, log, *_flags(context)).stop()
    logged = [
        (mib, int(cells), int(layers), int(streams))
        for mib, cells, layers, streams in _LINE.findall(log.read_text(errors="replace"))
    ]
    assert logged == planned


def _taken_bytes(pid: int, model: Path | None = None) -> int:
    """PSS; but the model's pages whole, though another engine may have the same file open."""
    maps = psutil.Process(pid).memory_maps()
    return sum(int(one.rss if one.path == str(model) else one.pss) for one in maps)


@pytest.fixture(scope="module")
def without_model_bytes() -> int:
    """What the process of the embedded engine takes without a model."""
    line = [sys.executable, "-c", _WITHOUT_MODEL]
    with subprocess.Popen(line, cwd=ROOT, stdin=-1, stdout=subprocess.PIPE, text=True) as idle:
        assert idle.stdout is not None
        assert idle.stdout.readline() == "ready\n"
        size = _taken_bytes(idle.pid)
        idle.communicate("")
    return size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("gemma", ContextSize(32768, 4, swa_full=True)),
        ("gemma", ContextSize(32768, 4)),
        # Scratch is reserved at load, not touched: small batches keep it small beside the caches.
        ("embedded:tiny", ContextSize(4 * 131_072, 4, ubatch=64)),
    ],
    ids=["gemma, windows whole", "gemma", "tiny, long windows"],
)
def test_the_planned_peak_is_within_a_tenth_of_what_the_process_takes(
    tmp_path: Path, without_model_bytes: int, name: str, context: ContextSize
) -> None:
    try:
        model = gemma() if name == "gemma" else models.resolve(name, tmp_path)
    except models.ModelError as error:
        pytest.skip(str(error))
    shape = model_shape.from_header(gguf_header.read(model).values)
    engine = PlannedEngine(
        "m", Loaded(model.stat().st_size, shape=shape), context, 0, process_bytes=0
    )
    planned = plan.make(engine).peak_bytes
    flags = [flag for flag in _flags(context) if flag != "--no-warmup"]
    running = engines.start(engines.EMBEDDED, model, tmp_path / "engine.log", *flags)
    taken = _taken_bytes(running.process.pid, model) - without_model_bytes
    running.stop()
    print(f"planned {planned / 2**20:.1f} MiB, taken {taken / 2**20:.1f} MiB")
    assert abs(planned / taken - 1) < 0.1

"""The plan of an engine: each part once, its peak, and what would fit where it does not."""

from __future__ import annotations

from dataclasses import replace

from slotwise.launcher.model import model_shape
from slotwise.launcher.plan import fitting, memory_plan, plan
from slotwise.launcher.plan.fitting import Fit, LoadHeadroom
from slotwise.launcher.plan.plan import ContextSize, Loaded, MeasuredStart, PlannedEngine
from tests.launcher import big_models as big

GIB, MIB = plan.GIB, plan.MIB


def _engine(**changes: object) -> PlannedEngine:
    """A 27B hybrid with four long windows."""
    values = {k: v for k, v in big.QWEN35_27B.items() if k != "tokenizer.ggml.tokens"}
    shape = model_shape.from_header(values | {"qwen35.vocab_size": 248_320})
    engine = PlannedEngine(
        "main", Loaded(17 * GIB, shape=shape), ContextSize(4 * 65536, 4), on_gpu=True
    )
    return replace(engine, **changes)  # type: ignore[arg-type]


def _sizes(engine: PlannedEngine) -> dict[str, int]:
    return {part.name: part.size_bytes for part in plan.make(engine).parts}


def test_the_caches_a_server_may_still_fill_count_from_the_start() -> None:
    """Field report R12: the RAM cache lies outside every account until the host is out of it."""
    made = plan.make(_engine(cache_ram_mib=8192))
    sizes = {part.name: part.size_bytes for part in made.parts if part.grows}
    one = 48 * 4 * (30_720 + 128 * 6144)
    assert sizes == {"checkpoints": 4 * 32 * one, "RAM cache": 8 * GIB}
    assert made.peak_bytes == made.load_bytes + sum(sizes.values())
    headroom = LoadHeadroom(made.peak_bytes + 15 * GIB - 1, 15 * GIB)
    assert fitting.judge([made], headroom).fit is Fit.TOO_BIG
    fewer = plan.make(_engine(cache_ram_mib=8191))
    assert fitting.judge([fewer], headroom).fit is Fit.FITS


def test_keys_and_values_are_taken_at_load_and_never_again() -> None:
    made = plan.make(_engine())
    named = [part for part in made.parts if part.name == "keys and values"]
    assert [(part.size_bytes, part.grows) for part in named] == [(16 * GIB, False)]


def test_beside_the_model_come_a_draft_a_projector_and_draft_heads() -> None:
    plain = plan.make(_engine()).peak_bytes
    shape = model_shape.from_header(
        {
            "general.architecture": "llama",
            "llama.block_count": 2,
            "llama.embedding_length": 64,
            "llama.attention.head_count": 1,
        }
    )
    sizes = _sizes(_engine(draft=Loaded(GIB, shape=shape), mmproj_bytes=2 * GIB))
    assert sizes["draft model"] == GIB
    assert sizes["draft model's keys and values"] == 4 * 65536 * 2 * 2 * 64 * 2
    assert sizes["projector (mmproj)"] == 2 * GIB
    assert sum(sizes.values()) > plain + 3 * GIB
    heads = model_shape.from_header(
        {k: v for k, v in big.QWEN36_27B_MTP.items() if k != "tokenizer.ggml.tokens"}
    )
    own = _engine(model=Loaded(17 * GIB, shape=heads), own_heads=True)
    assert _sizes(own)["draft heads' keys and values"] == GIB


def test_a_measured_start_stands_for_what_was_computed_at_load() -> None:
    computed = plan.make(_engine())
    measured = MeasuredStart(
        computed.load_bytes + 5 * MIB, "2026-11-29 23:30", "fall of MemAvailable"
    )
    made = plan.make(_engine(measured=measured))
    assert made.load_bytes == measured.at_load_bytes
    assert made.growth_bytes == computed.growth_bytes  # nothing is counted a second time
    told = "\n".join(memory_plan.of_plan(made))
    assert "measured: fall of MemAvailable, start of 2026-11-29 23:30" in told


def test_scratch_that_was_not_touched_at_the_measured_start_can_still_come() -> None:
    computed = plan.make(_engine())
    scratch = _sizes(_engine())["compute buffers"]
    for below, untouched in ((MIB, MIB), (10 * GIB, scratch)):
        at_load = computed.load_bytes - below
        made = plan.make(_engine(measured=MeasuredStart(at_load, "now", "size of the process")))
        assert made.growth_bytes - computed.growth_bytes == untouched
        logged = plan.make(_engine(measured=MeasuredStart(at_load, "now", "the engine's log")))
        assert logged.growth_bytes == computed.growth_bytes


def test_a_declared_peak_is_the_authors_word() -> None:
    made = plan.make(_engine(declared_peak_bytes=60 * GIB))
    assert made.peak_bytes == 60 * GIB
    assert "declared: memory.peak_gib" in "\n".join(memory_plan.of_plan(made))


def test_a_cache_without_a_limit_fits_nowhere() -> None:
    made = plan.make(_engine(cache_ram_mib=-1))
    judgement = fitting.judge([made], LoadHeadroom(1000 * GIB, 15 * GIB))
    assert judgement.fit is Fit.TOO_BIG
    assert memory_plan.of_judgement(judgement).endswith("and then more, without a limit")
    assert any("cache_ram_mib: -1" in note for note in made.notes)


def test_what_is_small_starts_anyway() -> None:
    small = plan.make(PlannedEngine("small", Loaded(300 * MIB), ContextSize(4096, 1)))
    judgement = fitting.judge([small], LoadHeadroom(1 * GIB, 2 * GIB))
    assert judgement.fit is Fit.TIGHT
    many = [small] * 4
    assert fitting.judge(many, LoadHeadroom(1 * GIB, 2 * GIB)).fit is Fit.TOO_BIG


def test_a_gpu_with_memory_of_its_own_is_not_judged_by_the_machines() -> None:
    made = plan.make(_engine())
    assert fitting.judge([made], LoadHeadroom(GIB, 2 * GIB), apart=True).fit is Fit.APART


def test_a_model_that_keeps_more_than_is_known_says_so() -> None:
    values = {
        "general.architecture": "deepseek4",
        "deepseek4.block_count": 2,
        "deepseek4.embedding_length": 64,
        "deepseek4.attention.head_count": 1,
    }
    made = plan.make(
        PlannedEngine("m", Loaded(GIB, shape=model_shape.from_header(values)), ContextSize(4096, 1))
    )
    assert made.notes[0].startswith("the architecture deepseek4 keeps caches that are not known")
    (note,) = plan.make(PlannedEngine("m", Loaded(GIB, unknown="why"), ContextSize(4096, 1))).notes
    assert note.endswith("its context is missing: why")


def test_what_would_fit_is_said_kind_by_kind_and_is_true() -> None:
    engine = _engine(cache_ram_mib=8192)
    missing = -2 * GIB
    changes = fitting.changes(engine, missing)
    texts = [change.text for change in changes]
    assert texts == [
        "a smaller RAM cache: cache_ram_mib: 4096",
        "fewer checkpoints: ctx_checkpoints: 16",
        "quantized keys and values: cache_type_k: q8_0, cache_type_v: q8_0",
        "fewer slots: parallel: 3, ctx_size: 196608",
        "shorter windows: ctx_size: 229376 (57344 a slot)",
    ]
    assert all(change.spare_bytes >= 0 for change in changes)
    assert "flash attention" in changes[2].caution
    longer = replace(engine.context, ctx_size=229376 + 4096)
    one_step_longer = plan.make(replace(engine, context=longer)).peak_bytes
    assert plan.make(engine).peak_bytes - one_step_longer < 2 * GIB  # it is the mildest


def test_where_no_single_change_suffices_several_together_do() -> None:
    engine = _engine(cache_ram_mib=8192)
    changes = fitting.changes(engine, -30 * GIB)
    assert changes[-1].text.startswith("together: cache_ram_mib: 0, ctx_checkpoints: 4, parallel:")
    assert [change.spare_bytes >= 0 for change in changes] == [False] * 5 + [True]
    words = memory_plan.of_changes(changes)
    assert words[0].startswith("  a smaller RAM cache: cache_ram_mib: 0: still 22.00 GiB short")
    assert " left" in words[-1]


def test_a_model_that_is_too_big_by_itself_cannot_be_helped() -> None:
    changes = fitting.changes(_engine(), -100 * GIB)
    assert all(change.spare_bytes < 0 for change in changes)

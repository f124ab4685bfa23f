"""The caches of a context, held against what engines logged, to the last digit they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwise.launcher.model import gguf_header, model_shape
from slotwise.launcher.model.model_shape import ModelShape, ShapeError
from slotwise.launcher.plan.plan import (
    CacheError,
    Context,
    caches,
    checkpoint_bytes,
    draft_bytes,
    row_bytes,
)
from tests.launcher import big_models as big
from tests.launcher import headers


def _shape(tmp_path: Path, values: dict[str, Any]) -> ModelShape:
    path = headers.write(tmp_path / "model.gguf", values)
    return model_shape.from_header(gguf_header.read(path).values)


def _mib(size_bytes: int) -> str:
    """As the engine writes it."""
    return f"{size_bytes / 2**20:.2f}"


# Model, context, then of each line: cells, layers, MiB of its two halves. The sources stand with
# the models; the lines are ``llama_kv_cache: size = ...`` and ``llama_memory_recurrent: ...``, of
# which the second counts all layers and is given here with those that have a state.
PUBLISHED = {
    "dense": (
        big.GRANITE_1B,
        Context(4096, 1),
        [(4096, 40, "160.00", "160.00")],
    ),
    "MoE, q8_0": (
        big.QWEN3_235B,
        Context(16384, 1, type_k="q8_0", type_v="q8_0"),
        [(16384, 94, "799.00", "799.00")],
    ),
    "latent attention, q8_0": (
        big.DEEPSEEK_671B,
        Context(32768, 1, type_k="q8_0", type_v="q8_0"),
        [(32768, 61, "1166.62", "0.00")],
    ),
    "latent and sparse attention": (
        big.GLM52_744B,
        Context(524_288, 1),
        [(524_288, 78, "44928.00", "0.00"), (524_288, 21, "2688.00", "0.00")],
    ),
    "hybrid, two slots": (
        big.QWEN35_27B,
        Context(2048, 2),
        [(2, 48, "11.25", "288.00")],
    ),
    "hybrid with a draft head, three slots": (
        big.QWEN36_27B_MTP,
        Context(3072, 3),
        [(3, 48, "16.88", "432.00")],
    ),
    "hybrid, one slot": (
        big.QWEN35_9B,
        Context(8192, 1),
        [(1, 24, "2.25", "48.00")],
    ),
    "sliding window, q4_0, a million tokens": (
        big.LAGUNA,
        Context(1048576, 1, type_k="q4_0", type_v="q4_0"),
        [(1048576, 12, "6912.00", "6912.00"), (1024, 36, "20.25", "20.25")],
    ),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_published_lines_of_big_models(tmp_path: Path, case: str) -> None:
    values, context, expected = PUBLISHED[case]
    found = [
        (one.cells, one.layers, _mib(one.k_bytes), _mib(one.v_bytes))
        for one in caches(_shape(tmp_path, values), context)
    ]
    assert found[-len(expected) :] == expected


@pytest.mark.parametrize(("kind", "mib"), [("f16", 64), ("q8_0", 34), ("q4_0", 18)])
def test_a_hybrid_quantized(tmp_path: Path, kind: str, mib: int) -> None:
    # github.com/SergiioB/portfolio, qwen35-kv-cache-quantization-edge.md: 27B, 1024 tokens
    context = Context(1024, 1, type_k=kind, type_v=kind)
    assert caches(_shape(tmp_path, big.QWEN35_27B), context)[0].size_bytes == mib * 2**20


@pytest.mark.parametrize(("slots", "cells", "mib"), [(3, 1536, 27), (4, 1024, 18)])
def test_the_rounding_of_a_slot_can_make_three_larger_than_four(
    tmp_path: Path, slots: int, cells: int, mib: int
) -> None:
    # github.com/unslothai/unsloth/pull/7530: gemma3-270m, -c 1024
    found = caches(_shape(tmp_path, big.GEMMA3_270M), Context(1024, slots))
    assert found[0].cells * found[0].streams == cells
    assert sum(cache.size_bytes for cache in found) == mib * 2**20


def test_the_state_is_kept_once_more_for_each_drafted_token(tmp_path: Path) -> None:
    # 448.88 MiB for 1 slot with rs_seq 2: the 27B of the same family as a draft is taken back
    (_, recurrent) = caches(_shape(tmp_path, big.QWEN35_27B), Context(32768, 1, rollback=2))
    assert _mib(recurrent.size_bytes) == "448.88"


def test_a_draft_head_has_a_context_of_its_own(tmp_path: Path) -> None:
    shape = _shape(tmp_path, big.QWEN36_27B_MTP)
    assert draft_bytes(shape, Context(262144, 1)) == 2**30


def test_sparse_attention_keeps_keys_to_choose_by(tmp_path: Path) -> None:
    found = caches(_shape(tmp_path, big.QWEN38_FLASH_NEXT), Context(65536, 1))
    per_token = {cache.name: cache.size_bytes / 65536 for cache in found if cache.cells == 65536}
    # 12 layers: 2 heads of 256 twice, in f16; a key of 128 and its pooled one
    assert per_token == {"keys and values": 12 * 2 * 512 * 2, "indexer keys": 12 * 2 * 128 * 2}


def test_a_checkpoint_is_what_cannot_be_rolled_back(tmp_path: Path) -> None:
    context = Context(131072, 4)
    # github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1563: size = 50.251 MiB
    hybrid = checkpoint_bytes(_shape(tmp_path, big.QWEN35_9B), context)
    assert f"{hybrid / 2**20:.2f}" == "50.25"
    gemma = _shape(tmp_path, big.GEMMA3_270M)
    assert checkpoint_bytes(gemma, context) == 7.5 * 2**20  # measured: 7.5 MB each
    assert checkpoint_bytes(gemma, Context(131072, 4, swa_full=True)) == 0
    assert checkpoint_bytes(_shape(tmp_path, big.GRANITE_1B), context) == 0


def test_without_flash_attention_all_values_are_as_wide_as_the_widest(tmp_path: Path) -> None:
    values = headers.model(
        "llama",
        block_count=2,
        embedding_length=64,
        attention__head_count=[4, 4],
        attention__head_count_kv=[4, 2],
    )
    shape = _shape(tmp_path, values)
    (on,) = caches(shape, Context(256, 1))
    (off,) = caches(shape, Context(256, 1, flash_attn=False))
    assert (on.k_bytes, on.v_bytes) == (256 * 96 * 2, 256 * 96 * 2)
    assert (off.k_bytes, off.v_bytes) == (256 * 96 * 2, 256 * 128 * 2)


def test_one_pool_holds_a_window_for_every_slot(tmp_path: Path) -> None:
    shape = _shape(tmp_path, big.GEMMA3_270M)
    (_, split) = caches(shape, Context(32768, 4))
    (_, pool) = caches(shape, Context(32768, 4, unified=True))
    assert (split.streams, split.cells) == (4, 1024)
    assert (pool.streams, pool.cells) == (1, 4 * 512 + 512)


def test_a_layer_that_shares_keys_keeps_none(tmp_path: Path) -> None:
    values = headers.model(
        "gemma4",
        block_count=6,
        embedding_length=64,
        attention__head_count=2,
        attention__head_count_kv=1,
        attention__key_length=64,
        attention__value_length=64,
        attention__key_length_swa=32,
        attention__value_length_swa=32,
        attention__sliding_window=256,
        attention__sliding_window_pattern=[True, True, False, True, True, False],
        attention__shared_kv_layers=3,
    )
    shape = _shape(tmp_path, values)
    assert [(row.keys, row.windowed) for row in shape.rows] == [
        (32, True),
        (32, True),
        (64, False),
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"llama.block_count": 0}, "expected 1 to 4096 layers, got 0"),
        ({"llama.attention.head_count_kv": [1]}, "attention.head_count_kv: 1 numbers for 2 layers"),
    ],
)
def test_a_header_that_lacks_what_is_needed(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    values = headers.model("llama", block_count=2, embedding_length=64, attention__head_count=2)
    with pytest.raises(ShapeError, match=told.replace("[", r"\[")):
        _shape(tmp_path, values | change)


def test_a_row_that_is_no_whole_number_of_blocks() -> None:
    assert row_bytes(64, "q8_0") == 68
    with pytest.raises(CacheError, match="48 elements a token are no multiple of 32"):
        row_bytes(48, "q8_0")

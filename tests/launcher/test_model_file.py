"""A model's file is whole, each part of it, or the fault is told before an engine starts."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGML_QUANT_SIZES

from slotwise.launcher.model import gguf_header, tiny_model
from tests.launcher.written import faults_of, gguf, load


@pytest.mark.parametrize("cut", [3, 12, 40, 60, 100])
def test_a_header_that_ends_too_soon_is_told(tmp_path: Path, cut: int) -> None:
    whole = gguf(tmp_path / "model.gguf", window=512)
    assert gguf_header.read(whole) == gguf_header.Header("llama", 4096, 512)
    whole.write_bytes(whole.read_bytes()[:cut])
    with pytest.raises(gguf_header.HeaderError):
        gguf_header.read(whole)


@pytest.mark.slow
def test_a_download_that_broke_off_is_found_behind_its_intact_header(
    tmp_path: Path, plain: dict[str, Any]
) -> None:
    whole = tiny_model.build(tmp_path / "cache").read_bytes()
    model = tmp_path / "model.gguf"
    model.write_bytes(whole)
    assert load(tmp_path, plain)[0].model == model.resolve()
    for lost in (1, len(whole) // 2):
        model.write_bytes(whole[:-lost])
        assert faults_of(tmp_path, plain) == [
            "p0.yaml: server.model: expected a GGUF file, got 'model.gguf': "
            f"model.gguf is cut short: {len(whole) - lost} of {len(whole)} bytes"
        ]
    gguf(model)
    plain["server"]["draft_model"] = "draft.gguf"
    (tmp_path / "draft.gguf").write_bytes(whole[:-1])
    (fault,) = faults_of(tmp_path, plain)
    told = "server.draft_model: expected the path of a GGUF file, got 'draft.gguf': "
    assert fault.startswith(f"p0.yaml: {told}draft.gguf is cut short: ")


def test_each_file_of_a_model_in_parts_is_there_and_whole(
    tmp_path: Path, plain: dict[str, Any]
) -> None:
    whole = tiny_model.build(tmp_path / "cache").read_bytes()
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(whole)
    plain["server"]["model"] = first.name
    assert faults_of(tmp_path, plain) == [
        "p0.yaml: server.model: expected 2 files, got no m-00002-of-00002.gguf"
    ]
    second.write_bytes(whole[:-9])
    (fault,) = faults_of(tmp_path, plain)
    assert fault.endswith(f"{second.name} is cut short: {len(whole) - 9} of {len(whole)} bytes")
    second.write_bytes(whole)
    assert load(tmp_path, plain)[0].model == first.resolve()


def test_sizes_of_tensors_are_ggmls_own() -> None:
    sizes = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    assert {kind: sizes[kind] for kind in gguf_header.BLOCKS} == gguf_header.BLOCKS


def test_of_an_unknown_type_only_the_begin_is_asked_for() -> None:
    def info(kind: int, offset: int) -> bytes:
        return struct.pack("<QsIQIQ", 1, b"t", 1, 256, kind, offset)

    def needed(*infos: bytes) -> int:
        return gguf_header.layout(io.BytesIO(b"".join(infos)), len(infos), None).length_bytes

    assert len(info(0, 0)) == 33  # so the data begin at 64
    assert needed(info(8, 0)) == 64 + 256 // 32 * 34
    assert needed(info(250, 320)) == 64 + 320 + 1
    assert needed() == 0
    with pytest.raises(ValueError, match="a tensor of 4000000000 dimensions"):
        needed(struct.pack("<QsI", 1, b"t", 4_000_000_000))
    with pytest.raises(struct.error):
        needed(info(0, 0)[:-1])

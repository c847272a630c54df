"""Bytes of engines with dynamic shapes are those at the optimization shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import qdqtool
from qdqtool.auditing.full_audit import audit
from qdqtool.engine.layer_info import read
from tests.shared import ROOT

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
DIGITS = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def quantized() -> qdqtool.Quantized:
    return qdqtool.quantize(DIGITS, "random:2")


def layers(quantized: qdqtool.Quantized, folder: Path, **shapes: str) -> Path:
    settings = {f"build.{name}": value for name, value in shapes.items()}
    qdqtool.build(quantized, folder, settings=settings)
    return folder / "layers.txt"


@pytest.mark.slow
def test_a_dynamic_engine_moves_as_many_bytes_at_its_optimum_as_samples_say(
    quantized: qdqtool.Quantized, tmp_path: Path
) -> None:
    one = audit(None, read(layers(quantized, tmp_path / "one", opt_shapes="image:1x1x8x8")))
    free = read(
        layers(
            quantized,
            tmp_path / "eight",
            min_shapes="image:1x1x8x8",
            opt_shapes="image:8x1x8x8",
            max_shapes="image:32x1x8x8",
        )
    )
    eight = audit(None, free)
    assert one.counts.activation_bytes_dumped
    assert one.counts.activation_bytes_fused
    assert eight.counts.activation_bytes_dumped == 8 * one.counts.activation_bytes_dumped
    assert eight.counts.activation_bytes_fused == 8 * one.counts.activation_bytes_fused
    assert any("optimization shapes: image 8x1x8x8" in note for note in eight.notes)
    assert not any("optimization shapes" in note for note in one.notes)
    known = {found.code: found.bytes for found in one.findings}
    assert {found.code: found.bytes for found in eight.findings} == {
        code: None if size is None else 8 * size for code, size in known.items()
    }


@pytest.mark.slow
def test_without_an_optimum_the_bytes_of_dynamic_shapes_stay_unknown(
    quantized: qdqtool.Quantized, tmp_path: Path
) -> None:
    free = read(
        layers(
            quantized,
            tmp_path / "free",
            min_shapes="image:1x1x8x8",
            opt_shapes="image:2x1x8x8",
            max_shapes="image:4x1x8x8",
        )
    )
    assert audit(None, replace(free, opt_shapes=())).counts.activation_bytes_dumped is None

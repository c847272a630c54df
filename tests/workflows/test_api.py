"""The Python API does what the commands do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import qdqtool
from qdqtool import api

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
SAMPLES = f"{DIGITS / 'calibration.npz'}[:32]"


def test_importing_qdqtool_opens_no_heavy_package() -> None:
    probe = "import sys, qdqtool; assert not {'numpy', 'onnx', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_public_names_are_there() -> None:
    assert set(qdqtool.__all__) == {"build", "compare", "parse_log", "place", "quantize", "run"}
    for name in qdqtool.__all__:
        assert callable(getattr(qdqtool, name))
    with pytest.raises(AttributeError):
        _ = qdqtool.nothing_of_this_name


def test_place_explains_and_changes_nothing() -> None:
    before = MODEL.read_bytes()
    placement = qdqtool.place(MODEL)
    assert placement.quantized
    assert all(decision.opinions for decision in placement.decisions)
    assert MODEL.read_bytes() == before


def test_quantize_build_audit_and_compare_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    quantized = tmp_path / "digits.qdq.onnx"
    table = qdqtool.quantize(MODEL, SAMPLES, quantized, settings=["calibrate.method=max"])
    assert {entry.method for entry in table.ranges} == {"max"}
    result = qdqtool.build(quantized, tmp_path / "engine", shapes=("image:1x1x8x8",) * 3)
    assert (tmp_path / "engine" / result.engine).stat().st_size == result.engine_bytes
    verdicts = api.audit(quantized, tmp_path / "engine" / "layers.txt").verdicts
    assert verdicts
    assert all(verdict.verdict.value == "int8" for verdict in verdicts if verdict.op == "Conv")
    assert qdqtool.parse_log(tmp_path / "engine" / "build.log").runs
    comparison = qdqtool.compare(
        MODEL, quantized, str(DIGITS / "evaluation.npz"), labels=str(DIGITS / "labels.npy")
    )
    assert comparison.task[0].metric == "top1"
    assert comparison.task[0].reference - comparison.task[0].candidate <= 1.0


def test_run_returns_the_report(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    report = qdqtool.run(MODEL, SAMPLES, tmp_path / "run")
    assert report.summary.nodes_int8 == report.summary.nodes_requested
    assert not [fallback for fallback in report.fallbacks if fallback.requested]

"""The Python API does what the commands do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qdqtool
from qdqtool import api
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement
from qdqtool.errors import InputFileError

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
SAMPLES = f"{DIGITS / 'calibration.npz'}[:32]"


def test_importing_qdqtool_opens_no_heavy_package() -> None:
    probe = "import sys, qdqtool; assert not {'numpy', 'onnx', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = qdqtool.nothing_of_this_name  # type: ignore[attr-defined]


@pytest.mark.slow
def test_audit_is_one_call_whatever_was_imported_before(tmp_path: Path) -> None:
    probe = "import qdqtool, qdqtool.auditing.full_audit; assert qdqtool.audit is qdqtool.api.audit"
    subprocess.run([sys.executable, "-c", probe], check=True)
    with pytest.raises(InputFileError, match="No such file"):
        qdqtool.audit(tmp_path / "none.onnx")


@pytest.mark.slow
def test_the_example_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    manual = api.__doc__ or ""
    lines = [line.strip() for line in manual.splitlines() if line.startswith("    ")]
    monkeypatch.chdir(tmp_path)
    for target, source in (
        ("model.onnx", MODEL),
        ("labels.npy", DIGITS / "labels.npy"),
        ("calibration/a.npz", DIGITS / "calibration.npz"),
        ("evaluation/a.npz", DIGITS / "evaluation.npz"),
    ):
        Path(target).parent.mkdir(exist_ok=True)
        shutil.copy(source, target)
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert names["report"].summary.nodes_int8
    assert names["engine"].targets == ("sm86",)
    assert names["log"].runs
    assert names["comparison"].task
    assert {entry.verdict.value for entry in names["audit"].verdicts if entry.op == "Conv"} == {"int8"}
    assert Path("engine/engine.plan").read_bytes() == names["engine"].plan


def test_results_show_themselves_escaped_and_cut() -> None:
    ranges = tuple(TensorRange(tensor=f"<i>{number}", amax=(1.0,) * 40) for number in range(50))
    page = CalibrationTable(ranges=ranges, samples=7)._repr_html_()
    assert "<i>" not in page
    assert "&lt;i&gt;19" in page
    assert "&lt;i&gt;20" not in page
    assert "50 ranges" in page
    assert "and 30 more" in page
    assert "and 32 more" in page
    assert '<td style="text-align:left">7</td>' in page


def test_an_empty_result_shows_itself_too() -> None:
    assert "<table></table>" in Placement(decisions=(), ties=())._repr_html_()


def test_place_explains_and_changes_nothing() -> None:
    before = MODEL.read_bytes()
    placement = qdqtool.place(MODEL)
    assert placement.quantized
    assert all(decision.opinions for decision in placement.decisions)
    assert MODEL.read_bytes() == before


@pytest.mark.slow
def test_quantize_build_audit_and_compare_one_after_the_other(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    quantized = tmp_path / "digits.qdq.onnx"
    table = qdqtool.quantize(MODEL, SAMPLES, quantized, settings=["calibrate.method=max"])
    assert {entry.method for entry in table.ranges} == {"max"}
    result = qdqtool.build(quantized, tmp_path / "engine").result
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


def test_findings_point_into_the_log_of_the_build(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    from tests import models
    from tests.audit.graphs import GRAPHS

    model = models.save(GRAPHS["float_weight"](), tmp_path)
    qdqtool.build(model, tmp_path / "engine")
    layers, log = tmp_path / "engine" / "layers.txt", tmp_path / "engine" / "build.log"
    files = {
        log_given: {place.file for found in audit.findings for place in found.evidence}
        for log_given, audit in (
            (False, qdqtool.audit(model, layers)),
            (True, qdqtool.audit(model, layers, log=log)),
        )
    }
    assert "build.log" not in files[False]
    assert "build.log" in files[True]

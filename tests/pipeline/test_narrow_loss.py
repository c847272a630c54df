"""FP16 is kept from the nodes that it destroys, and where it costs accuracy all the same, the verdict says so."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.core.kinds import REPORT
from tests import models
from tests.shared import shared

needs_rtx = pytest.mark.skipif(
    find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX: qdqtool[rtx]"
)


def _sqnr(model: Path, candidate: Path, samples: str) -> float:
    comparison = qdqtool.compare(model, candidate, samples)
    assert comparison.sqnr is not None
    return comparison.sqnr.sqnr_db


@pytest.mark.parametrize("types", ["fp32", "fp16", "bf16"])
def test_a_logarithm_of_powers_keeps_its_accuracy_in_every_type(types: str, tmp_path: Path) -> None:
    model, calibration, evaluation = (
        shared(f"cases/handed/log_{name}") for name in ("front.onnx", "cal.npz", "eval.npz")
    )
    out = tmp_path / "model.onnx"
    qdqtool.quantize(model, str(calibration), out, recipe="audio-int8", settings={"insert.types": types})
    assert _sqnr(model, out, str(evaluation)) > 30


@needs_rtx
@pytest.mark.slow
def test_what_a_run_proposes_for_it_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calibration, evaluation = (
        shared(f"cases/handed/log_{name}") for name in ("front.onnx", "cal.npz", "eval.npz")
    )
    monkeypatch.chdir(tmp_path)
    words = ["run", str(model), "--samples", str(calibration), "--eval-samples", str(evaluation)]
    assert run([*words, "--out", "first"]) == 0
    lines = capsys.readouterr().out.partition("next:")[2].splitlines()
    proposed = [shlex.split(line, comments=True)[1:] for line in lines if "qdqtool run" in line]
    assert "QDQ212" not in {found.code for found in REPORT.read(tmp_path / "first" / "report.json").findings}
    for typed in [*proposed, [*words, "--out", "half", "--set=insert.types=fp16"]]:
        assert run(typed) == 0
        report = REPORT.read(tmp_path / typed[typed.index("--out") + 1] / "report.json")
        assert report.summary.verdict.accurate.state == "yes"
        assert report.comparison is not None
        assert report.comparison.sqnr is not None
        assert report.comparison.sqnr.sqnr_db > 30


def _faint(folder: Path) -> tuple[Path, str, str]:
    """conv -> a factor below FP16's digits -> its inverse -> conv, and samples."""
    s = models.Sketch(3)
    y = s.relu("relu1", s.conv("conv1", s.input("x", ["N", 4, 8, 8]), (4, 8)))
    y = s.node("Mul", [y, s.constant("down", np.float32(2e-7))], "small", name="down_mul")
    y = s.node("Mul", [y, s.constant("up", np.float32(5e6))], "large", name="up_mul")
    s.output(s.relu("relu2", s.conv("conv2", y, (8, 8))), ["N", 8, 8, 8])
    random = np.random.default_rng(0)
    for name in ("cal", "eval"):
        np.savez(folder / f"{name}.npz", x=random.standard_normal((32, 4, 8, 8)).astype(np.float32))
    return models.save(s.model(), folder), str(folder / "cal.npz"), str(folder / "eval.npz")


def test_what_is_measured_to_lose_its_digits_stays_fp32(tmp_path: Path) -> None:
    model, calibration, evaluation = _faint(tmp_path)

    def level(name: str, **settings: str) -> float:
        out = tmp_path / f"{name}.onnx"
        qdqtool.quantize(
            model, calibration, out, recipe="conv-int8", settings={"insert.types": "fp16", **settings}
        )
        return _sqnr(model, out, evaluation)

    assert level("ignored", **{"insert.overflow": "ignore"}) < 10
    assert level("kept") > 30


@needs_rtx
@pytest.mark.slow
def test_a_run_that_fp16_costs_much_is_not_good_and_its_fix_is(tmp_path: Path) -> None:
    model, calibration, evaluation = _faint(tmp_path)
    words = ["run", str(model), "--samples", calibration, "--eval-samples", evaluation]
    words += ["--set=insert.types=fp16", "--set=insert.overflow=name"]
    assert run([*words, "--out", str(tmp_path / "lost")]) == 0
    report = REPORT.read(tmp_path / "lost" / "report.json")
    found = {finding.code: finding for finding in report.findings}
    assert report.verdict == "bad"
    assert "DAT112" in found["DAT107"].fix
    assert "most is lost at down_mul" in found["DAT112"].reason
    (setting,) = (word for word in shlex.split(found["DAT112"].fix) if word.startswith("insert.keep_nodes"))
    assert run([*words, "--out", str(tmp_path / "kept"), f"--set={setting}"]) == 0
    report = REPORT.read(tmp_path / "kept" / "report.json")
    assert not {"DAT107", "DAT112"} & {finding.code for finding in report.findings}
    level = json.loads((tmp_path / "kept" / "accuracy.json").read_text("utf-8"))["data"]["sqnr"]["sqnr_db"]
    assert level > 30

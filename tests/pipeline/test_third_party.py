"""`qdqtool run` takes what people bring: Q/DQ models, calibration caches, and models without samples."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import qdqtool
from qdqtool.backends.shapes import usual_shapes
from qdqtool.cli.app import run as cli
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import quantized_ops

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
SAMPLES = f"{DIGITS / 'calibration.npz'}[:8]"
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = pytest.mark.rtx


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Q/DQ model of the digits network."""
    path = tmp_path_factory.mktemp("given") / "given.onnx"
    qdqtool.quantize(DIGITS / "digits.onnx", SAMPLES, path)
    return path


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text("utf-8"))["data"]


def test_a_model_with_qdq_is_linted_repaired_predicted_built_audited_and_compared(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(quantized), "--samples", SAMPLES, "--out", str(tmp_path / "out")]
    assert cli(words) == 0
    kinds = ["lint", "repair", "prediction", "build", "findings", "accuracy", "report", "provenance"]
    assert all((tmp_path / "out" / f"{kind}.json").is_file() for kind in kinds)
    data = report_of(tmp_path / "out")
    assert data["summary"]["nodes_int8"] == data["summary"]["nodes_total"] > 0
    assert data["summary"]["model"] == "given.onnx"
    assert data["summary"]["verdict"]["answer"] == "doubtful"  # eight samples say little of a task
    assert not quantized_ops(load(tmp_path / "out" / "model.prepared.onnx"))
    capsys.readouterr()
    assert cli(words) == 0
    assert capsys.readouterr().err.count("up to date") >= 10


def test_the_commands_that_are_printed_for_after_a_run_work(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["run", str(quantized), "--samples", SAMPLES, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.partition("next:\n")[2].splitlines()
    assert 0 < len(lines) <= 3
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "qdqtool"
        assert cli(words) == 0, line


def test_a_calibration_cache_beside_a_float_model_becomes_an_engine(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, cache = tmp_path / "plain.onnx", tmp_path / "calibration.cache"
    made = ["--model", str(model), "--out", str(cache), "--trt", "10.3"]
    assert cli(["cache", "from-qdq", str(quantized), *made]) == 0
    words = ["run", str(model), "--calibration-cache", str(cache)]
    capsys.readouterr()
    assert cli([*words, "--samples", "random:4", "--out", str(tmp_path / "out")]) == 0
    on_your_data = capsys.readouterr().out.partition("next:\n")[2].splitlines()[0]
    assert shlex.split(on_your_data, comments=True)[1:6] == [*words, "--samples"]
    data = report_of(tmp_path / "out")
    assert data["summary"]["nodes_int8"] > 0


def test_without_samples_a_run_says_what_it_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli(["run", str(DIGITS / "digits.onnx")]) == 0
    shown = capsys.readouterr()
    assert "ranges and accuracy mean nothing" in " ".join(shown.err.split())
    assert (tmp_path / "runs" / "digits" / "report.html").is_file()
    assert "memory, peak" in shown.err


@pytest.mark.parametrize("samples", [[], ["--samples", "random:8"]])
def test_the_next_commands_quantize_as_the_run_did_on_samples_that_mean_something(
    samples: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["--recipe", "conv-depthwise-int8", "--set", "place.last_layer=float"]
    assert cli(["run", str(DIGITS / "digits.onnx"), *typed, *samples]) == 0
    first = capsys.readouterr().out.partition("next:\n")[2].splitlines()[0]
    words = shlex.split(first, comments=True)
    assert words[:3] == ["qdqtool", "run", str(DIGITS / "digits.onnx")]
    assert words[3:6] == ["--recipe", "conv-depthwise-int8", "--set=place.last_layer=float"]
    assert words[6:] == ["--samples", "DATA", "--out", "runs/digits"]


def test_random_samples_judge_no_calibrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["calibrate", str(DIGITS / "digits.onnx"), "--samples", "random:4", "-o", "table.json"]
    assert cli(words) == 0
    table = json.loads((tmp_path / "table.json").read_text("utf-8"))["data"]
    assert not table["meaningful"]
    assert not any("dB" in entry["note"] for entry in table["ranges"])


def test_one_symbol_has_one_length_and_pictures_have_the_size_of_pictures() -> None:
    infos = (
        TensorInfo(name="ids", dtype=DType.INT64, shape=("n", "s")),
        TensorInfo(name="mask", dtype=DType.INT64, shape=("n", "s")),
        TensorInfo(name="image", dtype=DType.FLOAT32, shape=("n", 3, "h", "w")),
        TensorInfo(name="fixed", dtype=DType.FLOAT32, shape=(2, 2)),
    )
    found = usual_shapes(infos)
    assert found == {"ids": (1, 128), "mask": (1, 128), "image": (1, 3, 224, 224)}


def test_labels_are_those_of_the_evaluation_samples(quantized: Path, tmp_path: Path) -> None:
    """Repair runs the calibration samples, which have no labels then."""
    words = ["--eval-samples", str(DIGITS / "evaluation.npz"), "--labels", str(DIGITS / "labels.npy")]
    assert cli(["run", str(quantized), "--samples", SAMPLES, *words, "--out", str(tmp_path / "out")]) == 0
    task, *_ = report_of(tmp_path / "out")["comparison"]["task"]
    assert (task["metric"], task["samples"]) == ("top1", 700)


def test_settings_of_placement_that_change_nothing_in_a_model_with_qdq_are_named(
    quantized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(quantized), "--samples", "random:2", "--out", str(tmp_path / "out")]
    assert cli([*words, "--set", "place.exclude=['*']", "--set", "place.skip_rules=[gemv]"]) == 0
    (said,) = [note for note in report_of(tmp_path / "out")["notes"] if "no effect" in note]
    assert said.startswith("place.exclude, place.skip_rules have no effect: the model already contains Q/DQ")
    assert "`qdqtool repair --float NODE`" in said
    assert "no effect" in capsys.readouterr().out

"""`qdqtool qat run`: from a PyTorch network to two audited engines and a table."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from qdqtool.cli.app import run as command
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.kinds import CALIBRATION, QAT, REPAIR
from qdqtool.core.qat import QatResult
from qdqtool.pipeline.qat.run import _Measured, _measured_row, _Work, wilson
from tests.shared import shared

HERE = Path(__file__).resolve().parent
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'qdqtool[qat]'"
)
needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx: pip install 'qdqtool[rtx]'"
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, QatResult]:
    out = tmp_path_factory.mktemp("digits")
    assert command(["qat", "run", "qat-digits", "--set", "qat.epochs=10", "--out", str(out)]) == 0
    return out, QAT.read(out / "qat.json")


@needs_torch
@needs_rtx
class TestDigits:
    def test_calibration_loses_and_training_wins_it_back(self, digits: tuple[Path, QatResult]) -> None:
        original, ptq, qat = digits[1].rows
        assert [row.name for row in digits[1].rows] == ["FP32", "PTQ", "QAT"]
        assert original.value is not None
        assert ptq.change_high is not None
        assert qat.change_low is not None
        assert original.value > 96
        assert ptq.change_high < -5
        assert qat.change_low > ptq.change_high

    def test_every_slot_was_trained_and_both_engines_run_int8(self, digits: tuple[Path, QatResult]) -> None:
        assert digits[1].untrained == ()
        for row in digits[1].rows[1:]:
            assert row.nodes_int8 is not None
            assert row.nodes_int8 >= 9

    def test_both_runs_are_run_folders_like_any_other(self, digits: tuple[Path, QatResult]) -> None:
        for name in ("ptq", "qat"):
            folder = digits[0] / name
            assert {"report.html", "report.json", "engine.plan", "model.qdq.onnx"} <= {
                path.name for path in folder.iterdir()
            }

    def test_both_models_are_those_of_the_library(
        self, digits: tuple[Path, QatResult], tmp_path: Path
    ) -> None:
        """The same steps by hand, as somebody writes them in a training loop, give the same bytes."""
        from qdqtool import qat
        from qdqtool.backends.torch_qat.network import Network
        from qdqtool.pipeline import recipes

        out, recipe = digits[0], recipes.load("qat-digits", [])
        network = Network(recipe.qat, recipes.folder())
        (images,), _ = network.train.first()
        model = qat.prepare(network.traced.flat, images, recipe)
        table = qat.calibrate(model, network.train.batches(), limit=300)
        assert table == CALIBRATION.read(out / "calibration.json")
        written = qat.export(model, tmp_path / "calibrated.onnx")
        assert written.read_bytes() == (out / "calibrated.onnx").read_bytes()
        assert qat.untrained(model) == digits[1].untrained == ()
        repaired = REPAIR.read(out / "qat" / "repair.json")
        assert repaired.changes == repaired.remaining == ()

    def test_the_same_command_again_trains_nothing_and_gives_the_same_bytes(
        self, digits: tuple[Path, QatResult], tmp_path: Path
    ) -> None:
        again = tmp_path / "again"
        shutil.copytree(digits[0], again)
        (again / "qat.json").unlink()
        journal = (again / "training.jsonl").read_bytes()
        assert command(["qat", "run", "qat-digits", "--set", "qat.epochs=10", "--out", str(again)]) == 0
        assert (again / "training.jsonl").read_bytes() == journal
        assert (again / "qat.json").read_bytes() == (digits[0] / "qat.json").read_bytes()
        assert (again / "trained.onnx").read_bytes() == (digits[0] / "trained.onnx").read_bytes()

    def test_another_recipe_in_the_same_folder_is_refused(
        self, digits: tuple[Path, QatResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        again = tmp_path / "again"
        shutil.copytree(digits[0], again)
        assert command(["qat", "run", "qat-digits", "--set", "qat.epochs=4", "--out", str(again)]) == 5
        assert "checkpoint of another model, data or recipe" in capsys.readouterr().err


@needs_torch
def test_resnet20_rebuilt_from_onnx_computes_what_the_onnx_file_does() -> None:
    path = shared("models/cifar10_resnet20/model.onnx")
    shared("models/data_cifar10/calib500_jpeg.npz")
    import numpy as np
    import onnxruntime
    import torch

    from qdqtool.backends.torch_qat.network import Network
    from qdqtool.pipeline import recipes

    recipe = recipes.load("qat-cifar10-resnet20", ["qat.threads=1"])
    network = Network(recipe.qat, recipes.folder())
    (images,), _ = network.validate.first()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {session.get_inputs()[0].name: images[:4].numpy()})
    with torch.no_grad():
        found = network.flat(images[:4]).numpy()
    assert np.abs(found - expected).max() < 1e-3


def test_without_torch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    assert command(["qat", "run", "qat-digits", "--out", str(tmp_path / "out")]) == 3
    assert "pip install 'qdqtool[qat]'" in capsys.readouterr().err


@needs_torch
def test_a_recipe_without_a_network_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["qat", "run", "conv-int8", "--out", str(tmp_path / "out")]) == 2
    assert "does not name a network" in capsys.readouterr().err


@needs_torch
@needs_rtx
def test_an_engine_that_learns_nothing_asks_for_fixed_scales(
    digits: tuple[Path, QatResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    shutil.copytree(digits[0], again)
    assert command(["qat", "run", "qat-digits", "--set", "qat.engine=modelopt", "--out", str(again)]) == 2
    assert "qat.scales=fixed" in capsys.readouterr().err


def test_shares_of_few_samples_have_wide_intervals() -> None:
    low, high = wilson(100.0, 10)
    assert (round(low, 1), round(high, 6)) == (72.2, 100.0)
    assert wilson(50.0, 10_000)[0] == pytest.approx(49.02, abs=0.01)


def test_the_result_is_an_artefact_without_times(tmp_path: Path) -> None:
    result = QatResult(
        metric="top1",
        unit="%",
        samples=1,
        rows=(),
        engine="own",
        device="cpu",
        best_epoch=0,
        epochs=(),
        quantizers=0,
    )
    QAT.write(tmp_path / "qat.json", result)
    assert QAT.read(tmp_path / "qat.json") == result
    draws = np.array([1.0, np.nan])
    never, rarely = (_Measured(value=value, draws=draws) for value in (np.nan, 1.0))
    rows = tuple(_measured_row(name, rarely, never, None) for name in ("FP32", "PTQ"))
    assert [(row.value, row.low, row.high) for row in rows] == [(1.0, None, None)] * 2
    QAT.write(tmp_path / "qat.json", replace(result, rows=rows))
    assert json.loads((tmp_path / "qat.json").read_text("utf-8"))["kind"] == "qat"


@needs_torch
@pytest.mark.parametrize(
    "change", ["weights.rounding=mse", "samples.nan=skip", "calibrate.method=max", "qat.opset=18"]
)
def test_other_settings_of_the_ranges_calibrate_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from qdqtool.pipeline import recipes
    from qdqtool.pipeline.qat import library
    from qdqtool.pipeline.request import NullProgress, RunFolder

    calls: list[str] = []

    def calibrate(*_: object) -> CalibrationTable:
        calls.append("calibrate")
        return CalibrationTable(ranges=())

    monkeypatch.setattr(library, "calibrate", calibrate)
    monkeypatch.setattr(library, "start_from", lambda *_: calls.append("kept"))
    (tmp_path / "placement.json").write_text("{}")
    for changes in ([], [], [change]):
        request = SimpleNamespace(recipe=recipes.load("qat-digits", changes))
        network: Any = SimpleNamespace(digest="", train=SimpleNamespace(batches=tuple))
        data: Any = SimpleNamespace(digest="", calibrates=1)
        work = _Work(cast("Any", request), RunFolder(tmp_path), network, data, NullProgress())
        work.calibrate(cast("Any", None))
    assert calls == ["calibrate", "kept", "calibrate"]


@needs_torch
@needs_rtx
def test_the_model_before_training_keeps_overflows_in_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PTQ row of the table is the network that training starts from, with the float types of the trained model."""
    from qdqtool.pipeline.qat import library

    fed: list[bool] = []
    export = library.export

    def watched(model: Any, path: Path, *samples: Any) -> Path:
        fed.append(bool(samples))
        if path.name == "calibrated.onnx":
            return export(model, path, *samples)
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "export", watched)
    few = ["--set", "qat.epochs=1", "--set", "insert.types=fp16"]
    assert command(["qat", "run", "qat-digits", *few, "--out", str(tmp_path / "x")]) == 130
    assert fed == [True, True]

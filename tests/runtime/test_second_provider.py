"""A second real provider of onnxruntime runs the pipeline: OpenVINO, or another device that QDQTOOL_TEST_DEVICE names.

Numbers differ in the last digits, since its kernels add up in another order; choices and verdicts do not.
"""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.errors import InputFileError, MissingPackage
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.runtime.device import CPU, DEVICES, provider_of
from qdqtool.runtime.runner import open_model, open_runner
from qdqtool.runtime.session import computing_on, find_device
from tests import models
from tests.backends import graphs
from tests.models import save

DEVICE = os.environ.get("QDQTOOL_TEST_DEVICE", "openvino")
NAME = DEVICES[DEVICE].provider
ABSENT = "openvino:NPU" if DEVICE == "openvino" else f"{DEVICE}:99"


def _why_not() -> str | None:
    try:
        find_device(provider_of(DEVICE))
    except (MissingPackage, InputFileError) as error:
        return f"{error.what}; {error.fix}"
    return None


_REASON = _why_not()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
DIGITS = recipes.folder() / "examples" / "digits"


def digits(*names: str) -> list[str]:
    return [str(DIGITS / name) for name in names]


def amax(table: Any) -> dict[str, tuple[float, ...]]:
    return {entry.tensor: entry.amax for entry in table.ranges}


@pytest.mark.parametrize("model", ["plain", "quantized"])
def test_a_model_computes_what_it_computes_on_the_cpu(model: str) -> None:
    made = graphs.conv_relu() if model == "plain" else graphs.quantized_conv(scale=0.02)
    shape = (1, 3 if model == "plain" else 4, 8, 8)
    feeds = {"x": np.random.default_rng(0).standard_normal(shape, np.float32)}
    on_cpu = open_runner(made.SerializeToString(), description="").run(feeds)
    with computing_on(DEVICE) as use:
        elsewhere = open_runner(made.SerializeToString(), description="").run(feeds)
    assert use.notes()[0].startswith(f"models ran on the device {DEVICE}")
    for name, values in on_cpu.items():
        assert np.abs(values - elsewhere[name]).max() <= 1e-5 * max(1.0, np.abs(values).max())


def test_the_ranges_and_the_choices_are_those_of_the_cpu() -> None:
    model, samples = digits("digits.onnx", "calibration.npz")
    on_cpu = qdqtool.calibrate(model, samples)
    elsewhere = qdqtool.calibrate(model, samples, device=DEVICE)
    assert (on_cpu.provider, elsewhere.provider) == (CPU.name, NAME)
    assert [entry.method for entry in on_cpu.ranges] == [entry.method for entry in elsewhere.ranges]
    for tensor, value in amax(on_cpu).items():
        assert amax(elsewhere)[tensor] == pytest.approx(value, rel=1e-3), tensor


def test_every_session_that_computes_is_on_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sessions on the CPU are those of the writer, which checks that a model opens."""
    real = onnxruntime.InferenceSession
    opened: list[str] = []

    class Watched(real):  # type: ignore[misc,valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            if not any("backends/writing.py" in frame.filename for frame in traceback.extract_stack()):
                opened.append(self.get_providers()[0])

    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    model, samples = digits("digits.onnx", "calibration.npz")
    qdqtool.quantize(model, samples, device=DEVICE)
    assert opened
    assert set(opened) == {NAME}
    opened.clear()
    qdqtool.compare(model, model, samples, device=DEVICE, inside=True)
    assert len(opened) >= 4
    assert set(opened) == {NAME}
    opened.clear()
    qdqtool.sensitivity(model, samples, device=DEVICE)
    assert set(opened) == {NAME}


def test_the_command_of_the_contract_names_the_provider(tmp_path: Path) -> None:
    model, samples = digits("digits.onnx", "calibration.npz")
    command = [
        "quantize",
        model,
        "--samples",
        samples,
        "-o",
        str(tmp_path / "q.onnx"),
        "--device",
        DEVICE,
    ]
    assert run(command) == 0
    table = tmp_path / "calibration.json"
    assert run(["calibrate", model, "--samples", samples, "-o", str(table), "--device", DEVICE]) == 0
    assert json.loads(table.read_text())["data"]["provider"] == NAME


@pytest.mark.rtx
def test_a_whole_run_reports_the_same(tmp_path: Path) -> None:
    model, samples, evaluation, labels = digits(
        "digits.onnx", "calibration.npz", "evaluation.npz", "labels.npy"
    )
    found = {
        device: qdqtool.run(
            model, samples, tmp_path / device, eval_samples=evaluation, labels=labels, device=device
        )
        for device in ("cpu", DEVICE)
    }
    on_cpu, elsewhere = found["cpu"], found[DEVICE]
    assert json.loads((tmp_path / DEVICE / "calibration.json").read_text())["data"]["provider"] == NAME
    assert json.loads((tmp_path / DEVICE / "accuracy.json").read_text())["data"]["provider"] == NAME
    assert "provider" not in json.loads((tmp_path / "cpu/calibration.json").read_text())["data"]
    assert on_cpu.verdict == elsewhere.verdict
    assert on_cpu.summary.realised_nodes == elsewhere.summary.realised_nodes
    assert on_cpu.summary.kernels == elsewhere.summary.kernels
    assert on_cpu.comparison is not None
    assert elsewhere.comparison is not None
    assert on_cpu.comparison.sqnr is not None
    assert elsewhere.comparison.sqnr is not None
    assert elsewhere.comparison.sqnr.sqnr_db == pytest.approx(on_cpu.comparison.sqnr.sqnr_db, abs=0.2)
    assert [entry.candidate for entry in elsewhere.comparison.task] == pytest.approx(
        [entry.candidate for entry in on_cpu.comparison.task], abs=0.3
    )


def test_a_run_for_another_device_is_not_up_to_date(tmp_path: Path) -> None:
    from qdqtool.pipeline.request import RunRequest
    from qdqtool.pipeline.runner import start

    model, samples = digits("digits.onnx", "calibration.npz")
    for device in ("cpu", DEVICE):
        chosen = recipes.load("conv-int8", ["calibrate.method=max", f"compute.device={device}"])
        start(
            RunRequest(
                model=Path(model),
                recipe=chosen,
                samples=samples,
                eval_samples=None,
                labels=None,
                out=tmp_path,
            ),
            "calibrate",
        )
        data = json.loads((tmp_path / "calibration.json").read_text())["data"]
        assert data.get("provider", CPU.name) == (CPU.name if device == "cpu" else NAME)


def test_models_are_timed_on_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(save(graphs.conv_relu(), tmp_path))
    few = ["--rounds", "2", "--iterations", "3", "--warm-up", "0"]
    assert run(["time", model, "--device", DEVICE, *few]) == 0
    assert f"on {DEVICE}" in capsys.readouterr().out


def test_a_sweep_measures_times_on_the_device(tmp_path: Path) -> None:
    """With the device's own INT8 kernels and real noise, not in the exact form that measures accuracy."""
    pytest.importorskip("optuna", reason="sweeps need the extra sweep")
    model = str(save(models.concat_cnn(), tmp_path))
    settings = (
        'sweep.space={"calibrate.method": [max, mse]}',
        "sweep.keep_float=[0]",
        "sweep.speed=measured",
        "calibrate.symmetric=always",
    )
    words = [word for setting in settings for word in ("--set", setting)]
    out = tmp_path / "out"
    command = ["sweep", model, "--samples", "random:2", "--device", DEVICE, "--out", str(out), *words]
    assert run(command) == 0
    data = json.loads((out / "sweep.json").read_text())["data"]
    assert (data["speed"], data["device"]) == ("measured", f"onnxruntime on {DEVICE}")
    for trial in data["trials"]:
        outcome = trial["outcome"]
        assert 0 < outcome["ms_low"] < outcome["ms_high"]
        assert outcome["ms"] != data["floats"][0]["ms"]


def test_doctor_says_that_the_device_works() -> None:
    from qdqtool.backends.inventory import take_inventory

    items = {item.name: item for item in take_inventory().items}
    assert items[f"device {DEVICE}"].state == "works", items[f"device {DEVICE}"]


def test_a_device_that_the_provider_does_not_have_is_refused() -> None:
    model = load(DIGITS / "digits.onnx")
    with pytest.raises((MissingPackage, InputFileError)), computing_on(ABSENT):
        open_model(model, description="")

"""`weights.equalize`: the float network computes the same, what is written is what was collected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.calibration.histograms import load_histograms
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import undo_rounding, with_changes
from qdqtool.graph.sparse import sparse_nodes, sparsify
from qdqtool.pipeline import recipes, runner
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges.decisions import TableRequest, _change_request
from qdqtool.pipeline.ranges.equalization import equalization
from qdqtool.pipeline.request import RunRequest
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner
from tests import models


def outlier_network(folder: Path) -> Path:
    """A normalization whose third channel is 60 times larger than the others, and layers behind it that hardly use it."""
    s = models.Sketch(1)
    x = s.input("x", ["N", 4, 32])
    gamma = np.ones(32, np.float32)
    gamma[3] = 60
    first, second = (s.random.standard_normal((32, 32)).astype(np.float32) / 6 for _ in range(2))
    first[3] /= 60
    y = s.node(
        "LayerNormalization",
        [x, s.constant("gamma", gamma), s.constant("beta", np.zeros(32, np.float32))],
        "n",
        name="norm",
        axis=-1,
    )
    y = s.node("MatMul", [y, s.constant("w1", first)], "h", name="fc1")
    y = s.node("Relu", [y], "a", name="act")
    s.output(s.node("MatMul", [y, s.constant("w2", second)], "y", name="fc2"), ["N", 4, 32])
    models.save(s.model(), folder)
    values = np.random.default_rng(0).standard_normal((80, 4, 32)).astype(np.float32)
    np.savez(folder / "s.npz", x=values)
    return folder / "model.onnx"


def calibrated(folder: Path, *changes: str) -> tuple[Path, Path]:
    model, out = outlier_network(folder), folder / "t.json"
    words = ["calibrate", str(model), "--samples", str(folder / "s.npz"), "--recipe", "transformer-int8"]
    sets = [word for change in changes for word in ("--set", change)]
    assert run([*words, "-o", str(out), *sets]) == 0
    return model, out


def test_outlier_channels_go_into_the_weights_and_the_float_model_stays_the_same(tmp_path: Path) -> None:
    path, out = calibrated(tmp_path, "weights.equalize=smooth")
    table = CALIBRATION.read(out)
    assert table.weights is not None
    assert {"gamma", "w1"} <= set(table.weights.values)
    plain = load(path)
    x = np.load(tmp_path / "s.npz")["x"][:8]
    wanted, found = (
        open_runner(serialize(each), description="test").run({"x": x})["y"]
        for each in (plain, undo_rounding(plain, table))
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("method", ["smooth", "cross-layer", "auto"])
def test_equalized_weights_keep_the_pattern_of_sparse_tensor_cores(method: str, tmp_path: Path) -> None:
    """Each weight is multiplied by factors, so its zeros stay."""
    path = outlier_network(tmp_path)
    path.write_bytes(serialize(sparsify(load(path))[0]))
    out = tmp_path / "t.json"
    words = ["calibrate", str(path), "--samples", str(tmp_path / "s.npz"), "--recipe", "transformer-int8"]
    assert run([*words, "-o", str(out), "--set", f"weights.equalize={method}"]) == 0
    table, plain = CALIBRATION.read(out), load(path)
    assert sparse_nodes(plain.view) == ("fc1", "fc2")
    assert sparse_nodes(undo_rounding(plain, table).view) == ("fc1", "fc2")
    assert method != "smooth" or (table.weights is not None and "w1" in table.weights.values)


def test_smoothing_makes_the_quantized_outputs_less_noisy(tmp_path: Path) -> None:
    noise = []
    for number, way in enumerate(("none", "smooth")):
        folder = tmp_path / str(number)
        folder.mkdir()
        path, out = calibrated(folder, f"weights.equalize={way}", "weights.rounding=nearest")
        placement, target = folder / "p.json", folder / "q.onnx"
        assert run(["place", str(path), "-o", str(placement), "--recipe", "transformer-int8"]) == 0
        words = ["insert", str(path), "--placement", str(placement), "--calibration", str(out)]
        assert run([*words, "-o", str(target), "--recipe", "transformer-int8"]) == 0
        x = np.load(folder / "s.npz")["x"]
        one, two = (open_runner(each, description="test").run({"x": x})["y"] for each in (path, target))
        noise.append(float(np.square(one - two).sum()))
    assert noise[1] < noise[0] / 2


def test_layers_in_a_row_get_the_same_ranges_per_channel(tmp_path: Path) -> None:
    _, out = calibrated(tmp_path, "weights.equalize=cross-layer")
    table = CALIBRATION.read(out)
    assert table.weights is not None
    front = np.abs(table.weights.values["w1"]).max(axis=0)
    np.testing.assert_allclose(front, np.abs(table.weights.values["w2"]).max(axis=1), rtol=0.01)


def test_weights_that_meet_large_inputs_are_protected_with_factors_in_front(tmp_path: Path) -> None:
    path = outlier_network(tmp_path)
    recipe = recipes.load("llm-int4-weights", ("weights.equalize=awq", "place.block=16"))
    model = load(path)
    samples = open_samples(str(tmp_path / "s.npz"), model.view.inputs)
    changes = equalization(model, decide(model.view, recipe.placing), recipe, samples)
    assert changes is not None
    assert "w1" in changes.values
    changed = with_changes(model, changes)
    x = np.load(tmp_path / "s.npz")["x"][:8]
    wanted, found = (
        open_runner(serialize(each), description="test").run({"x": x})["y"] for each in (model, changed)
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * float(np.abs(wanted).max()))


def test_what_quantize_writes_has_the_equalized_constants(tmp_path: Path) -> None:
    path = outlier_network(tmp_path)
    words = ["quantize", str(path), "--samples", str(tmp_path / "s.npz"), "-o", str(tmp_path / "q.onnx")]
    assert run([*words, "--recipe", "transformer-int8", "--set", "weights.equalize=smooth"]) == 0
    written = onnx.load(tmp_path / "q.onnx")
    kept = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    assert float(np.abs(kept["gamma"]).max()) < 60


def test_a_tensor_inside_with_nan_is_skipped_wherever_histograms_are_collected(tmp_path: Path) -> None:
    """In a run, and again for an equalized network."""
    s = models.Sketch()
    y = s.node("Sqrt", [s.input("x", [1, 16, 8, 8])], "root", name="root")
    s.output(s.conv("conv", y, (16, 16)), [1, 16, 8, 8])
    models.save(s.model(), tmp_path)
    values = np.random.default_rng(0).uniform(0.1, 1, (8, 16, 8, 8)).astype(np.float32)
    values[3] *= -1
    np.savez(tmp_path / "s.npz", x=values)
    samples = str(tmp_path / "s.npz")
    recipe = recipes.load("conv-int8", ["samples.nan=skip"])
    order = RunRequest(
        model=tmp_path / "model.onnx",
        recipe=recipe,
        samples=samples,
        eval_samples=None,
        labels=None,
        out=tmp_path / "run",
    )
    runner.start(order, "collect")
    histograms = load_histograms(tmp_path / "run" / "histograms.npz")
    assert histograms.tensors["root"].nan == 16 * 8 * 8
    asked = CalibrationRequest(
        model=order.model, recipe=recipes.load("conv-int8", []), samples=samples, on_nan="skip"
    )
    job = Calibration(asked)
    request = TableRequest(
        model=job.model,
        placement=job.placement,
        histograms=histograms,
        constants=job.constants,
        recipe=job.request.recipe,
    )
    again = _change_request(request, WeightChanges(), job.samples)
    assert again.histograms.tensors["root"].nan == 16 * 8 * 8

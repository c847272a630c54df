"""Exports with dimensions of -1 and old opsets run, and an opset that was raised wrongly is told as our mistake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import PrepareOptions
from qdqtool.errors import Bug
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline.same_function import check_conversion
from tests import models


def paddle_like() -> onnx.ModelProto:
    """What PaddlePaddle's exporter writes: opset 11, dims of -1, wrong shapes noted, shape arithmetic, Softmax."""
    s = models.Sketch()
    x = s.input("image", [-1, 3, 8, 8])
    x = s.relu("relu", s.conv("conv", x, (3, 8)))
    x = s.batchnorm("norm", x, 8)
    x = s.node("GlobalAveragePool", [x], "pool")
    shape = s.node("Shape", [x], "shape")
    ends = [s.constant(name, np.array([value])) for name, value in (("zero", 0), ("one", 1))]
    batch = s.node("Slice", [shape, *ends], "batch")
    to = s.node("Concat", [batch, s.constant("rest", np.array([8]))], "to", axis=0)
    x = s.node("Reshape", [x, to], "flat")
    x = s.node("Gemm", [x, s.weight("fc_w", 8, 4), s.weight("fc_b", 4)], "scores")
    s.output(s.node("Softmax", [x], "probabilities", axis=1), [-1, 4])
    proto = s.model(opset=11)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("conv_y", 1, [-1, 99, 8, 8]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("gone", 1, [-1]))
    return proto


def test_negative_dimensions_are_symbols_and_wrong_shapes_are_forgotten(tmp_path: Path) -> None:
    model = load(models.save(paddle_like(), tmp_path))
    assert model.view.inputs[0].shape == ("image_0", 3, 8, 8)
    assert model.view.info("conv_y").shape == ("image_0", 8, 8, 8)
    assert model.view.info("flat").shape == ("image_0", 8)
    assert "negative dimensions are symbols" in " ".join(model.notes)


def test_dimensions_called_by_a_question_mark_have_names_of_their_own(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.relu("relu", s.input("x", [-1, 3, "?", "?"])), ["N", 3, "?", "?"])
    assert load(models.save(s.model(), tmp_path)).view.inputs[0].shape == ("x_0", 3, "x_2", "x_3")


def test_a_model_with_negative_dimensions_is_calibrated_and_computes_the_same(tmp_path: Path) -> None:
    path = models.save(paddle_like(), tmp_path)
    model = load(path)
    feeds = {"image": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    (before,) = models.run(onnx.load(path), feeds).values()
    (after,) = models.run(model.proto, feeds).values()
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    table = tmp_path / "table.json"
    assert run(["calibrate", str(path), "--samples", "random:4,image:1x3x8x8", "-o", str(table)]) == 0
    assert table.exists()


@pytest.fixture
def raised(tmp_path: Path) -> tuple[Model, list[Sample]]:
    model = load(models.save(paddle_like(), tmp_path))
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    return model, [Sample(name="one", feeds={"image": image})]


def test_a_right_conversion_is_passed_over_in_silence(raised) -> None:
    check_conversion(*raised)


def test_a_batch_that_a_squeeze_took_away_and_now_keeps_is_no_other_result(tmp_path: Path) -> None:
    """One value per sample, of a network whose Squeeze names no axes: `prepare` names them, so that the rank is fixed."""
    s = models.Sketch()
    x = s.node("Gemm", [s.input("x", ["N", 8]), s.weight("w", 8, 1), s.weight("b", 1)], "score")
    s.output(s.node("Squeeze", [x], "flat"), ["N"])
    prepared = prepare(load(models.save(s.model(opset=11), tmp_path)), PrepareOptions())
    assert any("Squeeze" in note for note in prepared.notes)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)}
    check_conversion(prepared, [Sample(name="one", feeds=feeds)])


def test_a_conversion_that_computes_something_else_is_our_mistake(raised) -> None:
    model, samples = raised
    next(node for node in model.proto.graph.node if node.name == "relu").op_type = "Neg"
    with pytest.raises(Bug, match=r"changed what the model computes: output 'probabilities'"):
        check_conversion(model, samples)


def test_a_conversion_that_does_not_run_is_our_mistake(raised) -> None:
    model, samples = raised
    next(node for node in model.proto.graph.node if node.name == "flat").input[1] = "rest"
    with pytest.raises(Bug, match="the file runs, and what became of it by raising its opset does not"):
        check_conversion(model, samples)


def test_a_file_that_does_not_run_is_not_compared(raised) -> None:
    model, samples = raised
    model.path.write_bytes(b"")
    check_conversion(model, samples)

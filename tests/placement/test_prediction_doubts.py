"""A prediction says what it does not hold for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.audit.graphs import unrolled
from tests.placement.building import build
from tests.placement.qdq import GRAPHS, Quantized


def notes(proto: onnx.ModelProto, folder: Path) -> str:
    return " ".join(predict(load(models.save(proto, folder))).notes)


def with_scales(name: str, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    s = Quantized()
    proto = s.done(s.qconv("c", s.image()))
    for stored in proto.graph.initializer:
        if stored.name == name:
            values = change(onnx.numpy_helper.to_array(stored))
            stored.CopyFrom(onnx.numpy_helper.from_array(values, name))
    return proto


@pytest.mark.parametrize("value", [-0.05, 0.0, np.nan], ids=["negative", "zero", "not a number"])
@pytest.mark.parametrize("name", ["c_x_s", "c_w_s"], ids=["activation", "weight"])
def test_scales_that_the_parser_refuses_are_named(name: str, value: float, tmp_path: Path) -> None:
    proto = with_scales(name, lambda scale: np.full_like(scale, value))
    assert "scales that are not positive numbers" in notes(proto, tmp_path)


@pytest.mark.parametrize("name", ["c_x_s", "c_w_s"], ids=["activation", "weight"])
def test_an_infinite_scale_is_built_and_no_doubt(name: str, tmp_path: Path) -> None:
    assert notes(with_scales(name, lambda scale: np.full_like(scale, np.inf)), tmp_path) == ""


@pytest.mark.parametrize(
    ("name", "count"), [("c_w_s", 5), ("c_x_s", 0)], ids=["too few channels", "none at all"]
)
def test_numbers_of_scales_that_do_not_fit_are_named(name: str, count: int, tmp_path: Path) -> None:
    proto = with_scales(name, lambda scale: np.resize(scale, count).astype(np.float32))
    assert "numbers of scales that do not fit" in notes(proto, tmp_path)


def test_zero_points_are_named(tmp_path: Path) -> None:
    s = Quantized()
    x = s.pair(s.image(), "x", dtype=np.uint8, zero=3)
    proto = s.done(s.raw_conv("c", x, s.weights("c", 16, 16, 3, 3)))
    assert "zero points other than 0" in notes(proto, tmp_path)


def test_a_sound_model_leaves_no_doubt(tmp_path: Path) -> None:
    assert notes(GRAPHS["chain_ok"](), tmp_path) == ""


def test_recurrences_and_grouped_normalizations_are_told_as_kernels_not_foreseen(tmp_path: Path) -> None:
    assert "'lstm', are shown as one layer each" in notes(unrolled(), tmp_path)
    assert "recurrence" not in " ".join(
        predict(load(models.save(unrolled(), tmp_path)), Target.parse("10")).notes
    )
    s = Quantized()
    y = s.node("Reshape", [s.image(), s.constant("groups", np.array([1, 2, -1]))], "r", name="r")
    ones = [s.constant(name, np.ones(2, np.float32)) for name in ("one", "other")]
    proto = s.done(s.node("InstanceNormalization", [y, *ones], "n", name="norm"))
    assert "'norm', are kernels of their own" in notes(proto, tmp_path)


@pytest.mark.parametrize("op", ["LRN", "MeanVarianceNormalization"])
def test_operators_that_are_several_kernels_are_told(op: str, tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.relu("before", s.conv("c0", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.node(op, [x], "y", name="op", **({"size": 5} if op == "LRN" else {"axes": [0, 2, 3]}))
    s.output(s.conv("c1", s.relu("after", y), (8, 8)))
    proto = s.model()
    assert f"1 {op} node, the first 'op'" in notes(proto, tmp_path)
    assert sum("op" in layer.onnx_nodes for layer in build(proto).kernels) >= 3


def test_float_products_of_one_row_are_told(tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.node(
        "MatMul", [s.node("Relu", [s.input("x", [1, 64])], "r"), s.weight("w", 64, 32)], "y", name="mm"
    )
    s.output(s.node("Sigmoid", [y], "z"))
    proto = s.model()
    assert "1 float product of one row, the first 'mm'" in notes(proto, tmp_path)
    assert any("MulSum" in layer.name for layer in build(proto).kernels)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_kernel_resamples_once(count: int, mode: str, tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.conv("c0", s.input("x", [1, 8, 8, 8]), (8, 8))
    for number in range(count):
        factors = s.constant(f"f{number}", np.array([1, 1, 2, 2], np.float32))
        y = s.relu(f"relu{number}", s.node("Resize", [y, "", factors], f"up{number}", mode=mode))
    s.output(s.conv("c1", y, (8, 8)))
    proto = s.model()
    made = [layer for layer in build(proto).kernels if layer.onnx_nodes]
    layers = predict(load(models.save(proto, tmp_path))).layers
    assert len([layer for layer in layers if not layer.beside]) == len(made)


def test_scattered_values_are_a_kernel_of_their_own(tmp_path: Path) -> None:
    s = models.Sketch()
    y = s.node("MatMul", [s.input("x", [1, 32, 64]), s.weight("a", 64, 64)], "a_y", name="first")
    places = s.constant("places", np.array([[0, 3], [0, 5]]))
    y = s.node("Relu", [s.node("ScatterND", [y, places, s.input("u", [2, 64])], "placed")], "relu")
    s.output(s.node("MatMul", [y, s.weight("b", 64, 64)], "b_y", name="last"))
    proto = s.model()
    assert len(predict(load(models.save(proto, tmp_path))).layers) == len(build(proto).kernels)


def test_several_resized_pictures_that_are_joined_are_doubted(tmp_path: Path) -> None:
    def joined(count: int) -> str:
        s = Quantized()
        scales = s.constant("scales", np.array([1, 1, 2, 2], np.float32))
        pictures = [s.input(f"x{i}", [1, 16, 16, 16]) for i in range(count)]
        parts = [
            s.node("Resize", [x, "", scales], f"resize{i}_y", name=f"resize{i}")
            for i, x in enumerate(pictures)
        ]
        others = [s.input(f"other{i}", [1, 16, 32, 32]) for i in range(2 - count)]
        return notes(s.done(s.node("Concat", [*parts, *others], "cat_y", name="cat", axis=1)), tmp_path)

    assert "Concat of several resized tensors, the first 'cat'" in joined(2)
    assert "resized" not in joined(1)


@pytest.mark.parametrize("count", [1, 2])
def test_a_pool_of_a_pool_is_not_foreseen_exactly(count: int, tmp_path: Path) -> None:
    s = Quantized()
    y = s.relu("relu", s.qconv("c0", s.image()))
    for number in range(count):
        y = s.node("MaxPool", [y], f"p{number}_y", name=f"p{number}", kernel_shape=[3, 3], pads=[1] * 4)
    proto = s.done(s.qconv("c1", y))
    assert predict(load(models.save(proto, tmp_path))).exact == (count == 1)

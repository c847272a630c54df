"""What stands around float products of one row, normalized pictures and turned pools is predicted as it is built."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.audit.graphs import Quantized
from tests.placement.building import between_products


def dense(*widths: int, batch: int | str = 1, tail: str = "Sigmoid") -> onnx.ModelProto:
    """A chain of Gemm and Relu in float, the last one with another activation."""
    s = Quantized()
    x = s.input("x", [batch, widths[0]])
    for index, (before, behind) in enumerate(itertools.pairwise(widths)):
        factors = [s.weight(f"w{index}", behind, before), s.weight(f"b{index}", behind)]
        x = s.node("Gemm", [x, *factors], f"gemm{index}", transB=1)
        x = s.node("Relu" if index + 2 < len(widths) else tail, [x], f"act{index}")
    s.output(x, [batch, widths[-1]])
    return s.model()


def normalized_row(width: int) -> onnx.ModelProto:
    """A row that a product makes is normalized, and multiplied with `width` columns."""
    s = Quantized()
    x = s.node("Gemm", [s.input("x", [1, 32]), s.weight("w", 32, 64), s.weight("b", 64)], "first")
    x = s.node("Relu", [written_norm(s, x, [1], (64,))], "relu")
    x = s.node("MatMul", [x, s.weight("v", 64, width)], "last")
    s.output(s.node("Sigmoid", [x], "end"), [1, width])
    return s.model()


def written_norm(s: Quantized, x: str, axes: list[int], shape: tuple[int, ...]) -> str:
    """A normalization as exporters of old opsets write it."""
    mean = s.node("ReduceMean", [x], "mean", axes=axes)
    centred = s.node("Sub", [x, mean], "centred")
    squares = s.node("Pow", [centred, s.constant("two", np.array(2, np.float32))], "squares")
    variance = s.node("ReduceMean", [squares], "variance", axes=axes)
    shifted = s.node("Add", [variance, s.constant("least", np.array(1e-5, np.float32))], "shifted")
    scaled = s.node("Div", [centred, s.node("Sqrt", [shifted], "root")], "scaled")
    return s.node(
        "Add",
        [s.node("Mul", [scaled, s.weight("gain", *shape)], "gained"), s.weight("shift", *shape)],
        "norm",
    )


def normalized_picture(channels: int, axes: list[int]) -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu", s.qconv("c0", s.input("x", [8, channels, 8, 8]), channels=(channels, channels)))
    x = written_norm(s, x, axes, tuple((8, channels, 8, 8)[axis] for axis in axes))
    s.output(s.qconv("c1", x, channels=(channels, channels)), [8, channels, 8, 8])
    return s.model()


def pooled_and_turned() -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu0", s.qconv("c0", s.input("x", [1, 16, 16, 16]), channels=(16, 16)))
    x = s.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
    x = s.node("Transpose", [x], "turn", perm=[0, 2, 3, 1])
    x = s.node("Reshape", [x, s.constant("flat", np.array([1, -1]))], "row")
    s.output(s.relu("relu1", s.qmatmul("mm", x, shape=(1024, 32))), [1, 32])
    return s.model()


def one_channel() -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu0", s.qconv("c0", s.input("x", [1, 16, 8, 8]), channels=(16, 16)))
    s.output(s.relu("relu1", s.qconv("c1", x, channels=(16, 1), kernel=1)), [1, 1, 8, 8])
    return s.model()


def rounded_row() -> onnx.ModelProto:
    """A float product of one row, whose result the next one reads in INT8."""
    s = Quantized()
    x = s.node("Gemm", [s.input("x", [1, 13]), s.weight("w", 64, 13), s.weight("b", 64)], "gemm", transB=1)
    s.output(s.qmatmul("mm", s.relu("relu", x), shape=(64, 32)), [1, 32])
    return s.model()


def few_summed(rows: int, summed: int, *, before: bool = False) -> onnx.ModelProto:
    """A float product that sums few values, an activation, and a quantized product."""
    s = Quantized()
    x = s.input("x", [rows, summed])
    x = s.node("Sigmoid", [x], "squashed", name="sigmoid") if before else x
    y = s.node("Gemm", [x, s.weight("w", 64, summed), s.weight("b", 64)], "small", name="first", transB=1)
    s.output(s.qmatmul("last", s.node("Relu", [y], "relu_y", name="relu"), shape=(64, 64)), [rows, 64])
    return s.model()


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "two products, one number": lambda: dense(64, 64, 1),
    "three products, one number": lambda: dense(32, 64, 16, 1, tail="Tanh"),
    "two products of a free batch": lambda: dense(64, 64, 32),
    **{
        f"{rows} by {summed}": lambda rows=rows, summed=summed: few_summed(rows, summed)
        for rows, summed in ((1, 1), (1, 2), (1, 6), (1, 7), (8, 1), (8, 2), (8, 4), (8, 5))
    },
    "8 by 3, Sigmoid in front": lambda: few_summed(8, 3, before=True),
    "1 by 4, Sigmoid in front": lambda: few_summed(1, 4, before=True),
    "normalized row, one number": lambda: normalized_row(1),
    "normalized row, many numbers": lambda: normalized_row(32),
    "10 channels normalized": lambda: normalized_picture(10, [1, 2, 3]),
    "16 channels normalized": lambda: normalized_picture(16, [1, 2, 3]),
    "32 channels normalized": lambda: normalized_picture(32, [1, 2, 3]),
    "48 channels normalized": lambda: normalized_picture(48, [1, 2, 3]),
    "every plane normalized": lambda: normalized_picture(16, [2, 3]),
    "pool in front of a Transpose": pooled_and_turned,
    "a convolution of one channel": one_channel,
    "a rounded row": rounded_row,
}


@pytest.mark.slow  # an engine for every case
@pytest.mark.parametrize("name", sorted(CASES))
def test_kernels_around_rows_are_predicted_as_the_compiler_makes_them(name: str, tmp_path: Path) -> None:
    built, predicted = between_products(CASES[name](), tmp_path)
    assert built <= predicted


@pytest.mark.parametrize("batch", [1, "batch"], ids=["one row", "a free batch"])
def test_the_last_product_of_one_number_shares_a_kernel_with_what_stands_around_it(
    batch: int | str, tmp_path: Path
) -> None:
    made = predict(load(models.save(dense(64, 64, 1, batch=batch), tmp_path)))
    assert {"act0", "gemm1", "act1"} in [set(layer.nodes) for layer in made.layers]


def test_products_of_several_rows_are_kernels_of_their_own(tmp_path: Path) -> None:
    made = predict(load(models.save(dense(64, 64, 1, batch=4), tmp_path)))
    assert {"gemm1"} in [set(layer.nodes) for layer in made.layers]
    assert not made.doubts


def test_what_is_not_foreseen_names_its_nodes(tmp_path: Path) -> None:
    made = predict(load(models.save(dense(64, 64, 1), tmp_path)))
    (doubt,) = made.doubts
    assert doubt.reason in made.notes
    assert {"gemm0", "act0"} <= set(doubt.nodes)


def test_the_nodes_of_a_body_are_in_doubt(tmp_path: Path) -> None:
    s = models.Sketch()
    s.input("x", [4, 8])
    bodies = {}
    for branch, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        result = helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [4, 8])
        inside = helper.make_node(op, ["x"], [f"{op}_y"], name=f"inside_{op}")
        bodies[branch] = helper.make_graph([inside], branch, [], [result])
    s.output(s.node("If", [s.input("c", [], TensorProto.BOOL)], "y", name="choice", **bodies), [4, 8])
    made = predict(load(models.save(s.model(), tmp_path)))
    (doubt,) = made.doubts
    assert {"choice", "inside_Relu", "inside_Neg"} <= set(doubt.nodes)
    assert "If 'choice'" in doubt.reason


def spectrum(s: models.Sketch) -> str:
    window, hop = s.constant("window", np.hanning(16).astype(np.float32)), s.constant("hop", np.int64(4))
    return s.node("STFT", [s.input("x", [1, 64]), hop, window], "told", name="told")


def gathered(s: models.Sketch) -> str:
    return s.node(
        "GatherElements",
        [s.input("x", [4, 8]), s.input("at", [4, 8], TensorProto.INT64)],
        "told",
        name="told",
    )


def whole_maximum(s: models.Sketch) -> str:
    return s.node("ReduceMax", [s.input("x", [1, 8, 16])], "told", name="told")


def row_maximum(s: models.Sketch) -> str:
    return s.node("ReduceMax", [s.input("x", [1, 8, 16])], "told", name="told", axes=[-1])


@pytest.mark.parametrize(
    ("make", "doubted"), [(spectrum, True), (gathered, True), (whole_maximum, True), (row_maximum, False)]
)
def test_kernels_that_the_shapes_decide_are_doubted(
    make: Callable[[models.Sketch], str], doubted: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    s.output(s.node("Sigmoid", [make(s)], "y", name="behind"))
    made = predict(load(models.save(s.model(), tmp_path)))
    assert [{"told", "behind"} <= set(doubt.nodes) for doubt in made.doubts] == [True] * doubted

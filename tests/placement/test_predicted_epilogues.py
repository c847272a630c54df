"""What a product's own kernel does is foreseen as TensorRT for RTX builds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.events import End
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.placement.building import build
from tests.placement.qdq import Quantized

pytestmark = pytest.mark.slow  # an engine for every case

Behind = Callable[[Quantized, str], str]


def activation(op: str, **attributes: float) -> Behind:
    return lambda s, x: s.node(op, [x], "act_y", name="act", **attributes)


def clipped(s: Quantized, x: str) -> str:
    limits = [s.constant(name, np.float32(value)) for name, value in (("low", 0), ("high", 6))]
    return s.node("Clip", [x, *limits], "act_y", name="act")


def silu(s: Quantized, x: str) -> str:
    return s.node("Mul", [x, s.node("Sigmoid", [x], "gate_y", name="gate")], "act_y", name="act")


def residual(s: Quantized, x: str) -> str:
    shortcut = s.relu("side", s.input("z", [1, 16, 16, 16]))
    return s.relu("act", s.node("Add", [x, shortcut], "sum", name="add"))


def biased(s: Quantized, x: str) -> str:
    bias = s.constant("bias_v", np.ones((1, 16, 1, 1), np.float32))
    return s.relu("act", s.node("Add", [x, bias], "biased", name="bias"))


def convolved(s: Quantized, x: str) -> str:
    return s.raw_conv("next", silu(s, x), s.weight("next_w", 16, 16, 3, 3))


def agree(proto: onnx.ModelProto, product: str, folder: Path) -> frozenset[str]:
    """The nodes that the kernel of `product` holds, foreseen and built alike."""
    told = predict(load(models.save(proto, folder)))
    foreseen = next(layer.nodes for layer in told.layers if product in layer.nodes)
    built = build(proto)
    assert not built.error
    ready = {End.FOLDED, End.MERGED, End.WEIGHT}
    pairs = {row.node for row in told.ledger if row.kind == "DQ" or row.end in ready}
    own = [set(kernel.onnx_nodes) - pairs for kernel in built.kernels if kernel.kind != "kgen"]
    real = next(nodes for nodes in own if product in nodes)
    assert real == set(foreseen) - pairs
    return frozenset(foreseen) - pairs


@pytest.mark.parametrize(
    ("behind", "taken"),
    [
        pytest.param(activation("Relu"), {"act"}, id="Relu"),
        pytest.param(activation("Sigmoid"), {"act"}, id="Sigmoid"),
        pytest.param(activation("Tanh"), {"act"}, id="Tanh"),
        pytest.param(clipped, {"act"}, id="Clip"),
        pytest.param(residual, {"add", "act"}, id="residual Add and Relu"),
        pytest.param(biased, {"bias", "act"}, id="bias and Relu"),
        pytest.param(activation("LeakyRelu"), set(), id="LeakyRelu"),
        pytest.param(activation("HardSwish"), set(), id="HardSwish"),
        pytest.param(activation("Elu"), set(), id="Elu"),
        pytest.param(silu, set(), id="SiLU"),
    ],
)
def test_a_convolution_with_one_weight_scale_takes_along(
    behind: Behind, taken: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    y = behind(s, s.qconv("c", s.image(), axis=None))
    assert agree(s.done(s.pair(y, "out")), "c", tmp_path) == {"c", *taken}


@pytest.mark.parametrize(("product", "taken"), [("c", set()), ("later", {"add", "act"})])
def test_of_two_summed_convolutions_the_later_one_takes_the_sum(
    product: str, taken: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    x = s.image()
    both = [s.qconv(name, x, axis=None) for name in ("c", "later")]
    y = s.relu("act", s.node("Add", both, "sum", name="add"))
    assert agree(s.done(s.pair(y, "out")), product, tmp_path) == {product, *taken}


def test_a_depthwise_convolution_takes_along_what_a_dense_one_does(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    y = residual(s, s.qconv("c", s.image(), group=16, axis=None))
    assert agree(s.done(s.pair(y, "out")), "c", tmp_path) == {"c", "add", "act"}


@pytest.mark.parametrize(
    ("group", "axis"), [(1, 0), (4, None)], ids=["a scale per channel", "groups of several channels"]
)
def test_a_convolution_leaves_its_activation_to_the_next_kernel_with(
    group: int, axis: int | None, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    y = s.relu("act", s.qconv("c", s.image(), group=group, axis=axis))
    assert agree(s.done(s.pair(y, "out")), "c", tmp_path) == {"c"}


@pytest.mark.parametrize(
    ("behind", "taken"),
    [
        pytest.param(convolved, {"gate", "act"}, id="a float Conv reads"),
        pytest.param(lambda s, x: s.pair(silu(s, x), "out"), set(), id="a Q reads"),
        pytest.param(silu, set(), id="the model returns"),
    ],
)
def test_a_float_convolution_takes_the_silu_that(behind: Behind, taken: set[str], tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    x = s.relu("before", s.image())
    proto = s.done(behind(s, s.raw_conv("c", x, s.weight("c_w", 16, 16, 3, 3))))
    assert agree(proto, "c", tmp_path) == {"c", *taken}


@pytest.mark.parametrize(("axis", "taken"), [(None, {"out/Q"}), (1, set())], ids=["one", "many"])
def test_a_matrix_product_quantizes_with_this_many_weight_scales(
    axis: int | None, taken: set[str], tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    y = s.node("MatMul", [s.pair(s.matrix(), "x"), s.weights("m", 32, 48, axis=axis)], "y", name="m")
    proto = s.done(s.node("Relu", [s.pair(y, "out")], "end", name="end"))
    assert agree(proto, "m", tmp_path) == {"m", *taken}


def layers(proto: onnx.ModelProto, folder: Path) -> set[tuple[str, ...]]:
    return {layer.nodes for layer in predict(load(models.save(proto, folder))).layers}


def kernels(proto: onnx.ModelProto) -> list[set[str]]:
    return [set(kernel.onnx_nodes) for kernel in build(proto).kernels]


@pytest.mark.parametrize("shared", [True, False], ids=["read again", "read once"])
def test_a_mean_of_values_that_are_read_again_ends_its_kernel(shared: bool, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    x = s.relu("relu", s.qconv("c", s.image()))
    gate = s.node("GlobalAveragePool", [x], "mean", name="mean")
    gate = s.node("Exp", [gate], "gate", name="exp")
    gate = s.qconv("c2", gate, kernel=1)
    y = s.node("Mul", [x, gate], "gated", name="gated") if shared else gate
    proto = s.done(y)
    whole = ("relu", "mean", "exp", "c2_x/Q")
    assert (whole in layers(proto, tmp_path)) is not shared
    assert any({"mean", "exp"} <= nodes for nodes in kernels(proto)) is not shared


@pytest.mark.parametrize("integers", [True, False], ids=["INT8 values", "float values"])
def test_a_q_behind_a_pool_stays_in_its_kernel_for(integers: bool, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    s = Quantized()
    x = s.relu("relu", s.qconv("c", s.image()))
    x = s.pair(x, "pool_x", 0.07) if integers else x
    y = s.node("MaxPool", [x], "pooled", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    proto = s.done(s.qconv("c2", y))
    assert (("pool", "c2_x/Q") in layers(proto, tmp_path)) is integers
    assert any({"pool", "c2_x/Q"} <= nodes for nodes in kernels(proto)) is integers

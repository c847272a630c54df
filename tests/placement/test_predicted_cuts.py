"""Where the compiler cuts stretches between products, as predicted and as built."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.build import BuildRequest
from qdqtool.core.engine import Role
from qdqtool.engine.read import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from qdqtool.trt.ops import PRODUCTS
from tests.audit.graphs import Quantized
from tests.models import save

ROWS, WIDTH = 32, 64


def normalized(s: Quantized, x: str, width: int = WIDTH) -> str:
    return s.node(
        "LayerNormalization", [x, s.weight("g", width), s.weight("b", width)], "ln_y", name="ln", axis=-1
    )


def softmax(s: Quantized, x: str) -> str:
    return s.node("Softmax", [x], "sm_y", name="sm", axis=-1)


def length(s: Quantized, x: str) -> str:
    y = s.node("ReduceL2", [x], "l2_y", name="l2", axes=[-1], keepdims=1)
    return s.node("Div", [x, y], "div_y", name="div")


def mean_square(s: Quantized, x: str) -> str:
    y = s.node(
        "ReduceMean", [s.node("Mul", [x, x], "sq_y", name="sq")], "mean_y", name="mean", axes=[-1], keepdims=1
    )
    return s.node("Div", [x, y], "div_y", name="div")


def plain(s: Quantized, x: str) -> tuple[str, list[int]]:
    return x, [1, ROWS, WIDTH]


def turned(s: Quantized, x: str) -> tuple[str, list[int]]:
    y = s.node(
        "Reshape", [x, s.constant("heads", np.array([1, ROWS, 4, WIDTH // 4]))], "heads_y", name="heads"
    )
    return s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 1, 3]), [1, 4, ROWS, WIDTH // 4]


def first_half(s: Quantized, x: str) -> tuple[str, list[int]]:
    ends = [s.constant(name, np.array([value])) for name, value in (("s0", 0), ("s1", ROWS // 2), ("s2", 1))]
    return s.node("Slice", [x, *ends], "slice_y", name="slice"), [1, ROWS // 2, WIDTH]


def joined(s: Quantized, x: str) -> tuple[str, list[int]]:
    return s.node("Concat", [x, s.input("z", [1, ROWS, WIDTH])], "cat_y", name="cat", axis=1), [
        1,
        2 * ROWS,
        WIDTH,
    ]


def stretch(total: Callable[..., str], tail: Callable[..., tuple[str, list[int]]]) -> Quantized:
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, WIDTH))
    y = s.node("Add", [y, s.weight("bias_w", WIDTH)], "bias_y", name="bias")
    y, shape = tail(s, total(s, y))
    s.output(s.qmatmul("last", y, shape=(shape[-1], WIDTH)), [*shape[:-1], WIDTH])
    return s


def turned_before(size: int) -> Quantized:
    """A convolution, its channels put last, and their normalization."""
    s = Quantized()
    y = s.qconv("first", s.input("x", [1, 32, 1, size]), channels=(32, 32))
    y = s.node("Transpose", [y], "t_y", name="t", perm=[0, 2, 3, 1])
    s.output(s.qmatmul("last", normalized(s, y, 32), shape=(32, 32)), [1, 1, size, 32])
    return s


def long_row(size: int) -> Quantized:
    s = Quantized()
    y = s.node("Mul", [s.input("x", [1, 8, size]), s.weight("factor", size)], "mul_y", name="mul")
    s.output(normalized(s, y, size), [1, 8, size])
    return s


def one_product(*, bias: bool = True, tanh: bool = False) -> Quantized:
    """Queries, keys and values of one matrix product."""
    s = Quantized()
    y = s.qmatmul("first", s.input("x", [1, ROWS, WIDTH]), shape=(WIDTH, 3 * WIDTH))
    y = s.node("Add", [y, s.weight("bias_w", 3 * WIDTH)], "bias_y", name="bias") if bias else y
    y = s.node("Reshape", [y, s.constant("parts", np.array([1, ROWS, 3, 4, 16]))], "parts_y", name="parts")
    y = s.node("Transpose", [y], "t_y", name="t", perm=[2, 0, 3, 1, 4])
    q, k, v = (
        s.node("Gather", [y, s.constant(f"i{i}", np.array(i))], f"pick{i}_y", name=f"pick{i}", axis=0)
        for i in range(3)
    )
    q = s.node("Tanh", [q], "tanh_y", name="tanh") if tanh else q
    k = s.node("Transpose", [k], "k_t", name="k_turn", perm=[0, 1, 3, 2])
    y = s.node("MatMul", [s.qdq("q", q, 0.05), s.qdq("k", k, 0.06)], "scores_y", name="scores")
    y = s.qdq("p", s.node("Softmax", [y], "probs", name="softmax", axis=-1), 0.0079)
    y = s.node("MatMul", [y, s.qdq("v", v, 0.07)], "values_y", name="values")
    y = s.node("Transpose", [y], "back_y", name="back", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("merge", np.array([1, ROWS, WIDTH]))], "merge_y", name="merge")
    s.output(s.qmatmul("last", y, shape=(WIDTH, WIDTH)), [1, ROWS, WIDTH])
    return s


def pooled(size: int) -> Quantized:
    s = Quantized()
    y = s.qdq("pool_x", s.qconv("first", s.input("x", [1, 8, 16, 16])), 0.03)
    pads = [size // 2] * 4
    y = s.node("AveragePool", [y], "pool_y", name="pool", kernel_shape=[size] * 2, strides=[1, 1], pads=pads)
    s.output(s.qconv("last", y), [1, 8, 16, 16])
    return s


CASES = {
    **{
        f"{total.__name__} {tail.__name__}": stretch(total, tail)
        for total in (normalized, softmax, length, mean_square)
        for tail in (plain, turned, first_half, joined)
    },
    "small Transpose in front": turned_before(2303),
    "large Transpose in front": turned_before(2304),
    "row of 8192": long_row(8192),
    "row of 16384": long_row(16384),
    "one product for all three": one_product(),
    "one product without bias": one_product(bias=False),
    "one product with Tanh": one_product(tanh=True),
    "average of 3x3": pooled(3),
    "average of 5x5": pooled(5),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_kernels_between_products_are_predicted_as_the_compiler_makes_them(tmp_path, name: str):
    path = save(CASES[name].model(), tmp_path)
    RTX.build(BuildRequest(model=path, folder=tmp_path, targets=("sm86",)))
    model = load(path)
    products = {node.name for node in model.view.nodes if node.op in PRODUCTS}
    silent = products | {node.name for node in model.view.nodes if node.op == "DequantizeLinear"}
    weights = {node.name for node in model.view.nodes if model.view.is_constant(node.inputs[0])}
    built = {
        frozenset(layer.onnx_nodes) - silent - weights
        for layer in read(tmp_path / "layers.txt").layers
        if layer.role is not Role.COMPUTE
    }
    built.discard(frozenset())
    named = frozenset().union(*built)
    predicted = {frozenset(layer.nodes) & named for layer in predict(model).layers}
    assert built <= predicted

"""Small Q/DQ graphs, one per thing that keeps a node from INT8, with the precision each compute node ends up with.

What each becomes in TensorRT for RTX (SM86) was found by building it; `test_verdicts_on_builds.py` builds them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tests.models import Sketch


class Quantized(Sketch):
    """A sketch that also writes Q/DQ pairs; node names are `<name>/Q` and `<name>/DQ`."""

    def qdq(self, name: str, x: str, scale: Any = 0.05, axis: int | None = None) -> str:
        """A Q/DQ pair behind `x`; `scale` may be an array."""
        value = np.asarray(scale, np.float32)
        names = [
            self.constant(f"{name}_s", value),
            self.constant(f"{name}_z", np.zeros(value.shape, np.int8)),
        ]
        extra = {} if axis is None else {"axis": axis}
        y = self.node("QuantizeLinear", [x, *names], f"{name}_q", name=f"{name}/Q", **extra)
        return self.node("DequantizeLinear", [y, *names], f"{name}_dq", name=f"{name}/DQ", **extra)

    def qconv(
        self,
        name: str,
        x: str,
        *,
        channels: tuple[int, int] = (8, 8),
        act: Any = 0.05,
        weight: bool = True,
        **more: Any,
    ) -> str:
        """A 3x3 Conv with bias behind Q/DQ pairs; `act=None` or `weight=False` leaves one out."""
        data = x if act is None else self.qdq(f"{name}_x", x, act, 1 if np.ndim(act) else None)
        kernel = more.pop("kernel", 3)
        values = self.weight(f"{name}_w", channels[1], channels[0] // more.get("group", 1), kernel, kernel)
        if weight:
            values = self.qdq(f"{name}_w", values, np.full(channels[1], 0.01), 0)
        bias = self.weight(f"{name}_b", channels[1])
        pads = [kernel // 2] * 4
        return self.node("Conv", [data, values, bias], f"{name}_y", name=name, pads=pads, **more)

    def qmatmul(
        self,
        name: str,
        x: str,
        *,
        shape: tuple[int, int] = (32, 32),
        axis: int = 1,
        act: bool = True,
        weight: bool = True,
    ) -> str:
        """A MatMul with a constant behind Q/DQ pairs."""
        data = self.qdq(f"{name}_x", x) if act else x
        values = self.weight(f"{name}_w", *shape)
        if weight:
            values = self.qdq(f"{name}_w", values, np.full(shape[axis], 0.01), axis)
        return self.node("MatMul", [data, values], f"{name}_y", name=name)


def _chain(**second: Any) -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu", s.qconv("c1", s.input("x", [1, 8, 16, 16])))
    y = s.qconv("c2", x, **second)
    s.output(s.relu("relu2", s.qconv("c3", s.relu("relu3", y))), [1, 8, 16, 16])
    return s.model()


def fine() -> onnx.ModelProto:
    return _chain()


def float_weight() -> onnx.ModelProto:
    return _chain(weight=False)


def float_activation() -> onnx.ModelProto:
    return _chain(act=None)


def scale_of_rank_one() -> onnx.ModelProto:
    s = Quantized()
    data = s.qdq("c1_x", s.input("x", [1, 8, 16, 16]), [0.05])
    weight = s.qdq("c1_w", s.weight("c1_w", 8, 8, 3, 3), np.full(8, 0.01), 0)
    s.output(s.node("Conv", [data, weight], "y", name="c1", pads=[1] * 4), [1, 8, 16, 16])
    return s.model()


def scale_per_channel() -> onnx.ModelProto:
    return _chain(act=np.full(8, 0.05))


def unequal_concat() -> onnx.ModelProto:
    s = Quantized()
    x = s.input("x", [1, 8, 16, 16])
    left = s.qdq("left", s.relu("r1", s.qconv("c1", x)), 0.05)
    right = s.qdq("right", s.relu("r2", s.qconv("c2", x)), 0.02)
    y = s.node("Concat", [left, right], "cat_y", name="cat", axis=1)
    s.output(s.qconv("c3", y, channels=(16, 8), act=None), [1, 8, 16, 16])
    return s.model()


def transposed_conv() -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu", s.qconv("c1", s.input("x", [1, 8, 16, 16])))
    weight = s.qdq("up_w", s.weight("up_w", 8, 8, 2, 2), np.full(8, 0.01), 1)
    s.output(
        s.node("ConvTranspose", [s.qdq("up_x", x), weight], "y", name="up", strides=[2, 2]), [1, 8, 32, 32]
    )
    return s.model()


def one_matrix_quantized() -> onnx.ModelProto:
    s = Quantized()
    a, b = s.input("a", [2, 32, 32]), s.input("b", [2, 32, 32])
    s.output(s.node("MatMul", [s.qdq("a_x", a), b], "y", name="mm"), [2, 32, 32])
    return s.model()


def both_matrices_quantized() -> onnx.ModelProto:
    s = Quantized()
    a, b = s.input("a", [2, 32, 32]), s.input("b", [2, 32, 32])
    s.output(s.node("MatMul", [s.qdq("a_x", a), s.qdq("b_x", b)], "y", name="mm"), [2, 32, 32])
    return s.model()


def matmul(**more: Any) -> onnx.ModelProto:
    s = Quantized()
    s.output(s.qmatmul("mm", s.input("x", [1, 16, 32]), **more), [1, 16, 32])
    return s.model()


def matmul_wrong_axis() -> onnx.ModelProto:
    return matmul(axis=0)


def matmul_float_weight() -> onnx.ModelProto:
    return matmul(weight=False)


def matmul_float_activation() -> onnx.ModelProto:
    return matmul(act=False)


def weight_behind_transpose() -> onnx.ModelProto:
    s = Quantized()
    weight = s.qdq("mm_w", s.weight("mm_w", 32, 32), np.full(32, 0.01), 0)
    turned = s.node("Transpose", [weight], "w_t", name="turn", perm=[1, 0])
    s.output(
        s.node("MatMul", [s.qdq("mm_x", s.input("x", [1, 16, 32])), turned], "y", name="mm"), [1, 16, 32]
    )
    return s.model()


def cast_between() -> onnx.ModelProto:
    """The weight goes to FP16 and back between DequantizeLinear and Conv."""
    s = Quantized()
    weight = s.qdq("c1_w", s.weight("c1_w", 8, 8, 3, 3), np.full(8, 0.01), 0)
    half = s.node("Cast", [weight], "half", name="to_half", to=onnx.TensorProto.FLOAT16)
    back = s.node("Cast", [half], "single", name="to_single", to=onnx.TensorProto.FLOAT)
    data = s.qdq("c1_x", s.input("x", [1, 8, 16, 16]))
    s.output(s.node("Conv", [data, back], "y", name="c1", pads=[1] * 4), [1, 8, 16, 16])
    return s.model()


def moves_between() -> onnx.ModelProto:
    """Slice, Pad and Transpose between DequantizeLinear and the node that reads it."""
    s = Quantized()
    data = s.qdq("c1_x", s.input("x", [1, 16, 8, 8]))
    bounds = [s.constant(name, np.array([value])) for name, value in (("low", 0), ("high", 8), ("axis", 1))]
    part = s.node("Slice", [data, *bounds], "part", name="slice")
    pads = s.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    part = s.node("Pad", [part, pads], "padded", name="pad")
    weight = s.qdq("c1_w", s.weight("c1_w", 3, 3, 8, 8), np.full(8, 0.01), 3)
    turned = s.node("Transpose", [weight], "turned", name="turn", perm=[3, 2, 0, 1])
    s.output(s.node("Conv", [part, turned], "y", name="c1"), [1, 8, 8, 8])
    return s.model()


def turned_axis() -> onnx.ModelProto:
    """The scales of a weight run along its output channels before a Transpose makes them input channels."""
    s = Quantized()
    weight = s.qdq("c1_w", s.weight("c1_w", 16, 8, 1, 1), np.full(16, 0.01), 0)
    turned = s.node("Transpose", [weight], "turned", name="turn", perm=[1, 0, 2, 3])
    data = s.qdq("c1_x", s.input("x", [1, 16, 8, 8]))
    s.output(s.node("Conv", [data, turned], "y", name="c1"), [1, 8, 8, 8])
    return s.model()


def padded_weight() -> onnx.ModelProto:
    """A weight that is padded from 1x1 to 3x3 behind its DequantizeLinear."""
    s = Quantized()
    weight = s.qdq("c1_w", s.weight("c1_w", 8, 8, 1, 1), np.full(8, 0.01), 0)
    padded = s.node("Pad", [weight, s.constant("pads", np.array([0, 0, 1, 1] * 2))], "wide", name="pad")
    data = s.qdq("c1_x", s.input("x", [1, 8, 8, 8]))
    s.output(s.node("Conv", [data, padded], "y", name="c1", pads=[1] * 4), [1, 8, 8, 8])
    return s.model()


def twice_rounded_weight() -> onnx.ModelProto:
    s = Quantized()
    weight = s.qdq("c1_w", s.weight("c1_w", 8, 8, 3, 3), np.full(8, 0.01), 0)
    weight = s.qdq("again", weight, np.full(8, 0.011), 0)
    data = s.qdq("c1_x", s.input("x", [1, 8, 8, 8]))
    s.output(s.node("Conv", [data, weight], "y", name="c1", pads=[1] * 4), [1, 8, 8, 8])
    return s.model()


def float_transposed_conv() -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu", s.qconv("c1", s.input("x", [1, 8, 16, 16])))
    y = s.node("ConvTranspose", [x, s.weight("up_w", 8, 8, 2, 2)], "up_y", name="up", strides=[2, 2])
    s.output(s.qconv("c2", y), [1, 8, 32, 32])
    return s.model()


def squeezed() -> onnx.ModelProto:
    """A squeeze-and-excite block whose second product has four channels on one pixel."""
    s = Quantized()
    x = s.relu("relu", s.qconv("c1", s.input("x", [1, 8, 16, 16]), channels=(8, 16)))
    y = s.node("GlobalAveragePool", [x], "mean", name="mean")
    y = s.relu("relu2", s.qconv("fc1", y, channels=(16, 4), kernel=1))
    y = s.node("Sigmoid", [s.qconv("fc2", y, channels=(4, 16), kernel=1)], "gate", name="sigmoid")
    s.output(s.node("Mul", [x, y], "y", name="scaling"), [1, 16, 16, 16])
    return s.model()


def few_rows() -> onnx.ModelProto:
    """Products with matrices of two to four rows, which the builder writes as slices, multiplications and sums."""
    s = Quantized()
    for rows in (2, 3, 4):
        x = s.input(f"x{rows}", [8, rows])
        s.output(
            s.node(
                "Gemm",
                [x, s.weight(f"w{rows}", rows, 64), s.weight(f"b{rows}", 64)],
                f"y{rows}",
                name=f"fc{rows}",
            ),
            [8, 64],
        )
    return s.model()


def vector_float_weight() -> onnx.ModelProto:
    """A product of one vector, whose weight has no Q/DQ: the builder writes it as multiply and sum."""
    s = Quantized()
    y = s.qconv("c1", s.input("x", [1, 16, 8, 8]), channels=(16, 32))
    y = s.qdq("fc_x", s.node("GlobalAveragePool", [y], "mean", name="mean"))
    y = s.node("Flatten", [y], "flat_y", name="flat")
    s.output(s.node("Gemm", [y, s.weight("fc_w", 10, 32)], "y", name="fc", transB=1), [1, 10])
    return s.model()


def einsum(*, both: bool = True) -> onnx.ModelProto:
    s = Quantized()
    weight = s.weight("e_w", 32, 24)
    weight = s.qdq("e_w", weight, np.full(24, 0.01), 1) if both else weight
    data = s.qdq("e_x", s.input("x", [1, 16, 32]))
    s.output(s.node("Einsum", [data, weight], "y", name="e", equation="bij,jk->bik"), [1, 16, 24])
    return s.model()


def einsum_float_weight() -> onnx.ModelProto:
    return einsum(both=False)


def attention(
    *, quantized: tuple[str, ...] = ("q", "k", "p", "v"), scores: bool = False, projected: bool = True
) -> onnx.ModelProto:
    """softmax(q k) v with Q/DQ on the named operands ("p" is the softmax output)."""
    s = Quantized()
    x = s.input("x", [1, 64, 64])
    split = s.constant("split", np.array([1, 64, 4, 16]))
    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = s.qmatmul(f"{part}_proj", x, shape=(64, 64))
        y = s.node("Reshape", [y, split], f"{part}_r", name=f"{part}_reshape")
        parts[part] = s.node("Transpose", [y], f"{part}_t", name=f"{part}_transpose", perm=order)

    def maybe(part: str, y: str) -> str:
        return s.qdq(part, y, 0.0079 if part == "p" else 0.05) if part in quantized else y

    y = s.node("MatMul", [maybe("q", parts["q"]), maybe("k", parts["k"])], "qk_y", name="qk")
    y = s.qdq("scores", y, 0.1) if scores else y
    y = s.node("Mul", [y, s.constant("factor", np.float32(0.25))], "scaled", name="scaling")
    y = s.node("Softmax", [y], "probs", name="softmax", axis=-1)
    y = s.node("MatMul", [maybe("p", y), maybe("v", parts["v"])], "av_y", name="av")
    y = s.node("Transpose", [y], "back", name="back_transpose", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("merge", np.array([1, 64, 64]))], "merged", name="merge")
    y = s.qmatmul("out_proj", y, shape=(64, 64)) if projected else s.relu("last", y)
    s.output(y, [1, 64, 64])
    return s.model()


def attention_result_float() -> onnx.ModelProto:
    return attention(projected=False)


def attention_scores_rounded() -> onnx.ModelProto:
    return attention(scores=True)


def attention_float() -> onnx.ModelProto:
    return attention(quantized=())


def attention_scores_only() -> onnx.ModelProto:
    return attention(quantized=("q", "k"))


def attention_values_only() -> onnx.ModelProto:
    return attention(quantized=("p", "v"))


def dead_and_fixed() -> onnx.ModelProto:
    """A MatMul of two constants beside a Conv."""
    s = Quantized()
    y = s.qconv("c1", s.input("x", [1, 8, 16, 16]))
    product = s.node("MatMul", [s.weight("a", 16, 16), s.weight("b", 16, 16)], "ab", name="fixed")
    s.output(s.node("Add", [y, product], "y", name="add"), [1, 8, 16, 16])
    return s.model()


def unrolled() -> onnx.ModelProto:
    """A recurrence of eight steps between two products: the builder unrolls it into kernels that name no node."""
    s = Quantized()
    y = s.qmatmul("front", s.input("x", [8, 1, 32]))
    weights = [s.weight("lstm_w", 1, 96, 32), s.weight("lstm_r", 1, 96, 24), s.weight("lstm_b", 1, 192)]
    y = s.node("LSTM", [y, *weights], "states", name="lstm", hidden_size=24)
    y = s.node("Reshape", [y, s.constant("rows", np.array([8, 24]))], "rows_y", name="rows")
    s.output(s.qmatmul("head", y, shape=(24, 32)), [8, 32])
    return s.model()


def tiny_recurrence() -> onnx.ModelProto:
    """A recurrence of three values whose bias the builder appends to its weights, in one kernel with a small product."""
    s = Quantized()
    x = s.input("x", [64, 10, 5])
    weights = [s.weight("lstm_w", 1, 12, 5), s.weight("lstm_r", 1, 12, 3), s.weight("lstm_b", 1, 24)]
    y = s.node("LSTM", [x, *weights], "states", name="lstm", hidden_size=3)
    last = s.node("Gather", [y, s.constant("last", np.array(-1))], "last_y", name="gather", axis=0)
    y = s.node("Reshape", [last, s.constant("rows", np.array([10, 3]))], "rows_y", name="rows")
    s.output(s.node("Gemm", [y, s.weight("fc_w", 3, 5)], "y", name="fc"), [10, 5])
    return s.model()


def class_attention() -> onnx.ModelProto:
    """One query asks 64 tokens, with Q/DQ on all four inputs: `_gemv_mha` multiplies floats all the same."""
    s = Quantized()
    x = s.input("x", [1, 4, 64, 16])
    query, keys = (
        s.input("query", [1, 4, 1, 16]),
        s.node("Transpose", [x], "k_t", name="k_t", perm=[0, 1, 3, 2]),
    )
    y = s.node("MatMul", [s.qdq("q", query), s.qdq("k", keys)], "qk_y", name="qk")
    y = s.node("Softmax", [y], "probs", name="softmax", axis=-1)
    y = s.node("MatMul", [s.qdq("p", y, 0.0079), s.qdq("v", x)], "av_y", name="av")
    s.output(y, [1, 4, 1, 16])
    return s.model()


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        fine,
        float_weight,
        float_activation,
        scale_of_rank_one,
        scale_per_channel,
        unequal_concat,
        transposed_conv,
        one_matrix_quantized,
        both_matrices_quantized,
        matmul,
        matmul_wrong_axis,
        matmul_float_weight,
        matmul_float_activation,
        weight_behind_transpose,
        cast_between,
        moves_between,
        turned_axis,
        padded_weight,
        twice_rounded_weight,
        float_transposed_conv,
        squeezed,
        few_rows,
        vector_float_weight,
        einsum,
        einsum_float_weight,
        attention,
        attention_result_float,
        attention_scores_rounded,
        attention_float,
        attention_scores_only,
        attention_values_only,
        dead_and_fixed,
        unrolled,
        tiny_recurrence,
        class_attention,
    )
}

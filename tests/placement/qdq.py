"""Small Q/DQ graphs, one per thing that TensorRT treats differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from tests.models import Sketch

STEP = 0.05


class Quantized(Sketch):
    """A sketch that writes Q/DQ pairs."""

    def pair(
        self,
        x: str,
        name: str,
        step: Any = STEP,
        *,
        axis: int | None = None,
        dtype: type = np.int8,
        zero: int = 0,
    ) -> str:
        """Q and DQ behind `x`; nodes `<name>/Q` and `<name>/DQ`."""
        steps = np.asarray(step, np.float32)
        where = {} if axis is None else {"axis": axis}
        with_zero = [
            self.constant(f"{name}_s", steps),
            self.constant(f"{name}_z", np.full(steps.shape, zero, dtype)),
        ]
        q = self.node("QuantizeLinear", [x, *with_zero], f"{name}_q", name=f"{name}/Q", **where)
        return self.node("DequantizeLinear", [q, *with_zero], f"{name}_d", name=f"{name}/DQ", **where)

    def weights(
        self, name: str, *shape: int, axis: int | None = 0, dtype: type = np.int8, zero: int = 0
    ) -> str:
        """A weight behind Q and DQ, per channel along `axis` or with one scale."""
        tensor = self.weight(f"{name}_w", *shape)
        values = np.abs(onnx.numpy_helper.to_array(self.initializers[-1]))
        others = None if axis is None else tuple(i for i in range(len(shape)) if i != axis)
        return self.pair(
            tensor, f"{name}_w", values.max(axis=others) / 127, axis=axis, dtype=dtype, zero=zero
        )

    def raw_conv(
        self, name: str, x: str, weight: str, kernel: int = 3, group: int = 1, **attributes: Any
    ) -> str:
        return self.node(
            "Conv", [x, weight], f"{name}_y", name=name,
            kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4, group=group, **attributes,
        )  # fmt: skip

    def qconv(
        self, name: str, x: str, channels: tuple[int, int] = (16, 16), *, step: Any = STEP,
        kernel: int = 3, group: int = 1, axis: int | None = 0, **attributes: Any,
    ) -> str:  # fmt: skip
        """Conv with Q/DQ on activation `<name>_x` and weight `<name>_w`; the result is `<name>_y`."""
        weight = self.weights(name, channels[1], channels[0] // group, kernel, kernel, axis=axis)
        return self.raw_conv(name, self.pair(x, f"{name}_x", step), weight, kernel, group, **attributes)

    def image(self) -> str:
        return self.input("x", [1, 16, 16, 16])

    def matrix(self, name: str = "x") -> str:
        return self.input(name, [1, 64, 32])

    def done(self, *results: str, opset: int = 17) -> onnx.ModelProto:
        for result in results:
            self.output(result)
        proto = onnx.shape_inference.infer_shapes(self.model(opset))
        for value in proto.graph.output:
            if not value.type.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.SetInParent()
        return proto


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {}


def graph(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    """Keep a graph under its function's name."""
    GRAPHS[make.__name__] = make
    return make


@graph
def chain_ok():
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    return s.done(s.relu("relu2", s.qconv("c2", y)))


@graph
def weight_bare():
    s = Quantized()
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), s.weight("w", 16, 16, 3, 3)))


@graph
def activation_bare():
    s = Quantized()
    return s.done(s.raw_conv("c1", s.image(), s.weights("c1_w", 16, 16, 3, 3)))


@graph
def weights_per_tensor():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), axis=None))


@graph
def weights_prequantized():
    s = Quantized()
    steps = s.constant("w_s", np.full(16, 0.01, np.float32))
    zeros = s.constant("w_z", np.zeros(16, np.int8))
    whole = s.constant("w_q", s.random.integers(-127, 127, (16, 16, 3, 3)).astype(np.int8))
    weight = s.node("DequantizeLinear", [whole, steps, zeros], "w_d", name="w/DQ", axis=0)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def activation_zero_point():
    s = Quantized()
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x", zero=3), s.weights("c1_w", 16, 16, 3, 3)))


@graph
def weight_zero_point():
    s = Quantized()
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), s.weights("c1_w", 16, 16, 3, 3, zero=3)))


@graph
def activation_uint8_zero():
    s = Quantized()
    x = s.pair(s.image(), "c1_x", dtype=np.uint8)
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def activation_uint8_cast():
    """torch.fx exports a quantized model with a Cast between Q and DQ."""
    s = Quantized()
    x = s.pair(s.image(), "c1_x", dtype=np.uint8)
    model = s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))
    (q,) = [
        node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.name.startswith("c1_x")
    ]
    (dq,) = [node for node in model.graph.node if q.output[0] in node.input]
    dq.input[0] = "cast_y"
    model.graph.node.insert(
        list(model.graph.node).index(dq),
        onnx.helper.make_node("Cast", [q.output[0]], ["cast_y"], name="cast", to=onnx.TensorProto.UINT8),
    )
    return model


@graph
def activation_uint8_128():
    s = Quantized()
    x = s.pair(s.image(), "c1_x", dtype=np.uint8, zero=128)
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def weight_uint8_128():
    s = Quantized()
    weight = s.weights("c1_w", 16, 16, 3, 3, dtype=np.uint8, zero=128)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def activation_per_channel():
    s = Quantized()
    x = s.pair(s.image(), "c1_x", np.full(16, STEP), axis=1)
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def activation_rank_one():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), step=[STEP]))


@graph
def matmul_rank_one():
    s = Quantized()
    x = s.pair(s.matrix(), "mm_x", [STEP])
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"))


@graph
def shortcut_rank_one():
    s = Quantized()
    x = s.qconv("c1", s.image())
    y = s.node("Add", [s.qconv("c2", x), s.pair(x, "add_x", [STEP])], "add_y", name="add")
    return s.done(s.qconv("c3", y))


@graph
def weight_scale_count():
    s = Quantized()
    weight = s.pair(s.weight("c1_w", 16, 16, 3, 3), "c1_w", np.full(5, STEP), axis=0)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def zero_point_count():
    s = Quantized()
    names = [s.constant("few_s", np.full(16, STEP, np.float32)), s.constant("few_z", np.zeros(5, np.int8))]
    q = s.node("QuantizeLinear", [s.weight("few", 16, 16, 3, 3), *names], "few_q", name="few/Q", axis=0)
    weight = s.node("DequantizeLinear", [q, *names], "few_d", name="few/DQ", axis=0)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def scale_zero():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), step=0.0))


@graph
def scale_integer():
    s = Quantized()
    proto = s.done(s.qconv("c1", s.image()))
    step = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1_x_s")
    step.CopyFrom(onnx.numpy_helper.from_array(np.int64(1), "c1_x_s"))
    return proto


@graph
def scale_negative():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), step=-0.1))


@graph
def scale_tiny():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), step=1e-12))


@graph
def scale_computed():
    s = Quantized()
    x = s.image()
    step = s.node("ReduceMax", [x], "step", name="amax", keepdims=0)
    zero = s.constant("zero", np.int8(0))
    q = s.node("QuantizeLinear", [x, step, zero], "q", name="c1_x/Q")
    x = s.node("DequantizeLinear", [q, step, zero], "d", name="c1_x/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def bias_int32():
    s = Quantized()
    whole = s.constant("b_q", s.random.integers(-500, 500, 16).astype(np.int32))
    steps, zeros = s.constant("b_s", np.full(16, 1e-3, np.float32)), s.constant("b_z", np.zeros(16, np.int32))
    bias = s.node("DequantizeLinear", [whole, steps, zeros], "b_d", name="b/DQ", axis=0)
    inputs = [s.pair(s.image(), "c1_x"), s.weights("c1_w", 16, 16, 3, 3), bias]
    return s.done(s.node("Conv", inputs, "y", name="c1", kernel_shape=[3, 3], pads=[1] * 4))


@graph
def constant_scalar():
    s = Quantized()
    whole = s.constant("half_q", np.full((), 50, np.int8))
    step, zero = s.constant("half_s", np.float32(0.01)), s.constant("half_z", np.int8(0))
    half = s.node("DequantizeLinear", [whole, step, zero], "half", name="half/DQ")
    return s.done(s.node("Mul", [s.pair(s.image(), "mul_x"), half], "y", name="mul"))


@graph
def constant_rank_four():
    s = Quantized()
    whole = s.constant("half_q", np.full((1, 1, 1, 1), 50, np.int8))
    step, zero = s.constant("half_s", np.float32(0.01)), s.constant("half_z", np.int8(0))
    half = s.node("DequantizeLinear", [whole, step, zero], "half", name="half/DQ")
    return s.done(s.node("Mul", [s.pair(s.image(), "mul_x"), half], "y", name="mul"))


@graph
def qlinear_conv():
    s = Quantized()
    step, zero = s.constant("s", np.float32(0.1)), s.constant("z", np.int8(0))
    x = s.node("QuantizeLinear", [s.image(), step, zero], "q", name="q")
    weight = s.constant("w", s.random.integers(-127, 127, (16, 16, 3, 3)).astype(np.int8))
    inputs = [x, step, zero, weight, step, zero, step, zero]
    y = s.node("QLinearConv", inputs, "y_q", name="qlc", kernel_shape=[3, 3], pads=[1] * 4)
    s.output(s.node("DequantizeLinear", [y, step, zero], "y", name="dq"), [1, 16, 16, 16])
    return s.model()


@graph
def dynamic_quantize():
    s = Quantized()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(onnx.helper.make_node("DynamicQuantizeLinear", [s.matrix()], names, name="dql"))
    s.output(s.node("DequantizeLinear", names, "y", name="dq"), [1, 64, 32])
    return s.model()


@graph
def microsoft_domain():
    s = Quantized()
    proto = s.done(s.qconv("c1", s.image()))
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for node in proto.graph.node:
        if node.op_type.endswith("Linear"):
            node.domain = "com.microsoft"
    return proto


@graph
def int16_activation():
    s = Quantized()
    x = s.pair(s.image(), "c1_x", dtype=np.int16)
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)), opset=21)


def _int4(block: int | None, activation: bool) -> onnx.ModelProto:
    s = Quantized()
    x = s.input("x", [1, 64, 256])
    shape = (256 // block, 128) if block else (128,)
    s.initializers.append(
        onnx.helper.make_tensor("w_q", TensorProto.INT4, [256, 128], s.random.integers(-8, 7, 256 * 128))
    )
    steps = s.constant("w_s", np.full(shape, 0.01, np.float32))
    where = {"axis": 0, "block_size": block} if block else {"axis": 1}
    weight = s.node("DequantizeLinear", ["w_q", steps], "w_d", name="w/DQ", **where)
    x = s.pair(x, "mm_x") if activation else x
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=21)


@graph
def int4_weights():
    return _int4(128, activation=False)


@graph
def int4_odd_number():
    s = Quantized()
    x = s.input("x", [1, 64, 255])
    s.initializers.append(
        onnx.helper.make_tensor("w_q", TensorProto.INT4, [255, 129], s.random.integers(-8, 7, 255 * 129))
    )
    steps = s.constant("w_s", np.full((5, 129), 0.01, np.float32))
    weight = s.node("DequantizeLinear", ["w_q", steps], "w_d", name="w/DQ", axis=0, block_size=51)
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=21)


@graph
def int4_weights_int8_activation():
    return _int4(128, activation=True)


def _int8_blocks(activation: bool) -> onnx.ModelProto:
    s = Quantized()
    whole = s.constant("w_q", s.random.integers(-127, 127, (256, 128)).astype(np.int8))
    steps = s.constant("w_s", np.full((4, 128), 0.01, np.float32))
    weight = s.node("DequantizeLinear", [whole, steps], "w_d", name="w/DQ", axis=0, block_size=64)
    x = s.input("x", [1, 64, 256])
    x = s.pair(x, "mm_x") if activation else x
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=21)


@graph
def int8_blocks():
    return _int8_blocks(activation=True)


@graph
def int8_blocks_float():
    return _int8_blocks(activation=False)


def _queries(*, stored: bool) -> onnx.ModelProto:
    """A product that makes queries, keys and values of two heads, with a scale per channel."""
    s = Quantized()
    x = s.pair(s.relu("relu0", s.matrix()), "mm_x")
    if stored:
        given = [s.constant("w_s", np.full(96, 0.01, np.float32)), s.constant("w_z", np.zeros(96, np.int8))]
        whole = s.constant("w_q", s.random.integers(-127, 127, (32, 96)).astype(np.int8))
        weight = s.node("DequantizeLinear", [whole, *given], "w_d", name="w/DQ", axis=1)
    else:
        weight = s.weights("w", 32, 96, axis=1)
    made = s.node("MatMul", [x, weight], "made", name="mm")
    to, axis = s.constant("heads", np.asarray([1, 64, 2, 16])), s.constant("axis", np.asarray([2]))
    parts = []
    for part in range(3):
        ends = [s.constant(f"end{part + end}_{end}", np.asarray([32 * (part + end)])) for end in (0, 1)]
        cut = s.node("Slice", [made, *ends, axis], f"cut{part}")
        parts.append(
            s.node(
                "Transpose",
                [s.node("Reshape", [cut, to], f"heads{part}")],
                f"turned{part}",
                perm=[0, 2, 1, 3],
            )
        )
    q, k, v = parts
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "scores", name="scores")
    return s.done(s.node("MatMul", [s.node("Softmax", [scores], "p", axis=-1), v], "y", name="values"))


@graph
def queries_stored():
    return _queries(stored=True)


@graph
def queries_behind_q():
    return _queries(stored=False)


@graph
def fp8_weights():
    s = Quantized()
    kind = TensorProto.FLOAT8E4M3FN
    for name in ("x", "w"):
        s.initializers.append(onnx.helper.make_tensor(f"{name}_z", kind, [], [0.0]))
    step = s.constant("s", np.float32(0.01))

    def pair(tensor: str, name: str) -> str:
        q = s.node("QuantizeLinear", [tensor, step, f"{name}_z"], f"{name}_q", name=f"{name}/Q")
        return s.node("DequantizeLinear", [q, step, f"{name}_z"], f"{name}_d", name=f"{name}/DQ")

    inputs = [pair(s.matrix(), "x"), pair(s.weight("weight", 32, 48), "w")]
    return s.done(s.node("MatMul", inputs, "y", name="mm"), opset=19)


def _fp8(s: Quantized, tensor: str, name: str, **attributes: Any) -> str:
    s.initializers.append(onnx.helper.make_tensor(f"{name}_z", TensorProto.FLOAT8E4M3FN, [], [0.0]))
    given = [s.constant(f"{name}_s", np.float32(0.01)), f"{name}_z"]
    q = s.node("QuantizeLinear", [tensor, *given], f"{name}_q", name=f"{name}/Q", **attributes)
    return s.node("DequantizeLinear", [q, *given], f"{name}_d", name=f"{name}/DQ")


@graph
def fp8_seven_taps():
    s = Quantized()
    inputs = [_fp8(s, s.image(), "x"), _fp8(s, s.weight("weight", 16, 16, 7, 7), "w")]
    return s.done(s.node("Conv", inputs, "y", name="c1", pads=[3] * 4), opset=19)


@graph
def fp8_unsaturated_beyond():
    s = Quantized()
    beyond = s.constant("weight", np.full((32, 48), 100.0, np.float32))
    inputs = [_fp8(s, s.matrix(), "x"), _fp8(s, beyond, "w", saturate=0)]
    return s.done(s.node("MatMul", inputs, "y", name="mm"), opset=19)


@graph
def fp8_unsaturated():
    s = Quantized()
    inputs = [_fp8(s, s.matrix(), "x", saturate=0), _fp8(s, s.weight("weight", 32, 48), "w")]
    return s.done(s.node("MatMul", inputs, "y", name="mm"), opset=19)


@graph
def fp8_weights_not_numbers():
    s = Quantized()
    x = _fp8(s, s.matrix(), "x")
    stored = onnx.helper.make_tensor("w", TensorProto.FLOAT8E4M3FN, [32, 48], b"\x7f" * (32 * 48), raw=True)
    s.initializers.append(stored)
    weight = s.node("DequantizeLinear", ["w", s.constant("w_s", np.float32(0.01))], "w_d", name="w/DQ")
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=19)


@graph
def fp8_weights_beyond():
    """Weights of 100 with a scale of 0.01: FP8 ends at 4.48."""
    s = Quantized()
    x = _fp8(s, s.matrix(), "x")
    weight = _fp8(s, s.constant("w", np.full((32, 48), 100, np.float32)), "w")
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=19)


@graph
def fp8_zero_point():
    s = Quantized()
    x, weight = _fp8(s, s.matrix(), "x"), _fp8(s, s.weight("w", 32, 48), "w")
    model = s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=19)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT8E4M3FN and not tensor.dims:
            tensor.CopyFrom(onnx.helper.make_tensor(tensor.name, TensorProto.FLOAT8E4M3FN, [], [1]))
    return model


@graph
def fp8_old_opset():
    s = Quantized()
    x, weight = _fp8(s, s.matrix(), "x"), _fp8(s, s.weight("w", 32, 48), "w")
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=17)


@graph
def fp8_times_int8():
    s = Quantized()
    inputs = [_fp8(s, s.matrix(), "x"), s.weights("mm_w", 32, 48, axis=1)]
    return s.done(s.node("MatMul", inputs, "y", name="mm"), opset=19)


@graph
def attention_operator():
    s = Quantized()
    inputs = [s.pair(s.input(name, [1, 4, 64, 32]), name) for name in "qkv"]
    return s.done(s.node("Attention", inputs, "y", name="attention"), opset=23)


@graph
def int4_weights_in_one_block():
    return _int4(256, activation=False)


def _trt(s: Quantized, op: str, inputs: list[str], *outputs: str, **attributes: Any) -> None:
    name = f"{outputs[0]}/{'DQ' if 'Dequantize' in op else 'Q'}"
    s.nodes.append(onnx.helper.make_node(op, inputs, list(outputs), name=name, domain="trt", **attributes))


@graph
def fp4_one_level():
    s = Quantized()
    x = s.input("x", [64, 256])
    s.initializers.append(
        onnx.helper.make_tensor("w_q", TensorProto.FLOAT4E2M1, [256, 128], [1.0] * (256 * 128))
    )
    level, steps = (
        s.constant("level", np.float32(0.01)),
        s.constant("w_s", np.full((16, 128), 0.01, np.float32)),
    )
    _trt(s, "TRT_FP4DynamicQuantize", [x, level], "x_q", "x_scales", axis=1, block_size=16, scale_type=17)
    scale = s.node("DequantizeLinear", ["x_scales", level], "x_s", name="x_s/DQ")
    x = s.node("DequantizeLinear", ["x_q", scale], "x_d", name="x/DQ", axis=1, block_size=16)
    weight = s.node("DequantizeLinear", ["w_q", steps], "w_d", name="w/DQ", axis=0, block_size=16)
    s.node("MatMul", [x, weight], "y", name="mm")
    s.output("y", [64, 128])
    return s.model(23, domains=["trt"])


@graph
def fp4_constant_blocks():
    s = Quantized()
    x = s.node("Softmax", [s.input("x", [64, 256])], "shares", name="softmax", axis=-1)
    stored = onnx.helper.make_tensor("w_q", TensorProto.FLOAT4E2M1, [256, 128], [1.0] * (256 * 128))
    blocks = [
        onnx.helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, shape, [2.0] * (shape[0] * shape[1]))
        for name, shape in (("x_blocks", [64, 16]), ("w_blocks", [16, 128]))
    ]
    s.initializers.extend((stored, *blocks))
    level = s.constant("level", np.float32(0.01))
    x_s, w_s = (
        s.node("DequantizeLinear", [f"{name}_blocks", level], f"{name}_s", name=f"{name}_s/DQ")
        for name in "xw"
    )
    along = {"axis": 1, "block_size": 16}
    x = s.node("QuantizeLinear", [x, x_s], "x_q", name="x/Q", output_dtype=TensorProto.FLOAT4E2M1, **along)
    x = s.node("DequantizeLinear", [x, x_s], "x_d", name="x/DQ", **along)
    weight = s.node("DequantizeLinear", ["w_q", w_s], "w_d", name="w/DQ", axis=0, block_size=16)
    s.node("MatMul", [x, weight], "y", name="mm")
    s.output("y", [64, 128])
    return s.model(23)


@graph
def microscaled():
    s = Quantized()
    x, along = s.input("x", [64, 256]), {"axis": -1, "block_size": 32}
    _trt(
        s, "TRT_MXFP8DynamicQuantize", [x], "x_q", "x_scales", output_dtype=TensorProto.FLOAT8E4M3FN, **along
    )
    _trt(s, "TRT_MXFP8DequantizeLinear", ["x_q", "x_scales"], "x_d", output_dtype=TensorProto.FLOAT, **along)
    weight = onnx.helper.make_tensor(
        "w", TensorProto.FLOAT8E4M3FN, [256, 128], b"\x38" * (256 * 128), raw=True
    )
    s.initializers.append(weight)
    scales = s.constant("w_scales", np.full((8, 128), 120, np.uint8))
    typed = {"axis": 0, "block_size": 32, "output_dtype": TensorProto.FLOAT}
    _trt(s, "TRT_MXFP8DequantizeLinear", ["w", scales], "w_d", **typed)
    s.node("MatMul", ["x_d", "w_d"], "y", name="mm")
    s.output("y", [64, 128])
    return s.model(19, domains=["trt"])


@graph
def int4_own_spelling():
    s = Quantized()
    stored = s.constant("w_q", s.random.integers(-8, 8, (256, 128)).astype(ml_dtypes.int4))
    steps = s.constant("w_s", np.full((4, 128), 0.01, np.float32))
    _trt(s, "TRT_INT4DequantizeLinear", [stored, steps], "w_d", axis=0, block_size=64)
    s.node("MatMul", [s.input("x", [64, 256]), "w_d"], "y", name="mm")
    s.output("y", [64, 128])
    return s.model(21, domains=["trt"])


@graph
def packed_weights():
    s = Quantized()
    packed = s.constant("w", s.random.integers(0, 256, (128, 4, 32)).astype(np.uint8))
    inputs = [s.input("x", [64, 256]), packed, s.constant("w_s", np.full(512, 0.01, np.float32))]
    sizes = {"K": 256, "N": 128, "bits": 4, "block_size": 64}
    s.node("MatMulNBits", inputs, "y", name="mm", domain="com.microsoft", **sizes)
    s.output("y", [64, 128])
    return s.model(21, domains=["com.microsoft"])


@graph
def weights_cast_to_float():
    s = Quantized()
    stored = s.constant("w_q", s.random.integers(-127, 127, (32, 48)).astype(np.int8))
    floats = s.node("Cast", [stored], "w_f", name="cast", to=TensorProto.FLOAT)
    weight = s.node("Mul", [floats, s.constant("w_s", np.full(48, 0.01, np.float32))], "w_d", name="scale")
    return s.done(s.node("MatMul", [s.matrix(), weight], "y", name="mm"))


@graph
def half_scale_float_data():
    """An FP16 scale in front of FP32 values, as careless FP16 conversion leaves it."""
    s = Quantized()
    step, zero = s.constant("s", np.float16(0.1)), s.constant("z", np.int8(0))
    x = s.node("Cast", [s.image()], "x_h", name="cast", to=TensorProto.FLOAT16)
    q = s.node("QuantizeLinear", [x, step, zero], "q", name="c1_x/Q")
    x = s.node("DequantizeLinear", [q, step, zero], "d", name="c1_x/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)), opset=19)


@graph
def conv_weight_axis_one():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), axis=1))


@graph
def matmul_weight():
    s = Quantized()
    x = s.pair(s.matrix(), "mm_x")
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"))


@graph
def matmul_weight_axis_zero():
    s = Quantized()
    x = s.pair(s.matrix(), "mm_x")
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=0)], "y", name="mm"))


@graph
def gemm_weight_axis_one():
    s = Quantized()
    inputs = [s.pair(s.input("x", [64, 32]), "mm_x"), s.weights("mm_w", 48, 32, axis=1)]
    return s.done(s.node("Gemm", inputs, "y", name="mm", transB=1))


@graph
def matmul_weight_only():
    s = Quantized()
    return s.done(s.node("MatMul", [s.matrix(), s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"))


@graph
def matmul_activation_only():
    s = Quantized()
    return s.done(s.node("MatMul", [s.pair(s.matrix(), "mm_x"), s.weight("w", 32, 48)], "y", name="mm"))


@graph
def matmul_both():
    s = Quantized()
    other = s.pair(s.input("other", [1, 32, 64]), "mm_other")
    return s.done(s.node("MatMul", [s.pair(s.matrix(), "mm_x"), other], "y", name="mm"))


@graph
def matmul_one_of_two():
    s = Quantized()
    inputs = [s.pair(s.matrix(), "mm_x"), s.input("other", [1, 32, 64])]
    return s.done(s.node("MatMul", inputs, "y", name="mm"))


@graph
def weight_transposed():
    s = Quantized()
    weight = s.node("Transpose", [s.weights("mm_w", 48, 32, axis=0)], "w_t", name="tr", perm=[1, 0])
    return s.done(s.node("MatMul", [s.pair(s.matrix(), "mm_x"), weight], "y", name="mm"))


@graph
def relu_behind_pair():
    s = Quantized()
    x = s.relu("relu", s.pair(s.image(), "relu_x"))
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def maxpool_behind_pair():
    s = Quantized()
    x = s.pair(s.image(), "pool_x")
    x = s.node("MaxPool", [x], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


def _two_branches(s: Quantized) -> tuple[str, str]:
    x = s.image()
    return s.relu("relu1", s.qconv("c1", x)), s.relu("relu2", s.qconv("c2", x))


def _concat(steps: tuple[float, float] | None, behind: bool) -> onnx.ModelProto:
    s = Quantized()
    a, b = _two_branches(s)
    if steps:
        a, b = s.pair(a, "a", steps[0]), s.pair(b, "b", steps[1])
    y = s.node("Concat", [a, b], "cat_y", name="cat", axis=1)
    if behind:
        return s.done(s.qconv("c3", y, (32, 16)))
    return s.done(s.raw_conv("c3", y, s.weights("c3_w", 16, 32, 3, 3)))


@graph
def concat_same_scale():
    return _concat((STEP, STEP), behind=True)


@graph
def concat_other_scales():
    return _concat((STEP, 2 * STEP), behind=True)


@graph
def concat_same_scale_bare():
    return _concat((STEP, STEP), behind=False)


@graph
def concat_other_scales_bare():
    return _concat((STEP, 2 * STEP), behind=False)


@graph
def concat_with_a_padded_branch():
    """Of the branches the second alone comes through what holds a DequantizeLinear back."""
    s = Quantized()
    a, b = _two_branches(s)
    a, b = s.pair(a, "a", STEP), s.pair(b, "b", STEP)
    for number in (1, 2):
        a = s.node("Transpose", [a], f"t{number}_y", name=f"t{number}", perm=[0, 1, 3, 2])
    b = s.node("Pad", [b, s.constant("pads", np.array([0, 16, 0, 0, 0, 0, 0, 0], np.int64))], "p_y", name="p")
    y = s.node("Concat", [a, b], "cat_y", name="cat", axis=1)
    return s.done(s.raw_conv("c3", y, s.weights("c3_w", 16, 48, 3, 3)))


@graph
def concat_pair_behind():
    return _concat(None, behind=True)


def _residual(conv: bool, shortcut: bool) -> onnx.ModelProto:
    s = Quantized()
    x = s.relu("relu0", s.qconv("c0", s.image()))
    y = s.qconv("c2", s.relu("relu1", s.qconv("c1", x)))
    branches = [s.pair(y, "add_c") if conv else y, s.pair(x, "add_x") if shortcut else x]
    y = s.node("Add", branches, "add_y", name="add")
    return s.done(s.qconv("c3", s.relu("relu2", y)))


@graph
def residual_shortcut():
    return _residual(conv=False, shortcut=True)


@graph
def residual_bare():
    return _residual(conv=False, shortcut=False)


@graph
def residual_both():
    return _residual(conv=True, shortcut=True)


@graph
def residual_conv_only():
    return _residual(conv=True, shortcut=False)


@graph
def pair_before_relu():
    s = Quantized()
    y = s.relu("relu", s.pair(s.qconv("c1", s.image()), "relu_x"))
    return s.done(s.qconv("c2", y))


@graph
def pair_inside_silu():
    s = Quantized()
    y = s.pair(s.qconv("c1", s.image()), "silu_x")
    gate = s.pair(s.node("Sigmoid", [y], "gate", name="sigmoid"), "gate")
    return s.done(s.qconv("c2", s.node("Mul", [y, gate], "silu_y", name="mul")))


@graph
def silu():
    s = Quantized()
    y = s.qconv("c1", s.image())
    return s.done(
        s.qconv("c2", s.node("Mul", [y, s.node("Sigmoid", [y], "gate", name="sigmoid")], "z", name="mul"))
    )


@graph
def pair_behind_pair():
    s = Quantized()
    return s.done(s.qconv("c1", s.pair(s.image(), "first", 2 * STEP)))


@graph
def pair_behind_pair_same():
    s = Quantized()
    return s.done(s.qconv("c1", s.pair(s.image(), "first", STEP)))


@graph
def requantized_behind_pool():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "pool_x", 2 * STEP)
    y = s.node("MaxPool", [y], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    return s.done(s.qconv("c2", y))


@graph
def depthwise():
    s = Quantized()
    return s.done(s.qconv("dw", s.relu("relu1", s.qconv("c1", s.image())), group=16))


@graph
def half_depthwise():
    return _half(depthwise())


@graph
def half_depthwise_float():
    s = Quantized()
    return _half(
        s.done(s.relu("relu2", s.conv("dw", s.relu("relu1", s.qconv("c1", s.image())), (16, 16), group=16)))
    )


@graph
def depthwise_float():
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    y = s.relu("relu2", s.conv("dw", y, (16, 16), group=16))
    return s.done(s.qconv("c2", y))


@graph
def grouped():
    s = Quantized()
    return s.done(s.qconv("c1", s.image(), group=4))


@graph
def conv_transpose():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "up_x")
    inputs = [y, s.weights("up_w", 16, 16, 2, 2, axis=1)]
    y = s.node("ConvTranspose", inputs, "up_y", name="up", kernel_shape=[2, 2], strides=[2, 2])
    return s.done(y)


@graph
def global_pool():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "gap_x")
    y = s.node("GlobalAveragePool", [y], "gap_y", name="gap")
    return s.done(s.qconv("c2", y, kernel=1))


@graph
def global_pool_float():
    s = Quantized()
    y = s.node("GlobalAveragePool", [s.relu("relu1", s.qconv("c1", s.image()))], "gap_y", name="gap")
    return s.done(s.qconv("c2", y, kernel=1))


@graph
def average_pool():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "pool_x")
    y = s.node("AveragePool", [y], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    return s.done(s.qconv("c2", y))


@graph
def nearest_resize():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "up_x")
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    y = s.node(
        "Resize", [y, "", factors], "up_y", name="up", mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    return s.done(s.qconv("c2", y))


def _attention(*slots: str) -> onnx.ModelProto:
    """Self-attention whose four inputs have Q/DQ where `slots` names them: q, k, v, p for the
    probabilities, and out for the projection behind."""
    s = Quantized()
    x = s.input("x", [1, 16, 32])
    split, merge = s.constant("split", np.array([1, 16, 2, 16])), s.constant("merge", np.array([1, 16, 32]))

    def head(name: str, order: list[int]) -> str:
        y = s.node("MatMul", [x, s.weight(f"{name}_w", 32, 32)], f"{name}_y", name=name)
        y = s.node("Reshape", [y, split], f"{name}_split", name=f"{name}_split")
        y = s.node("Transpose", [y], f"{name}_t", name=f"{name}_t", perm=order)
        return maybe(name, y)

    def maybe(name: str, x: str, step: float = STEP) -> str:
        return s.pair(x, f"{name}_in", step) if name in slots else x

    y = s.node("MatMul", [head("q", [0, 2, 1, 3]), head("k", [0, 2, 3, 1])], "scores", name="qk")
    y = s.node("Div", [y, s.constant("root", np.float32(4))], "scaled", name="scale")
    y = s.node("Softmax", [y], "probabilities", name="softmax", axis=-1)
    y = s.node("MatMul", [maybe("p", y, 1 / 127), head("v", [0, 2, 1, 3])], "context", name="av")
    y = s.node("Transpose", [y], "context_t", name="context_t", perm=[0, 2, 1, 3])
    y = maybe("out", s.node("Reshape", [y, merge], "merged", name="merge"))
    weight = s.weights("proj_w", 32, 32, axis=1) if "out" in slots else s.weight("proj_w", 32, 32)
    return s.done(s.node("MatMul", [y, weight], "y", name="proj"))


@graph
def attention_whole():
    return _attention("q", "k", "p", "v", "out")


@graph
def attention_result_bare():
    return _attention("q", "k", "p", "v")


@graph
def attention_scores_only():
    return _attention("q", "k", "out")


@graph
def attention_probabilities_bare():
    return _attention("q", "k", "v", "out")


@graph
def attention_float():
    return _attention()


@graph
def pair_before_softmax():
    s = Quantized()
    x = s.pair(s.input("x", [1, 2, 16, 16]), "softmax_x")
    y = s.node("Softmax", [x], "p", name="softmax", axis=-1)
    inputs = [s.pair(y, "mm_p", 1 / 127), s.pair(s.input("v", [1, 2, 16, 16]), "mm_v")]
    return s.done(s.node("MatMul", inputs, "y", name="mm"))


@graph
def pair_before_norm():
    s = Quantized()
    gain, shift = s.constant("g", np.ones(32, np.float32)), s.weight("b", 32)
    x = s.node("LayerNormalization", [s.pair(s.matrix(), "norm_x"), gain, shift], "n", name="norm", axis=-1)
    x = s.pair(x, "mm_x")
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"))


@graph
def pair_before_output():
    s = Quantized()
    return s.done(s.pair(s.relu("relu1", s.qconv("c1", s.image())), "out"))


@graph
def integer_output():
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    zero = s.constant("z", np.int8(0))
    y = s.node("QuantizeLinear", [y, s.constant("s", np.float32(STEP)), zero], "y", name="out/Q")
    s.output(y, dtype=TensorProto.INT8)
    return s.model()


@graph
def integer_input():
    s = Quantized()
    x = s.input("x", [1, 16, 16, 16], TensorProto.INT8)
    step, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.int8(0))
    x = s.node("DequantizeLinear", [x, step, zero], "d", name="in/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def dangling_quantize():
    s = Quantized()
    y = s.qconv("c1", s.image())
    s.node("QuantizeLinear", [y, "c1_x_s", "c1_x_z"], "nobody", name="dangling/Q")
    return s.done(y)


@graph
def two_scales_for_one_tensor():
    s = Quantized()
    x = s.relu("relu0", s.qconv("c0", s.image()))
    return s.done(s.qconv("c1", x, step=STEP), s.qconv("c2", x, step=2 * STEP))


@graph
def one_scale_for_two():
    s = Quantized()
    x = s.relu("relu0", s.qconv("c0", s.image()))
    return s.done(s.qconv("c1", x, step=STEP), s.qconv("c2", x, step=STEP))


@graph
def shared_pair():
    s = Quantized()
    x = s.pair(s.relu("relu0", s.qconv("c0", s.image())), "shared")
    return s.done(
        s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)),
        s.raw_conv("c2", x, s.weights("c2_w", 16, 16, 3, 3)),
    )


@graph
def shared_with_float():
    s = Quantized()
    x = s.pair(s.relu("relu0", s.qconv("c0", s.image())), "shared")
    y = s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3))
    return s.done(s.node("Add", [y, s.node("Sigmoid", [x], "gate", name="sigmoid")], "z", name="add"))


@graph
def missing_zero_point():
    s = Quantized()
    step = s.constant("s", np.float32(STEP))
    q = s.node("QuantizeLinear", [s.image(), step, s.constant("z", np.int8(0))], "q", name="c1_x/Q")
    x = s.node("DequantizeLinear", [q, step], "d", name="c1_x/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def pad_behind_pair():
    s = Quantized()
    pads = s.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    x = s.node("Pad", [s.relu("relu0", s.qconv("c0", s.image())), pads], "pad_y", name="pad")
    x = s.pair(x, "c1_x")
    weight = s.weights("c1_w", 16, 16, 3, 3)
    return s.done(s.node("Conv", [x, weight], "y", name="c1", kernel_shape=[3, 3]))


def _half(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with all float32 turned float16, scales included."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del proto.graph.value_info[:]
    for entry in proto.opset_import:
        entry.version = max(entry.version, 19) if entry.domain == "" else entry.version
    return proto


def _float_head(s: Quantized) -> str:
    """Four quantized convolutions, then four without Q/DQ, as training leaves a head."""
    y = s.image()
    for name in ("c1", "c2", "c3", "c4"):
        y = s.relu(f"{name}_relu", s.qconv(name, y))
    for name in ("h1", "h2", "h3", "h4"):
        y = s.relu(f"{name}_relu", s.raw_conv(name, y, s.weight(f"{name}_w", 16, 16, 3, 3)))
    return y


@graph
def float_head():
    s = Quantized()
    return s.done(_float_head(s))


@graph
def float_head_before_half():
    """A part in FP16, as a recipe leaves it behind, and a head that was forgotten."""
    s = Quantized()
    half = s.node("Cast", [_float_head(s)], "half", name="to_half", to=TensorProto.FLOAT16)
    wide = s.node("Sigmoid", [half], "half_y", name="sigmoid")
    return s.done(s.node("Cast", [wide], "wide", name="to_float", to=TensorProto.FLOAT))


@graph
def float_head_half():
    return _half(float_head())


@graph
def half_chain():
    return _half(chain_ok())


@graph
def half_scale_underflow():
    return _half(scale_tiny())


@graph
def half_weights_rank_one():
    s = Quantized()
    weight = s.pair(s.weight("w", 16, 16, 3, 3), "c1_w", [0.01], axis=0)
    return _half(s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight)))


@graph
def float_weights_rank_one():
    s = Quantized()
    weight = s.pair(s.weight("w", 16, 16, 3, 3), "c1_w", [0.01], axis=0)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def half_microsoft_domain():
    return _half(microsoft_domain())


@graph
def half_old_opset():
    proto = half_chain()
    proto.opset_import[0].version = 17
    return proto


@graph
def scale_wrong_axis():
    s = Quantized()
    weight = s.pair(s.weight("w", 16, 16, 3, 3), "c1_w", np.full(16, 0.01), axis=7)
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), weight))


@graph
def scale_wrong_axis_of_one_half():
    proto = scale_wrong_axis()
    half = next(node for node in proto.graph.node if node.name == "c1_w/DQ")
    half.attribute[0].i = 0
    return proto


@graph
def halves_apart():
    s = Quantized()
    zero = s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.image(), s.constant("s1", np.float32(0.05)), zero], "q", name="c1_x/Q")
    x = s.node("DequantizeLinear", [q, s.constant("s2", np.float32(0.1)), zero], "d", name="c1_x/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


def _resize(mode: str, before: bool, behind: bool) -> onnx.ModelProto:
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    y = s.pair(y, "up_x") if before else y
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    where = {"coordinate_transformation_mode": "half_pixel"}
    if mode == "nearest":
        where = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = s.node("Resize", [y, "", factors], "up_y", name="up", mode=mode, **where)
    if behind:
        return s.done(s.qconv("c2", y))
    return s.done(s.raw_conv("c2", y, s.weights("c2_w", 16, 16, 3, 3)))


@graph
def resize_behind_pair():
    return _resize("nearest", before=True, behind=False)


@graph
def resize_before_pair():
    return _resize("nearest", before=False, behind=True)


@graph
def resize_refused():
    made = _resize("nearest", before=False, behind=True)
    made.opset_import[0].version = 19
    (node,) = [node for node in made.graph.node if node.op_type == "Resize"]
    (where,) = [each for each in node.attribute if each.name == "coordinate_transformation_mode"]
    where.s = b"half_pixel_symmetric"
    return made


@graph
def linear_resize():
    return _resize("linear", before=True, behind=True)


@graph
def linear_resize_before_pair():
    return _resize("linear", before=False, behind=True)


@graph
def int4_activation():
    s = Quantized()
    s.initializers.append(onnx.helper.make_tensor("z", TensorProto.INT4, [], [0]))
    step = s.constant("s", np.float32(0.1))
    q = s.node("QuantizeLinear", [s.matrix(), step, "z"], "q", name="mm_x/Q")
    x = s.node("DequantizeLinear", [q, step, "z"], "d", name="mm_x/DQ")
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"), opset=21)


@graph
def zero_point_computed():
    s = Quantized()
    x, step = s.image(), s.constant("s", np.float32(STEP))
    zero = s.node("ReduceMax", [x], "largest", name="max", keepdims=0)
    zero = s.node("Cast", [zero], "z", name="cast", to=TensorProto.INT8)
    q = s.node("QuantizeLinear", [x, step, zero], "q", name="c1_x/Q")
    x = s.node("DequantizeLinear", [q, step, zero], "d", name="c1_x/DQ")
    return s.done(s.raw_conv("c1", x, s.weights("c1_w", 16, 16, 3, 3)))


@graph
def scale_computed_matmul():
    s = Quantized()
    x = s.matrix()
    step = s.node("ReduceMax", [x], "step", name="amax", keepdims=0)
    zero = s.constant("zero", np.int8(0))
    q = s.node("QuantizeLinear", [x, step, zero], "q", name="mm_x/Q")
    x = s.node("DequantizeLinear", [q, step, zero], "d", name="mm_x/DQ")
    return s.done(s.node("MatMul", [x, s.weights("mm_w", 32, 48, axis=1)], "y", name="mm"))


@graph
def fp4_weights():
    s = Quantized()
    x = s.input("x", [1, 64, 256])
    kind = TensorProto.FLOAT4E2M1
    s.initializers.append(onnx.helper.make_tensor("w_q", kind, [256, 128], [1.0] * (256 * 128)))
    steps = s.constant("w_s", np.full((16, 128), 0.01, np.float32))
    weight = s.node("DequantizeLinear", ["w_q", steps], "w_d", name="w/DQ", axis=0, block_size=16)
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=23)


def _bias(quantized: bool) -> onnx.ModelProto:
    s = Quantized()
    bias = s.weight("b", 16)
    inputs = [s.pair(s.image(), "c1_x"), s.weights("c1_w", 16, 16, 3, 3)]
    inputs.append(s.pair(bias, "b", 0.01) if quantized else bias)
    return s.done(s.node("Conv", inputs, "y", name="c1", kernel_shape=[3, 3], pads=[1] * 4))


@graph
def bias_int8():
    return _bias(quantized=True)


@graph
def bias_float():
    return _bias(quantized=False)


@graph
def plugin_between():
    s = Quantized()
    x = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "swirl_x")
    s.nodes.append(onnx.helper.make_node("Swirl", [x], ["swirl_y"], name="swirl", domain="acme"))
    s.output(s.qconv("c2", "swirl_y"), [1, 16, 16, 16])
    return s.model(domains=["acme"])


@graph
def odd_channels():
    s = Quantized()
    return s.done(s.qconv("c1", s.input("x", [1, 5, 16, 16]), (5, 7)))


def _product(rows: int, inner: int, columns: int, quantized: bool) -> onnx.ModelProto:
    s = Quantized()
    x = s.input("x", [rows, inner])
    if quantized:
        inputs = [s.pair(x, "mm_x"), s.weights("mm_w", inner, columns, axis=1)]
    else:
        inputs = [x, s.weight("w", inner, columns)]
    return s.done(s.node("MatMul", inputs, "y", name="mm"))


@graph
def one_row():
    return _product(1, 64, 96, quantized=True)


@graph
def one_row_float():
    return _product(1, 64, 96, quantized=False)


@graph
def narrow_head():
    return _product(64, 64, 10, quantized=True)


@graph
def narrow_head_float():
    return _product(64, 64, 10, quantized=False)


def _sum(quantized: bool) -> onnx.ModelProto:
    s = Quantized()
    inputs = [s.image(), s.input("other", [1, 16, 16, 16])]
    if quantized:
        inputs = [s.pair(name, f"{name}_add") for name in inputs]
    y = s.node("Add", inputs, "sum", name="add")
    return s.done(s.node("Sigmoid", [y], "y", name="sigmoid"))


@graph
def sum_read_as_float():
    return _sum(quantized=True)


@graph
def sum_float():
    return _sum(quantized=False)


def _pool(quantized: bool) -> onnx.ModelProto:
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    y = s.pair(y, "pool_x") if quantized else y
    y = s.node("MaxPool", [y], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    return s.done(s.node("Sigmoid", [y], "y", name="sigmoid"))


@graph
def maxpool_read_as_float():
    return _pool(quantized=True)


@graph
def maxpool_float():
    return _pool(quantized=False)


def _fork(quantized: bool) -> onnx.ModelProto:
    """A Reshape before a float Gemm, and a Reshape before an INT8 Conv, of one tensor."""
    s = Quantized()
    y = s.relu("relu1", s.qconv("c1", s.image()))
    shapes = {"rows": [64, 64], "wide": [1, 16, 32, 8]}
    rows, wide = (
        s.node(
            "Reshape",
            [
                s.pair(y, f"{name}_x") if quantized or name == "wide" else y,
                s.constant(f"{name}_shape", np.array(shape, np.int64)),
            ],
            f"{name}_y",
            name=name,
        )
        for name, shape in shapes.items()
    )
    logits = s.node("Gemm", [rows, s.weight("mm_w", 64, 64)], "logits", name="mm")
    return s.done(logits, s.raw_conv("c2", s.pair(wide, "c2_x"), s.weights("c2", 16, 16, 3, 3)))


@graph
def fork_moved_to_float():
    return _fork(quantized=True)


@graph
def fork_float():
    return _fork(quantized=False)


@graph
def half_weights_per_tensor():
    return _half(weights_per_tensor())


@graph
def depthwise_swish():
    s = Quantized()
    y = s.qconv("dw", s.relu("relu1", s.qconv("c1", s.image())), group=16)
    y = s.node("Mul", [y, s.node("Sigmoid", [y], "gate", name="sigmoid")], "swish", name="mul")
    return s.done(s.qconv("c2", y))


def _batchnorm(between: bool) -> onnx.ModelProto:
    s = Quantized()
    y = s.qconv("c1", s.image())
    y = s.pair(y, "bn_x") if between else y
    return s.done(s.qconv("c2", s.relu("relu", s.batchnorm("bn", y, 16))))


@graph
def pair_before_batchnorm():
    return _batchnorm(between=True)


@graph
def batchnorm():
    return _batchnorm(between=False)


@graph
def weight_cast():
    s = Quantized()
    weight = s.node("Cast", [s.weights("c1_w", 16, 16, 3, 3)], "w_h", name="cast_w", to=TensorProto.FLOAT16)
    x = s.node("Cast", [s.pair(s.image(), "c1_x")], "x_h", name="cast_x", to=TensorProto.FLOAT16)
    return s.done(s.raw_conv("c1", x, weight))


@graph
def probabilities_coarse():
    """`attention_whole` with 20 of 127 steps for its probabilities."""
    proto = attention_whole()
    step = next(tensor for tensor in proto.graph.initializer if tensor.name == "p_in_s")
    step.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.05), "p_in_s"))
    return proto


@graph
def fp8_probabilities():
    """Probabilities in FP8 with another scale than 1/448."""
    s = Quantized()
    s.initializers.append(onnx.helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0]))

    def pair(tensor: str, name: str, step: float) -> str:
        names = [s.constant(f"{name}_s", np.float32(step)), "z"]
        q = s.node("QuantizeLinear", [tensor, *names], f"{name}_q", name=f"{name}/Q")
        return s.node("DequantizeLinear", [q, *names], f"{name}_d", name=f"{name}/DQ")

    y = s.node("Softmax", [s.input("x", [1, 2, 16, 16])], "p", name="softmax", axis=-1)
    inputs = [pair(y, "mm_p", 0.01), pair(s.input("v", [1, 2, 16, 16]), "mm_v", STEP)]
    return s.done(s.node("MatMul", inputs, "y", name="mm"), opset=19)


@graph
def matmul_integer():
    s = Quantized()
    x = s.input("x", [1, 64, 32], TensorProto.INT8)
    weight = s.constant("w", s.random.integers(-127, 127, (32, 48)).astype(np.int8))
    y = s.node("MatMulInteger", [x, weight], "sums", name="mmi")
    s.output(s.node("Cast", [y], "y", name="cast", to=TensorProto.FLOAT), [1, 64, 48])
    return s.model()


@graph
def dangling_dequantize():
    s = Quantized()
    y = s.qconv("c1", s.image())
    q = s.node("QuantizeLinear", [y, "c1_x_s", "c1_x_z"], "q", name="dangling/Q")
    s.node("DequantizeLinear", [q, "c1_x_s", "c1_x_z"], "nobody", name="dangling/DQ")
    return s.done(y)


@graph
def gemm_weight():
    s = Quantized()
    inputs = [s.pair(s.input("x", [64, 32]), "mm_x"), s.weights("mm_w", 32, 48, axis=1)]
    return s.done(s.node("Gemm", inputs, "y", name="mm"))


@graph
def conv_transpose_per_tensor():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "up_x")
    inputs = [y, s.weights("up_w", 16, 16, 2, 2, axis=None)]
    return s.done(s.node("ConvTranspose", inputs, "up_y", name="up", kernel_shape=[2, 2], strides=[2, 2]))


def _branches(body: Callable[[str], onnx.GraphProto]) -> onnx.ModelProto:
    """An If whose two branches read `t`, the scale `s` and the zero point `z`."""
    s = Quantized()
    s.constant("s", np.float32(STEP))
    s.constant("z", np.int8(0))
    s.node("Relu", [s.image()], "t", name="relu")
    choice = s.input("choice", [], TensorProto.BOOL)
    y = s.node("If", [choice], "y", name="branch", then_branch=body("yes"), else_branch=body("no"))
    s.output(y, [1, 16, 16, 16])
    return s.model()


@graph
def conv_inside_if():
    def body(name: str) -> onnx.GraphProto:
        inner = Quantized(1)
        y = inner.qconv(name, "t")
        info = onnx.helper.make_tensor_value_info(y, 1, [1, 16, 16, 16])
        return onnx.helper.make_graph(inner.nodes, name, [], [info], initializer=inner.initializers)

    return _branches(body)


@graph
def pair_inside_if():
    def body(name: str) -> onnx.GraphProto:
        nodes = [
            onnx.helper.make_node("QuantizeLinear", ["t", "s", "z"], [f"{name}_q"], name=f"{name}/Q"),
            onnx.helper.make_node(
                "DequantizeLinear", [f"{name}_q", "s", "z"], [f"{name}_d"], name=f"{name}/DQ"
            ),
        ]
        return onnx.helper.make_graph(
            nodes, name, [], [onnx.helper.make_tensor_value_info(f"{name}_d", 1, [1, 16, 16, 16])]
        )

    return _branches(body)


@graph
def channel_pad_behind_pair():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "pad_x")
    y = s.node("Pad", [y, s.constant("pads", np.array([0, 0, 0, 0, 0, 4, 0, 0]))], "pad_y", name="pad")
    return s.done(s.raw_conv("c2", y, s.weights("c2_w", 16, 20, 3, 3)))


@graph
def own_pad_behind_pair():
    s = Quantized()
    y = s.pair(s.relu("relu1", s.qconv("c1", s.image())), "pad_x")
    y = s.node("Pad", [y, s.constant("pads", np.array([0, 0, 1, 1, 0, 0, 1, 1]))], "pad_y", name="pad")
    return s.done(s.raw_conv("c2", y, s.weights("c2_w", 16, 16, 3, 3)))


def _logarithm(*, quantized: bool) -> onnx.ModelProto:
    """Energies by a table, their logarithm, and a quantized product of it."""
    s = Quantized()
    x = s.matrix()
    factors = (
        (s.pair(x, "mm1_x"), s.weights("mm1", 32, 32, axis=1))
        if quantized
        else (x, s.weight("mm1_w", 32, 32))
    )
    y = s.node("MatMul", list(factors), "mm1_y", name="mm1")
    energy = s.node(
        "Add",
        [s.node("Mul", [y, y], "square", name="mul"), s.constant("floor", np.float32(1e-3))],
        "energy",
        name="add",
    )
    log = s.node("Log", [energy], "log_y", name="log")
    return s.done(
        s.node("MatMul", [s.pair(log, "mm2_x"), s.weights("mm2", 32, 32, axis=1)], "mm2_y", name="mm2")
    )


@graph
def logarithm_of_quantized():
    return _logarithm(quantized=True)


@graph
def logarithm_of_float():
    return _logarithm(quantized=False)


def _fp4(level: Any, length: int | str) -> onnx.ModelProto:
    s = Quantized()
    x = s.input("x", [64, length])
    s.initializers.append(
        onnx.helper.make_tensor("w_q", TensorProto.FLOAT4E2M1, [256, 128], [1.0] * (256 * 128))
    )
    blocks = onnx.helper.make_tensor("w_b", TensorProto.FLOAT8E4M3FN, [16, 128], [2.0] * (16 * 128))
    s.initializers.append(blocks)
    given, along = s.constant("level", level), {"axis": 1, "block_size": 16}
    _trt(s, "TRT_FP4DynamicQuantize", [x, given], "x_q", "x_scales", scale_type=17, **along)
    scale = s.node("DequantizeLinear", ["x_scales", given], "x_s", name="x_s/DQ")
    x = s.node("DequantizeLinear", ["x_q", scale], "x_d", name="x/DQ", **along)
    scale = s.node("DequantizeLinear", ["w_b", s.constant("w_l", np.float32(0.01))], "w_s", name="w_s/DQ")
    weight = s.node("DequantizeLinear", ["w_q", scale], "w_d", name="w/DQ", axis=0, block_size=16)
    s.node("MatMul", [x, weight], "y", name="mm")
    s.output("y", [64, 128])
    return s.model(23, domains=["trt"])


@graph
def quant_of_qonnx():
    s, domain = Quantized(), "qonnx.custom_op.general"
    factors = []
    for tensor, step in ((s.image(), 0.05), (s.weight("w", 16, 16, 3, 3), np.full((16, 1, 1, 1), 0.01))):
        given = [
            s.constant(f"{tensor}_{at}", np.asarray(value, np.float32))
            for at, value in enumerate((step, 0, 8))
        ]
        factors.append(
            s.node("Quant", [tensor, *given], f"{tensor}_d", name=f"{tensor}/Quant", domain=domain)
        )
    s.node("Conv", factors, "y", name="c1", kernel_shape=[3, 3], pads=[1] * 4)
    s.output("y", [1, 16, 16, 16])
    return s.model(17, domains=[domain])


@graph
def weight_clipped():
    """Brevitas writes weights of four bits as Q, Clip and DQ."""
    s = Quantized()
    y = s.weights("c1", 16, 16, 3, 3)
    limits = [s.constant("low", np.int8(-7)), s.constant("high", np.int8(7))]
    s.nodes[-1].input[0] = "c1_w_clipped"
    s.nodes.insert(1, onnx.helper.make_node("Clip", ["c1_w_q", *limits], ["c1_w_clipped"], name="c1_w/Clip"))
    return s.done(s.raw_conv("c1", s.pair(s.image(), "c1_x"), y))


@graph
def conv_int8_blocks():
    s = Quantized()
    stored = s.constant("w_q", s.random.integers(-127, 128, (16, 32, 3, 3)).astype(np.int8))
    given = [stored, s.constant("w_s", np.full((16, 2, 3, 3), 0.01, np.float32))]
    weight = s.node("DequantizeLinear", given, "w_d", name="w/DQ", axis=1, block_size=16)
    x = s.pair(s.input("x", [1, 32, 16, 16]), "c1_x")
    return s.done(s.raw_conv("c1", x, weight), opset=21)


@graph
def matmul_weight_axis_misfit():
    """As many scales as columns, along the axis of the rows."""
    s = Quantized()
    weight = s.weights("mm", 32, 48, axis=1)
    for node in s.nodes:
        node.attribute[0].i = 0
    return s.done(s.node("MatMul", [s.pair(s.matrix(), "mm_x"), weight], "y", name="mm"))


@graph
def int4_channels_int8_activation():
    s = Quantized()
    stored = s.constant("w_q", s.random.integers(-8, 8, (64, 96)).astype(ml_dtypes.int4))
    steps = s.constant("w_s", np.linspace(0.01, 0.02, 96).astype(np.float32))
    weight = s.node("DequantizeLinear", [stored, steps], "w_d", name="w/DQ", axis=1)
    x = s.pair(s.input("x", [16, 64]), "mm_x")
    return s.done(s.node("MatMul", [x, weight], "y", name="mm"), opset=21)


@graph
def fp4_four_levels():
    return _fp4(np.full(4, 0.01, np.float32), 256)


@graph
def fp4_free_blocks():
    return _fp4(np.float32(0.01), "k")

"""Graphs that builders accept, refuse, or die of."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.models import Sketch


def conv_relu(batch: int | str = 1) -> onnx.ModelProto:
    sketch = Sketch()
    x = sketch.input("x", [batch, 3, 8, 8])
    sketch.node("Relu", [sketch.conv("conv", x, (3, 4))], "y", name="relu")
    sketch.output("y", [batch, 4, 8, 8])
    return sketch.model()


def quantized_conv(*, scale: float = 0.02, zero_point: int = 0) -> onnx.ModelProto:
    sketch = Sketch()
    x = sketch.input("x", [1, 4, 8, 8])
    activation_scale = sketch.constant("x_scale", np.float32(scale))
    zero = sketch.constant("x_zero", np.int8(zero_point))
    _quantized_conv(sketch, x, activation_scale, zero)
    return sketch.model()


def computed_scale() -> onnx.ModelProto:
    """The scale of the activation is max(|x|) / 127, computed while the model runs."""
    sketch = Sketch()
    x = sketch.input("x", [1, 4, 8, 8])
    largest = sketch.node("ReduceMax", [sketch.node("Abs", [x], "abs")], "largest", keepdims=0)
    scale = sketch.node("Div", [largest, sketch.constant("levels", np.float32(127))], "made_scale")
    _quantized_conv(sketch, x, scale, sketch.constant("x_zero", np.int8(0)))
    return sketch.model()


def _quantized_conv(sketch: Sketch, x: str, scale: str, zero: str) -> None:
    weight, weight_scale = sketch.weight("w", 4, 4, 3, 3), sketch.constant("w_scale", np.float32(0.01))
    weight_zero = sketch.constant("w_zero", np.int8(0))
    sketch.node("QuantizeLinear", [x, scale, zero], "x_q", name="quantize_x")
    sketch.node("DequantizeLinear", ["x_q", scale, zero], "x_dq", name="dequantize_x")
    sketch.node("QuantizeLinear", [weight, weight_scale, weight_zero], "w_q", name="quantize_w")
    sketch.node("DequantizeLinear", ["w_q", weight_scale, weight_zero], "w_dq", name="dequantize_w")
    sketch.node("Conv", ["x_dq", "w_dq"], "y", name="conv", kernel_shape=[3, 3])
    sketch.output("y", [1, 4, 6, 6])


def pointwise_chain(length: int) -> onnx.ModelProto:
    sketch = Sketch()
    tensor = sketch.input("x", [1, 3, 8, 8])
    for number in range(length - 1):
        tensor = sketch.node(
            ("Sin", "Cos", "Tanh", "Neg")[number % 4], [tensor], f"t{number}", name=f"n{number}"
        )
    sketch.node("Neg", [tensor], "y", name="the_end")
    sketch.output("y", [1, 3, 8, 8])
    return sketch.model()


def zero_divisor() -> onnx.ModelProto:
    sketch = Sketch()
    x = sketch.input("x", [1, 3, 8, 8])
    four, zero = (
        sketch.constant("four", np.array([4], np.int32)),
        sketch.constant("zero", np.array([0], np.int32)),
    )
    sketch.node("Cast", [sketch.node("Div", [four, zero], "d", name="int_div")], "f", to=TensorProto.FLOAT)
    sketch.node("Add", [x, "f"], "y", name="add")
    sketch.output("y", [1, 3, 8, 8])
    return sketch.model()


def non_zero() -> onnx.ModelProto:
    sketch = Sketch()
    x = sketch.input("x", [1, 3, 8, 8])
    sketch.node("Cast", [sketch.node("NonZero", [x], "nz", name="where_not_0")], "y", to=TensorProto.FLOAT)
    sketch.output("y", [4, "found"])
    return sketch.model()


def int32_bias() -> onnx.ModelProto:
    """A Conv whose bias is INT32 behind DequantizeLinear, as onnxruntime writes it."""
    sketch = Sketch()
    x = sketch.input("x", [1, 3, 8, 8])
    bias, scale = (
        sketch.constant("b", np.arange(4, dtype=np.int32)),
        sketch.constant("b_scale", np.float32(0.1)),
    )
    sketch.node("DequantizeLinear", [bias, scale], "b_dq", name="dequantize_bias")
    sketch.node("Conv", [x, sketch.weight("w", 4, 3, 3, 3), "b_dq"], "y", name="conv", kernel_shape=[3, 3])
    sketch.output("y", [1, 4, 6, 6])
    return sketch.model()

"""Small graphs with the names, types and habits of each exporter, as their real exports show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graph.repairing import Sketch, dynamic_layer

MICROSOFT = "com.microsoft"


class Export(Sketch):
    """A stem and one block of a residual network: conv1 -> Relu -> [layer1.0.conv1 + shortcut] -> Relu."""

    def torch_pair(self, x: str, path: str, step: Any, **attributes: Any) -> str:
        """Q and DQ as torch.onnx names the nodes of a quantizer module."""
        scale = self.constant(f"{path}/Constant_1_output_0", np.asarray(step, np.float32))
        zero = self.constant(f"{path}/Constant_output_0", np.zeros(np.shape(step), np.int8))
        q = f"{path}/QuantizeLinear"
        made = self.node("QuantizeLinear", [x, scale, zero], f"{q}_output_0", name=q, **attributes)
        d = f"{path}/DequantizeLinear"
        return self.node("DequantizeLinear", [made, scale, zero], f"{d}_output_0", name=d, **attributes)

    def filter(self, module: str, channels: tuple[int, int], kernel: int = 3) -> tuple[str, np.ndarray]:
        """Float weights under the parameter's name, and the steps of their channels."""
        name = self.weight(f"{module}.weight", channels[1], channels[0], kernel, kernel)
        value = onnx.numpy_helper.to_array(self.initializers[-1])
        return name, np.abs(value).max(axis=(1, 2, 3)) / 127

    def conv_of(self, module: str, x: str, weight: str, name: str = "", bias: str = "") -> str:
        name = name or f"/{module.replace('.', '/')}/Conv"
        inputs = [x, weight, *filter(None, [bias])]
        return self.node("Conv", inputs, f"{name}_output_0", name=name, pads=[1, 1, 1, 1])


def _torch(prefix: str) -> onnx.ModelProto:
    """TorchScript-based export: quantizer modules beside every Conv, children of a Sequential named in full."""
    s = Export()

    def quantized(module: str, path: str, x: str, channels: tuple[int, int], step: float) -> str:
        weight, steps = s.filter(module, channels)
        x = s.torch_pair(x, f"{path}/{prefix}input_quantizer", step)
        weight = s.torch_pair(weight, f"{path}/{prefix}weight_quantizer", steps, axis=0)
        return s.conv_of(module, x, weight, f"{path}/Conv")

    x = s.relu("/relu/Relu", quantized("conv1", "/conv1", s.input("input", [1, 4, 8, 8]), (4, 8), 0.03))
    y = quantized("layer1.0.conv1", "/layer1/layer1.0/conv1", x, (8, 8), 0.02)
    shortcut = s.torch_pair(x, f"/layer1/layer1.0/residual/{prefix}input_quantizer", 0.02)
    s.output(
        s.relu("/layer1/layer1.0/relu/Relu", s.node("Add", [y, shortcut], "sum", name="/layer1/layer1.0/Add"))
    )
    model = s.model(17)
    model.producer_name = "pytorch"
    return model


def pytorch_quantization() -> onnx.ModelProto:
    return _torch("_")


def modelopt_torch() -> onnx.ModelProto:
    return _torch("")


def transposed_linear() -> onnx.ModelProto:
    """A Linear of modelopt or pytorch-quantization on a sequence: Q/DQ, then Transpose, then MatMul."""
    s = Export()
    weight = s.weight("fc1.weight", 16, 8)
    steps = np.abs(onnx.numpy_helper.to_array(s.initializers[-1])).max(axis=1) / 127
    x = s.torch_pair(s.input("input", [1, 6, 8]), "/fc1/input_quantizer", 0.03)
    w = s.torch_pair(weight, "/fc1/weight_quantizer", steps, axis=0)
    w = s.node("Transpose", [w], "/fc1/Transpose_output_0", name="/fc1/Transpose", perm=[1, 0])
    s.output(s.node("MatMul", [x, w], "output", name="/fc1/MatMul"))
    model = s.model(17)
    model.producer_name = "pytorch"
    return model


def pt2e() -> onnx.ModelProto:
    """torch.export with PT2E: frozen integers, asymmetric activations shared by readers, modules in metadata."""
    s = Export()

    def dequantized(number: int, channels: tuple[int, int]) -> str:
        values = s.integers(f"_frozen_param{number}", channels[1], channels[0], 3, 3)
        name = f"dequantize_per_channel_{number}"
        scale = s.constant(f"val_{number}", np.linspace(0.001, 0.002, channels[1], dtype=np.float32))
        zero = s.constant(f"zeros_{number}", np.zeros(channels[1], np.int8))
        return s.node("DequantizeLinear", [values, scale, zero], name, name=f"node_{name}", axis=0)

    def pair(x: str, number: int, step: float, zero: int) -> str:
        names = s.constant(f"step_{number}", np.float32(step)), s.constant(f"zero_{number}", np.int8(zero))
        q = f"quantize_per_tensor_{number}"
        q = s.node("QuantizeLinear", [x, *names], q, name=f"node_{q}")
        d = f"dequantize_per_tensor_{number}"
        return s.node("DequantizeLinear", [q, *names], d, name=f"node_{d}")

    x = pair(s.input("input", [1, 4, 8, 8]), 0, 0.03, -4)
    x = s.relu("node_relu", s.conv_of("conv1", x, dequantized(0, (4, 8)), "node_conv2d"))
    x = pair(x, 1, 0.02, -128)
    y = pair(s.conv_of("layer1.0.conv1", x, dequantized(1, (8, 8)), "node_conv2d_1"), 2, 0.05, 3)
    y = s.node("Add", [y, x], "add", name="node_add")
    s.output(pair(s.relu("node_relu_1", y), 3, 0.03, -128))
    model = s.model(18)
    model.producer_name = "pytorch"
    scopes = {
        "node_conv2d": "['', 'conv1', 'conv2d']",
        "node_conv2d_1": "['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d_1']",
    }
    for node in model.graph.node:
        if node.name in scopes:
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes[node.name])
    return model


def fake_quantization() -> onnx.ModelProto:
    """torch.ao FX QAT: seven bits by a Clip between Q and DQ, scales of shape [1], parameters that name modules."""
    s = Export()
    scale = s.constant("activation_post_process_0.scale", np.asarray([0.06], np.float32))
    zero = s.constant("zero_0", np.asarray([68], np.uint8))
    low, high = s.constant("low", np.uint8(0)), s.constant("high", np.uint8(127))

    def clipped(x: str, number: int, scale: str, zero: str) -> str:
        path = f"/activation_post_process_{number}"
        q = s.node("QuantizeLinear", [x, scale, zero], f"{path}/q", name=f"{path}/QuantizeLinear")
        q = s.node("Clip", [q, low, high], f"{path}/c", name=f"{path}/Clip")
        return s.node("DequantizeLinear", [q, scale, zero], f"{path}/d", name=f"{path}/DequantizeLinear")

    def weight(module: str, path: str, channels: tuple[int, int]) -> str:
        name, steps = s.filter(module, channels)
        s.initializers[-1].name = name = f"onnx::QuantizeLinear_{len(s.initializers)}"
        names = [
            name,
            s.constant(f"{module}.weight_fake_quant.scale", steps.astype(np.float32)),
            s.constant(f"{path}_zeros", np.zeros(len(steps), np.int8)),
        ]
        q = s.node("QuantizeLinear", names, f"{path}/q", name=f"{path}/QuantizeLinear", axis=0)
        return s.node(
            "DequantizeLinear", [q, *names[1:]], f"{path}/d", name=f"{path}/DequantizeLinear", axis=0
        )

    x = clipped(s.input("input", [1, 4, 8, 8]), 0, scale, zero)
    x = s.conv_of("conv1", x, weight("conv1", "/conv1/weight_fake_quant", (4, 8)))
    x = s.relu("/conv1/Relu", x)
    positive = (
        s.constant("scale_1", np.asarray([0.04], np.float32)),
        s.constant("zero_1", np.asarray([0], np.uint8)),
    )
    x = clipped(x, 1, *positive)
    y = weight("layer1.0.conv1", "/conv1/weight_fake_quant_1", (8, 8))
    s.output(s.conv_of("layer1.0.conv1", x, y, "/conv1_1/Conv"))
    model = s.model(17)
    model.producer_name = "pytorch"
    return model


def _onnxruntime(kind: Any, zero: int, domain: str = "") -> onnx.ModelProto:
    """quantize_static in QDQ form: INT32 biases, per-channel weights, pairs behind every operator."""
    s = Export()

    def pair(x: str, step: float, zero: int, name: str) -> str:
        names = s.constant(f"{name}_scale", np.float32(step)), s.constant(f"{name}_zero_point", kind(zero))
        made = f"{name}_QuantizeLinear_Output"
        q = s.node("QuantizeLinear", [x, *names], made, name=f"{name}_QuantizeLinear", domain=domain)
        made = f"{name}_DequantizeLinear_Output"
        return s.node("DequantizeLinear", [q, *names], made, name=f"{name}_DequantizeLinear", domain=domain)

    def layer(x: str, module: str, channels: tuple[int, int], step: float) -> str:
        steps = np.linspace(0.001, 0.002, channels[1], dtype=np.float32)
        values = s.integers(f"{module}.weight_quantized", channels[1], channels[0], 3, 3)
        names = [s.constant(f"{module}.weight_scale", steps)]
        names.append(s.constant(f"{module}.weight_zero_point", np.zeros(channels[1], np.int8)))
        w = s.node(
            "DequantizeLinear",
            [values, *names],
            f"{module}.weight_DequantizeLinear_Output",
            name=f"{module}.weight_DequantizeLinear",
            axis=0,
            domain=domain,
        )
        bias = s.constant(
            f"{module}.bias_quantized", s.random.integers(-500, 500, channels[1]).astype(np.int32)
        )
        names = [s.constant(f"{module}.bias_quantized_scale", steps * np.float32(step))]
        names.append(s.constant(f"{module}.bias_quantized_zero_point", np.zeros(channels[1], np.int32)))
        b = s.node(
            "DequantizeLinear",
            [bias, *names],
            f"{module}.bias",
            name=f"{module}.bias_DequantizeLinear",
            axis=0,
            domain=domain,
        )
        return s.conv_of(module, x, w, bias=b)

    x = pair(s.input("input", [1, 4, 8, 8]), 0.03, zero + 4, "input")
    x = pair(s.relu("/relu/Relu", layer(x, "conv1", (4, 8), 0.03)), 0.02, np.iinfo(kind).min, "relu")
    y = pair(layer(x, "layer1.0.conv1", (8, 8), 0.02), 0.05, zero + 3, "conv")
    y = s.relu("/layer1/layer1.0/relu/Relu", s.node("Add", [y, x], "add", name="/layer1/layer1.0/Add"))
    s.output(pair(y, 0.03, np.iinfo(kind).min, "output"))
    model = s.model(17, domains=[domain] if domain else [])
    model.producer_name = "onnx.quantize"
    return model


def onnxruntime_uint8() -> onnx.ModelProto:
    return _onnxruntime(np.uint8, 128)


def onnxruntime_int8() -> onnx.ModelProto:
    return _onnxruntime(np.int8, 0)


def onnxruntime_contrib() -> onnx.ModelProto:
    return _onnxruntime(np.int8, 0, MICROSOFT)


def quark() -> onnx.ModelProto:
    model = onnxruntime_uint8()
    model.producer_name = "quark.onnx"
    return model


def onnxruntime_operators() -> onnx.ModelProto:
    """quantize_static in operator form: QLinearConv, QLinearAdd, QLinearConcat, MaxPool and Resize of integers, QGemm."""
    s = Export()

    def numbers(name: str, step: Any, zero: Any, kind: Any = np.uint8) -> list[str]:
        zeros = np.broadcast_to(np.asarray(zero, kind), np.shape(step)).copy()
        return [s.constant(f"{name}_s", np.asarray(step, np.float32)), s.constant(f"{name}_z", zeros)]

    def layer(x: list[str], module: str, channels: tuple[int, int], out: list[str]) -> list[str]:
        values = s.integers(f"{module}.weight_quantized", channels[1], channels[0], 3, 3)
        w = [values, *numbers(f"{module}_w", np.linspace(0.001, 0.002, channels[1]), 0, np.int8)]
        bias = s.constant(f"{module}_b", s.random.integers(-500, 500, channels[1]).astype(np.int32))
        name = f"/{module.replace('.', '/')}/Conv_quant"
        made = s.node("QLinearConv", [*x, *w, *out, bias], f"{module}_y", name=name, pads=[1, 1, 1, 1])
        return [made, *out]

    first = numbers("input", 0.03, 132)
    x = s.node(
        "QuantizeLinear", [s.input("input", [1, 4, 8, 8]), *first], "input_q", name="input_QuantizeLinear"
    )
    a = layer([x, *first], "conv1", (4, 8), numbers("a", 0.05, 0))
    b = layer(a, "layer1.0.conv1", (8, 8), numbers("b", 0.08, 120))
    total = numbers("total", 0.06, 100)
    c = s.node("QLinearAdd", [*a, *b, *total], "add_q", name="/Add_quant", domain=MICROSOFT)
    pooled = s.node("MaxPool", [c], "pool_q", name="/pool", kernel_shape=[2, 2], strides=[2, 2])
    sizes = s.constant("sizes", np.asarray([1, 8, 8, 8], np.int64))
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    wide = s.node("Resize", [pooled, "", "", sizes], "wide_q", name="/up", **options)
    joined = numbers("joined", 0.07, 90)
    inputs = [*joined, wide, *total, *a]
    d = s.node("QLinearConcat", inputs, "cat_q", name="/Concat_quant", domain=MICROSOFT, axis=1)
    mean = numbers("mean", 0.05, 80)
    options = {"channels_last": 0}
    e = s.node(
        "QLinearGlobalAveragePool",
        [d, *joined, *mean],
        "gap_q",
        name="/gap_quant",
        domain=MICROSOFT,
        **options,
    )
    flat = s.node("Flatten", [e], "flat_q", name="/flatten")
    weight = [
        s.integers("fc.weight_quantized", 10, 16),
        *numbers("fc_w", np.linspace(0.001, 0.002, 10), 0, np.int8),
    ]
    bias = s.constant("fc_b", s.random.integers(-500, 500, 10).astype(np.int32))
    last = numbers("output", 0.02, 128)
    y = s.node(
        "QGemm",
        [flat, *mean, *weight, bias, *last],
        "output_q",
        name="/fc/Gemm_quant",
        domain=MICROSOFT,
        transB=1,
    )
    s.output(s.node("DequantizeLinear", [y, *last], "output", name="output_DequantizeLinear"))
    model = s.model(17, domains=[MICROSOFT])
    model.producer_name = "onnx.quantize"
    return model


def tensorflow_qat() -> onnx.ModelProto:
    """quantize_model of tfmot through tf2onnx: uint8 activations, weights whose fake quantization was computed."""
    s = Export()

    def fake(x: str, layer: str, step: float, zero: int) -> str:
        path = f"model/quant_{layer}/MovingAvgQuantize/FakeQuantWithMinMaxVars"
        names = s.constant(f"{path}_scaley", np.float32(step)), s.constant(f"{path}_zpy", np.uint8(zero))
        q = s.node("QuantizeLinear", [x, *names], f"{path}_Q:0", name=f"{path}_QuantizeLinear__12")
        return s.node("DequantizeLinear", [q, *names], f"{path}:0", name=f"{path}_DequantizeLinear__13")

    x = fake(s.input("input", [1, 8, 8, 4]), "layer", 0.03, 126)
    x = s.node("Transpose", [x], "turned", name="Transpose__14", perm=[0, 3, 1, 2])
    w, _ = s.filter("w1", (4, 8))
    x = s.node("Conv", [x, w], "stem:0", name="model/quant_stem/Conv2D", pads=[1, 1, 1, 1])
    x = fake(s.relu("model/quant_r/Relu", x), "r", 0.02, 0)
    w, _ = s.filter("w2", (8, 8))
    y = s.node("Conv", [x, w], "pw:0", name="model/quant_pw/Conv2D", pads=[1, 1, 1, 1])
    y = s.node("Add", [fake(y, "pw", 0.03, 120), x], "add:0", name="model/quant_add/add")
    y = fake(y, "add", 0.03, 127)
    s.output(s.node("Transpose", [y], "output", name="Transpose__20", perm=[0, 2, 3, 1]))
    model = s.model(17)
    model.producer_name = "tf2onnx"
    return model


def dynamic_conv() -> onnx.ModelProto:
    """quantize_dynamic on a Conv: the range of its input is measured at run time."""
    s = Export()
    names = ["q", "q_s", "q_z"]
    s.nodes.append(
        helper.make_node("DynamicQuantizeLinear", [s.input("input", [1, 4, 8, 8])], names, name="dql")
    )
    weight, zero = s.integers("w", 8, 4, 3, 3), s.constant("w_z", np.zeros((), np.int8))
    y = s.node("ConvInteger", ["q", weight, "q_z", zero], "sum", name="/conv1/Conv_quant", pads=[1, 1, 1, 1])
    y = s.node("Cast", [y], "sum_f", name="cast", to=TensorProto.FLOAT)
    factor = s.node("Mul", ["q_s", s.constant("w_s", np.float32(0.01))], "f", name="f")
    s.output(s.node("Mul", [y, factor], "y", name="out"))
    model = s.model()
    model.producer_name = "onnx.quantize"
    return model


EXPORTS: dict[str, Callable[[], onnx.ModelProto]] = {
    made.__name__: made
    for made in (
        pytorch_quantization,
        modelopt_torch,
        transposed_linear,
        pt2e,
        fake_quantization,
        onnxruntime_uint8,
        onnxruntime_int8,
        onnxruntime_contrib,
        onnxruntime_operators,
        quark,
        tensorflow_qat,
    )
}
"""Models with a range for every activation."""
DYNAMIC: dict[str, Callable[[], onnx.ModelProto]] = {"conv": dynamic_conv, "matmul": dynamic_layer}
"""Models whose ranges are measured at run time."""
ORIGINS = {
    "pytorch_quantization": "pytorch-quantization",
    "modelopt_torch": "modelopt.torch",
    "transposed_linear": "modelopt.torch",
    "pt2e": "PT2E",
    "fake_quantization": "torch.ao fake quantization",
    "onnxruntime_uint8": "onnxruntime or modelopt.onnx",
    "onnxruntime_int8": "onnxruntime or modelopt.onnx",
    "onnxruntime_contrib": "onnxruntime or modelopt.onnx",
    "onnxruntime_operators": "onnxruntime or modelopt.onnx",
    "quark": "quark",
    "tensorflow_qat": "TensorFlow QAT",
}

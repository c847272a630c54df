"""Small hand-made ONNX models with seeded weights, one function per pattern that people deploy.

Each function returns a valid `onnx.ModelProto` (opset 17 unless said, inputs and outputs float32 unless said) whose
node names are short and stable, so that a test can speak about `"conv1"`. `save(proto, folder)` puts one on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.typed.emulate import emulate_types

Shape = Sequence["int | str"]


class Sketch:
    """Writes a graph line by line: `sketch.node("Conv", [x, w], "y", name="conv1")` returns "y"."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, shape: Shape | None = None, dtype: int = TensorProto.FLOAT) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, name: str, value: Any) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A random float32 initializer, scaled so that activations keep their size."""
        fan_in = max(1, int(np.prod(shape[1:])))
        return self.constant(name, (self.random.standard_normal(shape) / fan_in**0.5).astype(np.float32))

    def node(self, op: str, inputs: Sequence[str], output: str, *, name: str = "", **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=name or output, **attributes))
        return output

    def conv(
        self,
        name: str,
        x: str,
        channels: tuple[int, int],
        *,
        kernel: int = 3,
        stride: int = 1,
        group: int = 1,
    ) -> str:
        """A square Conv with bias and same padding; `channels` is (in, out); the output tensor is `<name>_y`."""
        weight = self.weight(f"{name}_w", channels[1], channels[0] // group, kernel, kernel)
        bias = self.weight(f"{name}_b", channels[1])
        pads = [kernel // 2] * 4
        return self.node(
            "Conv",
            [x, weight, bias],
            f"{name}_y",
            name=name,
            kernel_shape=[kernel] * 2,
            pads=pads,
            strides=[stride] * 2,
            group=group,
        )

    def batchnorm(self, name: str, x: str, channels: int, **attributes: Any) -> str:
        """A BatchNormalization with lively statistics; the output tensor is `<name>_y`."""
        values = {
            "scale": self.random.uniform(0.5, 1.5, channels),
            "shift": self.random.standard_normal(channels),
            "mean": self.random.standard_normal(channels),
            "var": self.random.uniform(0.5, 2.0, channels),
        }
        names = [self.constant(f"{name}_{key}", value.astype(np.float32)) for key, value in values.items()]
        return self.node("BatchNormalization", [x, *names], f"{name}_y", name=name, **attributes)

    def relu(self, name: str, x: str) -> str:
        return self.node("Relu", [x], f"{name}_y", name=name)

    def model(self, opset: int = 17, domains: Sequence[str] = ()) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "sketch", self.inputs, self.outputs, initializer=self.initializers
        )
        imports = [
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(domain, 1) for domain in domains),
        ]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def conv_chain(opset: int = 17) -> onnx.ModelProto:
    """x -> conv1 -> relu1 -> conv2 -> relu2 -> y, 8 channels."""
    s = Sketch()
    x = s.input("x", [1, 8, 8, 8])
    x = s.relu("relu1", s.conv("conv1", x, (8, 8)))
    s.output(s.relu("relu2", s.conv("conv2", x, (8, 16))), [1, 16, 8, 8])
    return s.model(opset)


def residual_cnn(batchnorm: bool = False) -> onnx.ModelProto:
    """Stem, one identity block (conv1, conv2, add1), one projected block (conv3, conv4, shortcut, add2), head."""
    s = Sketch(1)

    def unit(name: str, x: str, channels: tuple[int, int], kernel: int = 3, stride: int = 1) -> str:
        y = s.conv(name, x, channels, kernel=kernel, stride=stride)
        return s.batchnorm(f"{name}_bn", y, channels[1]) if batchnorm else y

    x = s.input("x", ["N", 3, 16, 16])
    stem = s.relu("stem_relu", unit("stem", x, (3, 8)))
    y = s.relu("relu1", unit("conv1", stem, (8, 8)))
    y = s.node("Add", [unit("conv2", y, (8, 8)), stem], "add1_y", name="add1")
    block = s.relu("relu2", y)
    y = s.relu("relu3", unit("conv3", block, (8, 16), stride=2))
    shortcut = unit("shortcut", block, (8, 16), kernel=1, stride=2)
    y = s.node("Add", [unit("conv4", y, (16, 16)), shortcut], "add2_y", name="add2")
    y = s.node("GlobalAveragePool", [s.relu("relu4", y)], "gap_y", name="gap")
    y = s.node("Flatten", [y], "flat_y", name="flat")
    head = [y, s.weight("fc_w", 10, 16), s.weight("fc_b", 10)]
    s.output(s.node("Gemm", head, "logits", name="fc", transB=1), ["N", 10])
    return s.model()


def depthwise_cnn() -> onnx.ModelProto:
    """MobileNet-like: stem, depthwise dw, pointwise pw, Clip as ReLU6, BatchNormalization after each Conv."""
    s = Sketch(2)
    low, high = s.constant("zero", np.float32(0)), s.constant("six", np.float32(6))
    x = s.input("x", [1, 3, 16, 16])
    for name, channels, group, kernel in (
        ("stem", (3, 16), 1, 3),
        ("dw", (16, 16), 16, 3),
        ("pw", (16, 24), 1, 1),
    ):
        x = s.batchnorm(f"{name}_bn", s.conv(name, x, channels, kernel=kernel, group=group), channels[1])
        x = s.node("Clip", [x, low, high], f"{name}_clip_y", name=f"{name}_clip")
    s.output(x, [1, 24, 16, 16])
    return s.model()


def concat_cnn() -> onnx.ModelProto:
    """SqueezeNet-like fire: squeeze -> (left 1x1, right 3x3) -> concat -> maxpool -> tail; a Dropout on the way."""
    s = Sketch(3)
    x = s.relu("squeeze_relu", s.conv("squeeze", s.input("x", [1, 8, 16, 16]), (8, 8), kernel=1))
    left = s.relu("left_relu", s.conv("left", x, (8, 8), kernel=1))
    right = s.relu("right_relu", s.conv("right", x, (8, 8)))
    y = s.node("Concat", [left, right], "concat_y", name="concat", axis=1)
    y = s.node("MaxPool", [y], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    y = s.node("Dropout", [y], "drop_y", name="drop")
    s.output(s.conv("tail", y, (16, 8)), [1, 8, 8, 8])
    return s.model()


def unet(group: int = 1) -> onnx.ModelProto:
    """down -> pool -> middle -> up (ConvTranspose, BatchNormalization) -> concat with the skip -> tail."""
    s = Sketch(4)
    skip = s.relu("down_relu", s.conv("down", s.input("x", [1, 8, 16, 16]), (8, 8)))
    y = s.node("MaxPool", [skip], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2])
    y = s.relu("middle_relu", s.conv("middle", y, (8, 16)))
    weight = s.weight("up_w", 16, 8 // group, 2, 2)
    inputs = [y, weight, s.weight("up_b", 8)]
    y = s.node("ConvTranspose", inputs, "up_y", name="up", kernel_shape=[2, 2], strides=[2, 2], group=group)
    y = s.node("Concat", [s.batchnorm("up_bn", y, 8), skip], "concat_y", name="concat", axis=1)
    s.output(s.conv("tail", y, (16, 4)), [1, 4, 16, 16])
    return s.model()


def attention() -> onnx.ModelProto:
    """One transformer block: qkv matmuls, scaled dot product, residual adds, LayerNormalization, GELU by Erf."""
    s = Sketch(5)
    tokens, width, heads = 16, 32, 2
    x = s.input("x", ["N", tokens, width])

    def dense(name: str, x: str, shape: tuple[int, int]) -> str:
        y = s.node("MatMul", [x, s.weight(f"{name}_w", *shape)], f"{name}_mm", name=name)
        return s.node("Add", [y, s.weight(f"{name}_b", shape[1])], f"{name}_y", name=f"{name}_bias")

    def norm(name: str, x: str) -> str:
        gain = s.constant(f"{name}_g", np.ones(width, np.float32))
        return s.node(
            "LayerNormalization", [x, gain, s.weight(f"{name}_b", width)], f"{name}_y", name=name, axis=-1
        )

    split = s.constant("split_shape", np.array([0, tokens, heads, width // heads]))
    merge = s.constant("merge_shape", np.array([0, tokens, width]))
    h = norm("norm1", x)
    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = s.node(
            "Reshape", [dense(part, h, (width, width)), split], f"{part}_split", name=f"{part}_reshape"
        )
        parts[part] = s.node("Transpose", [y], f"{part}_heads", name=f"{part}_transpose", perm=order)
    y = s.node("MatMul", [parts["q"], parts["k"]], "scores", name="qk")
    y = s.node("Mul", [y, s.constant("factor", np.float32(0.25))], "scaled", name="scale")
    y = s.node("Softmax", [y], "weights", name="softmax", axis=-1)
    y = s.node("MatMul", [y, parts["v"]], "context", name="av")
    y = s.node("Transpose", [y], "context_t", name="context_transpose", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, merge], "merged", name="merge")
    x = s.node("Add", [dense("proj", y, (width, width)), x], "res1", name="add1")
    y = dense("up", norm("norm2", x), (width, 2 * width))
    e = s.node("Div", [y, s.constant("sqrt2", np.float32(2**0.5))], "gelu_div", name="gelu_div")
    e = s.node("Erf", [e], "gelu_erf", name="gelu_erf")
    e = s.node("Add", [e, s.constant("one", np.float32(1))], "gelu_add", name="gelu_add")
    y = s.node(
        "Mul",
        [s.node("Mul", [y, e], "gelu_mul", name="gelu_mul"), s.constant("half", np.float32(0.5))],
        "gelu_y",
        name="gelu_half",
    )
    s.output(s.node("Add", [dense("down", y, (2 * width, width)), x], "y", name="add2"), ["N", tokens, width])
    return s.model()


def gemms() -> onnx.ModelProto:
    """fc1 (transB=1, as PyTorch exports) -> relu -> fc2 (transB=0, as TensorFlow exports, alpha and beta set)."""
    s = Sketch(6)
    x = s.input("x", ["N", 32])
    y = s.node("Gemm", [x, s.weight("fc1_w", 24, 32), s.weight("fc1_b", 24)], "fc1_y", name="fc1", transB=1)
    inputs = [s.relu("relu1", y), s.weight("fc2_w", 24, 16), s.weight("fc2_b", 16)]
    y = s.node("Gemm", inputs, "fc2_y", name="fc2", alpha=0.5, beta=2.0)
    s.output(s.batchnorm("fc2_bn", y, 16), ["N", 16])
    return s.model()


def matmuls() -> onnx.ModelProto:
    """The weight on the right (mm_right), on the left (mm_left), and no weight at all (mm_both)."""
    s = Sketch(7)
    x = s.input("x", [1, 16, 32])
    right = s.node("MatMul", [x, s.weight("right_w", 32, 24)], "right_y", name="mm_right")
    left = s.node("MatMul", [s.weight("left_w", 24, 16), x], "left_y", name="mm_left")
    s.output(s.node("MatMul", [right, left], "y", name="mm_both"), [1, 16, 32])
    return s.model()


def silu_cnn() -> onnx.ModelProto:
    """Detector-like: conv1 -> SiLU -> nearest Resize -> concat with the SiLU of conv2 -> head -> sigmoid."""
    s = Sketch(8)
    x = s.input("x", [1, 8, 16, 16])

    def silu(name: str, x: str) -> str:
        gate = s.node("Sigmoid", [x], f"{name}_gate", name=f"{name}_sigmoid")
        return s.node("Mul", [x, gate], f"{name}_act", name=f"{name}_mul")

    small = silu("conv1", s.conv("conv1", x, (8, 8), stride=2))
    factors = s.constant("factors", np.array([1, 1, 2, 2], np.float32))
    up = s.node("Resize", [small, "", factors], "up_y", name="up", mode="nearest")
    side = silu("conv2", s.conv("conv2", x, (8, 8)))
    y = s.node("Concat", [up, side], "concat_y", name="concat", axis=1)
    s.output(s.node("Sigmoid", [s.conv("head", y, (16, 4), kernel=1)], "y", name="sigmoid"), [1, 4, 16, 16])
    return s.model()


def weight_transpose() -> onnx.ModelProto:
    """A MatMul whose weight passes through Constant, Cast and Transpose nodes that depend on constants only."""
    s = Sketch(9)
    x = s.input("x", ["N", 32])
    half = (s.random.standard_normal((24, 32)) / 6).astype(np.float16)
    s.nodes.append(
        helper.make_node("Constant", [], ["w16"], name="weight", value=numpy_helper.from_array(half, "w16"))
    )
    wide = s.node("Cast", ["w16"], "w32", name="cast", to=TensorProto.FLOAT)
    weight = s.node("Transpose", [wide], "w_t", name="transpose", perm=[1, 0])
    y = s.node("Identity", [s.node("MatMul", [x, weight], "mm_y", name="mm")], "same_y", name="same")
    s.output(s.relu("relu", y), ["N", 24])
    return s.model()


def branching() -> onnx.ModelProto:
    """An If whose bodies read a tensor of the main graph, after a Conv."""
    s = Sketch(10)
    x = s.conv("conv", s.input("x", [1, 8, 8, 8]), (8, 8))
    flag = s.input("flag", [], TensorProto.BOOL)
    bodies = {}
    for branch, op in (("then_branch", "Relu"), ("else_branch", "Sigmoid")):
        out = helper.make_tensor_value_info(f"{branch}_y", TensorProto.FLOAT, [1, 8, 8, 8])
        bodies[branch] = helper.make_graph([helper.make_node(op, [x], [f"{branch}_y"])], branch, [], [out])
    s.nodes.append(helper.make_node("If", [flag], ["y"], name="choose", **bodies))
    s.output("y", [1, 8, 8, 8])
    return s.model()


ALL: dict[str, Callable[[], onnx.ModelProto]] = {
    builder.__name__: builder
    for builder in (
        conv_chain,
        residual_cnn,
        depthwise_cnn,
        concat_cnn,
        unet,
        attention,
        gemms,
        matmuls,
        silu_cnn,
        weight_transpose,
        branching,
    )
}


def save(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write the model into `folder` and return its path."""
    path = folder / name
    path.write_bytes(proto.SerializeToString(deterministic=True))
    return path


def feeds(proto: onnx.ModelProto, seed: int = 0, batch: int = 2) -> dict[str, np.ndarray]:
    """Random inputs; symbolic dimensions become `batch`."""
    random = np.random.default_rng(seed)
    known = {tensor.name for tensor in proto.graph.initializer}
    made = {}
    for value in proto.graph.input:
        if value.name in known:
            continue
        kind = value.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else batch for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        made[value.name] = random.standard_normal(shape).astype(dtype)
    return made


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], optimize: bool = True) -> dict[str, np.ndarray]:
    """Outputs by name, computed by onnxruntime with FP16 and BF16 emulated; `optimize=False` keeps every node as written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = proto.SerializeToString()
    if found := emulate_types(content):
        content = serialize(found[0])
    try:
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(f"this onnxruntime has no kernel: {error}")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))

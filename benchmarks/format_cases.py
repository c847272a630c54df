"""Small graphs in every number format, as asked and as TensorRT for RTX silently computes them in float.

Each is one thing that a model may do to its Q/DQ; beside it stands one that is realised. Everything float is FP16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_STORED = {
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "fp8": ml_dtypes.float8_e4m3fn,
    "nvfp4": ml_dtypes.float4_e2m1fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "uint4": ml_dtypes.uint4,
    "uint8": np.uint8,
    "int16": np.int16,
}
_FLOAT = np.float16
_RANDOM = np.random.default_rng(0)


@dataclass
class Graph:
    """A graph under construction; everything float is FP16."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op: str, *inputs: str, name: str = "", count: int = 1, **attributes: Any) -> str:
        outputs = [f"t{len(self.nodes)}_{number}" for number in range(count)]
        name = name or f"n{len(self.nodes)}"
        domain = "trt" if op.startswith("TRT_") else ""
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=name, domain=domain, **attributes))
        return outputs[0]

    def pair(
        self, tensor: str, format_: str, shape: tuple[int, ...] = (), axis: int = 1, **other: Any
    ) -> str:
        """Q and DQ with made-up scales; `other` scale, shift (the zero point) and float_type, and attributes of Q."""
        value, kind = other.pop("scale", 0.05), other.pop("float_type", _FLOAT)
        step = self.constant(np.full(shape, value, kind))
        zero = self.constant(np.full(shape, other.pop("shift", 0), _STORED[format_]))
        stored = self.node("QuantizeLinear", tensor, step, zero, axis=axis, **other)
        return self.node("DequantizeLinear", stored, step, zero, axis=axis)

    def measured(self, tensor: str, format_: str) -> str:
        """Q and DQ whose scale is computed from the values."""
        peak = self.node("ReduceMax", self.node("Abs", tensor), keepdims=0)
        step = self.node("Div", peak, self.constant(_FLOAT(100)))
        zero = self.constant(np.zeros((), _STORED[format_]))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", tensor, step, zero), step, zero)

    def weight(
        self, format_: str, shape: tuple[int, ...], scales: tuple[int, ...] = (), axis: int = 1, **other: Any
    ) -> str:
        """A stored weight behind a DequantizeLinear; `other` value, scale, shift, float_type and block."""
        kind, drawn = _STORED[format_], np.abs if format_.startswith("u") else np.positive
        value = np.full(shape, other["value"]) if "value" in other else _RANDOM.integers(-3, 4, shape)
        stored = self.constant(drawn(value).astype(kind))
        block = other.get("block") or (shape[axis] // scales[axis] if len(scales) > 1 else 0)
        step = self.constant(np.full(scales, other.get("scale", 0.02), other.get("float_type", _FLOAT)))
        zero = [self.constant(np.full(scales, other["shift"], kind))] if "shift" in other else []
        more = {"block_size": block} if block else {}
        return self.node("DequantizeLinear", stored, step, *zero, axis=axis, **more)

    def weight4(self, shape: tuple[int, ...], axis: int = 0, block: int = 16, *, rounds: bool = False) -> str:
        """NVFP4: scales of two levels along an axis; a float weight behind Q and DQ where it `rounds`."""
        scales = tuple(size // block if at == axis else size for at, size in enumerate(shape))
        low = self.constant(np.full(scales, 2.0, _STORED["fp8"]))
        scale = self.node("DequantizeLinear", low, self.constant(_FLOAT(0.01)))
        along = {"axis": axis, "block_size": block}
        if rounds:
            value = self.constant(_RANDOM.standard_normal(shape).astype(_FLOAT))
            stored = self.node("QuantizeLinear", value, scale, output_dtype=TensorProto.FLOAT4E2M1, **along)
        else:
            stored = self.constant(_RANDOM.integers(-3, 4, shape).astype(_STORED["nvfp4"]))
        return self.node("DequantizeLinear", stored, scale, **along)

    def computed4(self, tensor: str, axis: int = 1, block: int = 16) -> str:
        """NVFP4 with computed block scales."""
        level, index, along = (
            self.constant(_FLOAT(0.01)),
            len(self.nodes),
            {"axis": axis, "block_size": block},
        )
        values = self.node("TRT_FP4DynamicQuantize", tensor, level, count=2, scale_type=17, **along)
        scale = self.node("DequantizeLinear", f"t{index}_1", level)
        return self.node("DequantizeLinear", values, scale, **along)

    def constant4(self, tensor: str, rows: int, depth: int) -> str:
        """NVFP4 with constant block scales."""
        low = self.constant(np.full((rows, depth // 16), 2.0, _STORED["fp8"]))
        scale = self.node("DequantizeLinear", low, self.constant(_FLOAT(0.01)))
        stored = self.node(
            "QuantizeLinear", tensor, scale, axis=1, block_size=16, output_dtype=TensorProto.FLOAT4E2M1
        )
        return self.node("DequantizeLinear", stored, scale, axis=1, block_size=16)

    def done(self, result: str) -> onnx.ModelProto:
        self.outputs.append(helper.make_tensor_value_info(result, TensorProto.FLOAT16, None))
        graph = helper.make_graph(self.nodes, "formats", self.inputs, self.outputs, self.constants)
        imports = [helper.make_opsetid("", 23), helper.make_opsetid("trt", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


Make = Callable[[], onnx.ModelProto]


def product(
    activation: Callable[[Graph, str], str],
    weight: Callable[[Graph], str],
    rows: int = 64,
    depth: int = 256,
    **attributes: Any,
) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        x = g.node("Relu", g.input(rows, depth))
        given = (activation(g, x), weight(g))
        return g.done(g.node("Gemm" if attributes else "MatMul", *given, name="core", **attributes))

    return make


def behind(front: str, axis: int = -1, *, turned: bool = False) -> Make:
    """NVFP4 with constant block scales behind an operator that sums, or a ReduceMean that is subtracted."""

    def make() -> onnx.ModelProto:
        g = Graph()
        x = g.node("Relu", g.input(256, 256))
        if front == "ReduceMean":
            x = g.node("Sub", x, g.node("ReduceMean", x, g.constant(np.array([axis]))))
        else:
            scale = [g.constant(np.ones(256, _FLOAT))] if front == "LayerNormalization" else []
            x = g.node(front, x, *scale, axis=axis)
        if turned:
            x = g.node("Transpose", x, perm=[1, 0])
        return g.done(g.node("MatMul", g.constant4(x, 256, 256), w4(SQUARE)(g), name="core"))

    return make


def convolution(
    activation: Callable[[Graph, str], str],
    weight: Callable[[Graph], str],
    op: str = "Conv",
    **attributes: Any,
) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        x = g.node("Relu", g.input(1, 64, 32, 32))
        return g.done(g.node(op, activation(g, x), weight(g), name="core", **attributes))

    return make


def shared(weight: Callable[[Graph], str], *, copied: bool = False, rows: int = 64) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        one = weight(g)
        two = weight(g) if copied else one
        middle = g.node("MatMul", g.node("Relu", g.input(rows, 256)), one, name="core")
        return g.done(g.node("MatMul", g.node("Relu", middle), two, name="core2"))

    return make


def in_a_row(shape: tuple[int, int], block: int, *, steps: int = 0, float_type: Any = _FLOAT) -> Make:
    """Two products with weights of their own whose scales are equal, but for `steps` of the first one."""

    def make() -> onnx.ModelProto:
        g = Graph()
        scales = np.full((shape[0] // block, shape[1]), 0.05, float_type)
        x = g.node("Relu", g.input(64, shape[0]))
        for name in ("core", "core2"):
            stored = g.constant(_RANDOM.integers(-7, 8, shape).astype(_STORED["int4"]))
            weight = g.node("DequantizeLinear", stored, g.constant(scales), axis=0, block_size=block)
            x = g.node("Relu", g.node("MatMul", x, weight, name=name))
            back = g.constant(_RANDOM.normal(size=shape[::-1]).astype(_FLOAT))
            x = g.node("Relu", g.node("MatMul", x, back))
            scales = scales.copy()
            for _ in range(steps):
                scales[0, 0] = np.nextafter(scales[0, 0], float_type(1))
        return g.done(x)

    return make


def shared_arithmetic() -> onnx.ModelProto:
    g = Graph()
    weight = g.weight("fp8", SQUARE, (256,))
    one = g.node("MatMul", g.pair(g.node("Relu", g.input(64, 256)), "fp8"), weight, name="core")
    return g.done(g.node("MatMul", g.pair(g.node("Relu", one), "fp8"), weight, name="core2"))


def two_runtime(first: Callable[[Graph, str], str], second: Callable[[Graph, str], str]) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        x, y = g.node("Relu", g.input(8, 64, 256)), g.node("Relu", g.input(8, 256, 64))
        return g.done(g.node("MatMul", first(g, x), second(g, y), name="core"))

    return make


def attention(
    format_: str, heads: int = 4, *, shares: bool = True, tokens: int = 128, queries: int = 0
) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        q, k, v = (
            g.pair(g.node("Relu", g.input(2, heads, length, 64)), format_)
            for length in (queries or tokens, tokens, tokens)
        )
        scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]), name="core2")
        weights = g.node("Softmax", scores, axis=-1)
        weights = g.pair(weights, format_) if shares else weights
        return g.done(g.pair(g.node("MatMul", weights, v, name="core"), format_))

    return make


def queries(
    activation: Callable[[Graph, str], str],
    weight: Callable[[Graph], str],
    form: str = "transposed",
    rows: int = 101,
) -> Make:
    """A product 64 x 192 that makes queries, keys and values, in one of the forms that exporters write."""

    def make() -> onnx.ModelProto:
        g = Graph()
        x = activation(g, g.node("Relu", g.input(1, rows, 64)))
        made = g.node("Add", g.node("MatMul", x, weight(g), name="core"), g.constant(np.ones(192, _FLOAT)))
        parts = {"transposed": _transposed, "columns": _columns, "heads": _heads, "gate": _transposed}[form]
        q, k, v = parts(g, made, rows)
        if form == "gate":
            return g.done(g.node("Mul", g.node("Sigmoid", q), g.node("Add", k, v)))
        return g.done(_attended(g, q, k, v))

    return make


def _transposed(g: Graph, made: str, rows: int) -> Sequence[str]:
    five = g.node("Reshape", made, g.constant(np.array([1, rows, 3, 2, 32])))
    turned = g.node("Transpose", five, perm=[2, 0, 3, 1, 4])
    return [g.node("Gather", turned, g.constant(np.array(part)), axis=0) for part in range(3)]


def _columns(g: Graph, made: str, rows: int) -> Sequence[str]:
    g.node("Split", made, g.constant(np.array([64, 64, 64])), axis=-1, count=3)
    to = g.constant(np.array([1, rows, 2, 32]))
    return [
        g.node("Transpose", g.node("Reshape", part, to), perm=[0, 2, 1, 3])
        for part in tuple(g.nodes[-1].output)
    ]


def _heads(g: Graph, made: str, rows: int) -> Sequence[str]:
    four = g.node("Reshape", made, g.constant(np.array([1, rows, 2, 96])))
    turned = g.node("Transpose", four, perm=[0, 2, 1, 3])
    g.node("Split", turned, g.constant(np.array([32, 32, 32])), axis=-1, count=3)
    return tuple(g.nodes[-1].output)


def _attended(g: Graph, q: str, k: str, v: str) -> str:
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    return g.node("MatMul", g.node("Softmax", scores, axis=-1), v)


def projection(weight: Callable[[Graph], str], *between: str, rows: int = 101) -> Make:
    """A product 64 x 64 behind an attention of two heads, and what stands between them."""

    def make() -> onnx.ModelProto:
        g = Graph()
        q, k, v = (g.node("Relu", g.input(1, 2, rows, 32)) for _ in range(3))
        made = g.node("Transpose", _attended(g, q, k, v), perm=[0, 2, 1, 3])
        x = g.node("Reshape", made, g.constant(np.array([1, rows, 64])))
        for op in between:
            more = [g.constant(np.array([-1, 64]))] if op == "Reshape" else []
            x = g.node(op, x, *more)
        return g.done(g.node("MatMul", x, weight(g), name="core"))

    return make


def attention_node(format_: str) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        q, k, v = (g.pair(g.node("Relu", g.input(2, 4, 128, 64)), format_) for _ in range(3))
        return g.done(g.node("Attention", q, k, v, name="core"))

    return make


def chain() -> onnx.ModelProto:
    g = Graph()
    x = g.node("Relu", g.input(64, 256))
    one = g.node("MatMul", g.pair(x, "int8"), g.weight("int8", SQUARE, (256,)), name="core")
    right = g.weight("fp8", SQUARE, (256,))
    return g.done(g.node("MatMul", g.pair(g.node("Relu", one), "fp8"), right, name="core2"))


def microscaled(*, weights_alone: bool = False, exponents: Any = np.uint8) -> Make:
    def make() -> onnx.ModelProto:
        g = Graph()
        left, along = g.node("Relu", g.input(64, 256)), {"block_size": 32}
        typed = {"output_dtype": TensorProto.FLOAT16}
        if not weights_alone:
            index = len(g.nodes)
            dtype = TensorProto.FLOAT8E4M3FN
            values = g.node("TRT_MXFP8DynamicQuantize", left, count=2, output_dtype=dtype, axis=-1, **along)
            left = g.node("TRT_MXFP8DequantizeLinear", values, f"t{index}_1", axis=-1, **along, **typed)
        weight = g.constant(_RANDOM.integers(-3, 4, SQUARE).astype(_STORED["fp8"]))
        scales = g.constant(np.full((8, 256), 127, np.uint8).view(exponents))
        right = g.node("TRT_MXFP8DequantizeLinear", weight, scales, axis=0, **along, **typed)
        return g.done(g.node("MatMul", left, right, name="core"))

    return make


def bare(_graph: Graph, tensor: str) -> str:
    return tensor


def alone(weight: Callable[[Graph], str], rows: int = 64, depth: int = 256, **attributes: Any) -> Make:
    """A product whose weight alone is in few bits."""
    return product(bare, weight, rows, depth, **attributes)


def q(format_: str, *shape: int, **more: Any) -> Callable[[Graph, str], str]:
    return lambda g, tensor: g.pair(tensor, format_, shape, **more)


def measured(format_: str) -> Callable[[Graph, str], str]:
    return lambda g, tensor: g.measured(tensor, format_)


def computed4(**more: Any) -> Callable[[Graph, str], str]:
    return lambda g, tensor: g.computed4(tensor, **more)


def constant4(rows: int, depth: int) -> Callable[[Graph, str], str]:
    return lambda g, tensor: g.constant4(tensor, rows, depth)


def flat4(g: Graph, tensor: str) -> str:
    """FP4 with one float scale for the tensor."""
    step = g.constant(_FLOAT(0.05))
    stored = g.node("QuantizeLinear", tensor, step, output_dtype=TensorProto.FLOAT4E2M1)
    return g.node("DequantizeLinear", stored, step)


def w(
    format_: str, shape: tuple[int, ...], scales: tuple[int, ...] = (), axis: int = 1, **more: Any
) -> Callable[[Graph], str]:
    return lambda g: g.weight(format_, shape, scales, axis, **more)


def w4(shape: tuple[int, ...], axis: int = 0, block: int = 16, **more: Any) -> Callable[[Graph], str]:
    return lambda g: g.weight4(shape, axis, block, **more)


def rounded(
    format_: str, shape: tuple[int, ...], scales: tuple[int, ...], axis: int
) -> Callable[[Graph], str]:
    """A float weight behind Q and DQ."""
    return lambda g: g.pair(plain(*shape)(g), format_, scales, axis)


def plain(*shape: int) -> Callable[[Graph], str]:
    return lambda g: g.constant(_RANDOM.standard_normal(shape).astype(_FLOAT))


SQUARE, KERNEL, WIDE = (256, 256), (64, 64, 3, 3), (1024, 1024)
NEW, ALL, FP4 = ("89", "120"), ("86", "89", "120"), ("120",)
OLD, AMPERE, ADA = ("75",), ("86",), ("89",)
C = (64,)
SAME = {"pads": [1, 1, 1, 1]}
I8, F8 = w("int8", SQUARE, (256,)), w("fp8", SQUARE, (256,))
I8C, F8C = w("int8", KERNEL, C, 0), w("fp8", KERNEL, C, 0)
I4 = w("int4", SQUARE, (4, 256), 0)
Case = tuple[Make, str, tuple[str, ...]]
"""The graph, the format asked of its node "core", and the architectures to build for."""

INT8_CASES: dict[str, Case] = {
    "int8 matmul": (product(q("int8"), I8), "int8", ALL),
    "int8 matmul for sm75": (product(q("int8"), I8), "int8", OLD),
    "int8 gemm": (product(q("int8"), w("int8", SQUARE, (256,), 0), transB=1), "int8", AMPERE),
    "int8 matmul, one row": (product(q("int8"), I8, 1), "int8", AMPERE),
    "int8 matmul, scale of shape [1]": (product(q("int8", 1), I8), "int8", AMPERE),
    "int8 matmul, activation per channel": (product(q("int8", 256), I8), "int8", AMPERE),
    "int8 matmul, weight scales along K": (product(q("int8"), w("int8", SQUARE, (256,), 0)), "int8", AMPERE),
    "int8 matmul, weights in blocks": (product(q("int8"), w("int8", SQUARE, (4, 256), 0)), "int8", AMPERE),
    "int8 matmul, activation alone": (product(q("int8"), plain(*SQUARE)), "int8-activations", ALL),
    "int8 matmul, measured scale": (product(measured("int8"), I8), "int8", AMPERE),
    "int8 matmul, zero point": (product(q("int8", shift=3), I8), "int8", AMPERE),
    "int8 matmul, scale zero": (product(q("int8", scale=0.0), I8), "int8", AMPERE),
    "int8 matmul, weight scale negative": (
        product(q("int8"), w("int8", SQUARE, (256,), scale=-0.1)),
        "int8",
        AMPERE,
    ),
    "int8 matmul, float32 scale": (product(q("int8", float_type=np.float32), I8), "int8", AMPERE),
    "int8 two activations": (two_runtime(q("int8"), q("int8")), "int8", AMPERE),
    "int8 one of two activations": (two_runtime(q("int8"), bare), "int8-activations", AMPERE),
    "int8 conv": (convolution(q("int8"), I8C, **SAME), "int8", ALL),
    "int8 conv for sm75": (convolution(q("int8"), I8C, **SAME), "int8", OLD),
    "int8 conv of 49 taps": (convolution(q("int8"), w("int8", (64, 64, 7, 7), C, 0)), "int8", AMPERE),
    "int8 depthwise": (convolution(q("int8"), w("int8", (64, 1, 3, 3), C, 0), group=64), "int8", AMPERE),
    "int8 conv, scale of shape [1]": (convolution(q("int8", 1), I8C), "int8", AMPERE),
    "int8 conv, activation per channel": (convolution(q("int8", 64), I8C), "int8", AMPERE),
    "int8 conv, scales along the inputs": (convolution(q("int8"), w("int8", KERNEL, C, 1)), "int8", AMPERE),
    "int8 conv, weight scale of shape [1]": (
        convolution(q("int8"), w("int8", KERNEL, (1,), 0)),
        "int8",
        AMPERE,
    ),
    "int8 conv, activation alone": (convolution(q("int8"), plain(*KERNEL)), "int8-activations", AMPERE),
    "int8 conv transpose": (convolution(q("int8"), w("int8", KERNEL), "ConvTranspose"), "int8", AMPERE),
    "int8 attention": (attention("int8"), "int8", ALL),
    "int8 attention, float shares": (attention("int8", shares=False), "int8-activations", AMPERE),
    "int8 attention node": (attention_node("int8"), "int8", AMPERE),
    "int8 per channel times fp8": (product(q("int8", 256), F8), "fp8+int8", ADA),
    "int8 per channel times int8 in blocks": (
        product(q("int8", 256), w("int8", SQUARE, (4, 256), 0)),
        "int8",
        AMPERE,
    ),
    "int8 times fp8": (product(q("int8"), F8), "fp8+int8", ADA),
    "int8 times int4 per channel": (product(q("int8"), w("int4", SQUARE, (256,))), "int4+int8", AMPERE),
    "int8 times int4 in blocks": (product(q("int8"), I4), "int4+int8", AMPERE),
    "int8 times nvfp4": (product(q("int8"), w4(SQUARE)), "int8+nvfp4", FP4),
    "int8 conv times int4": (convolution(q("int8"), w("int4", KERNEL, C, 0)), "int4+int8", AMPERE),
    "int16 matmul": (product(q("int16"), I8), "int16", AMPERE),
    "uint8 weights": (alone(w("uint8", SQUARE, (256,))), "uint8-weights", AMPERE),
}

FP8_CASES: dict[str, Case] = {
    "fp8 matmul": (product(q("fp8"), F8), "fp8", NEW),
    "fp8 matmul for sm86": (product(q("fp8"), F8), "fp8", AMPERE),
    "fp8 gemm": (product(q("fp8"), w("fp8", SQUARE, (256,), 0), transB=1), "fp8", ADA),
    "fp8 matmul, one row": (product(q("fp8"), F8, 1), "fp8", NEW),
    "fp8 matmul, per tensor": (product(q("fp8"), w("fp8", SQUARE)), "fp8", NEW),
    "fp8 matmul, odd sizes": (product(q("fp8"), w("fp8", (255, 251), (251,)), 17, 255), "fp8", ADA),
    "fp8 matmul, scale of shape [1]": (product(q("fp8", 1), F8), "fp8", ADA),
    "fp8 matmul, activation per channel": (product(q("fp8", 256), F8), "fp8", NEW),
    "fp8 matmul, weight scales along K": (product(q("fp8"), w("fp8", SQUARE, (256,), 0)), "fp8", NEW),
    "fp8 matmul, weights in blocks": (product(q("fp8"), w("fp8", SQUARE, (2, 256), 0)), "fp8", ADA),
    "fp8 matmul, measured scale": (product(measured("fp8"), F8), "fp8", ADA),
    "fp8 matmul, zero point": (product(q("fp8", shift=3), F8), "fp8", ADA),
    "fp8 matmul, no saturation": (product(q("fp8", saturate=0), F8), "fp8", ADA),
    "fp8 matmul, weights not numbers": (
        product(q("fp8"), w("fp8", SQUARE, (256,), value=float("nan"))),
        "fp8",
        ADA,
    ),
    "fp8 matmul, scale zero": (product(q("fp8", scale=0.0), F8), "fp8", ADA),
    "fp8 matmul, float32 scale": (product(q("fp8", float_type=np.float32), F8), "fp8", ADA),
    "fp8 matmul, float32 scales": (
        product(q("fp8", float_type=np.float32), w("fp8", SQUARE, (256,), float_type=np.float32)),
        "fp8",
        ADA,
    ),
    "fp8 e5m2 matmul": (product(q("fp8_e5m2"), w("fp8_e5m2", SQUARE, (256,))), "fp8_e5m2", ADA),
    "fp8 two activations": (two_runtime(q("fp8"), q("fp8")), "fp8", ADA),
    "fp8 one of two activations": (two_runtime(q("fp8"), bare), "fp8-activations", ADA),
    "fp8 one weight for two": (shared_arithmetic, "fp8", ADA),
    "fp8 conv": (convolution(q("fp8"), F8C, **SAME), "fp8", NEW),
    "fp8 conv for sm86": (convolution(q("fp8"), F8C, **SAME), "fp8", AMPERE),
    "fp8 conv, per tensor": (convolution(q("fp8"), w("fp8", KERNEL)), "fp8", ADA),
    "fp8 conv of 32 taps": (convolution(q("fp8"), w("fp8", (64, 64, 1, 32), C, 0)), "fp8", NEW),
    "fp8 conv of 33 taps": (convolution(q("fp8"), w("fp8", (64, 64, 3, 11), C, 0)), "fp8", NEW),
    "fp8 conv of 49 taps": (convolution(q("fp8"), w("fp8", (64, 64, 7, 7), C, 0)), "fp8", NEW),
    "fp8 depthwise": (convolution(q("fp8"), w("fp8", (64, 1, 3, 3), C, 0), group=64), "fp8", ADA),
    "fp8 depthwise of 49 taps": (convolution(q("fp8"), w("fp8", (64, 1, 7, 7), C, 0), group=64), "fp8", ADA),
    "fp8 conv, scale of shape [1]": (convolution(q("fp8", 1), F8C), "fp8", NEW),
    "fp8 conv, activation per channel": (convolution(q("fp8", 64), F8C), "fp8", ADA),
    "fp8 conv, scales along the inputs": (convolution(q("fp8"), w("fp8", KERNEL, C, 1)), "fp8", ADA),
    "fp8 conv, weight scale of shape [1]": (convolution(q("fp8"), w("fp8", KERNEL, (1,), 0)), "fp8", ADA),
    "fp8 conv, activation alone": (convolution(q("fp8"), plain(*KERNEL)), "fp8-activations", ADA),
    "fp8 conv transpose": (convolution(q("fp8"), w("fp8", KERNEL), "ConvTranspose"), "fp8", ADA),
    "fp8 attention": (attention("fp8"), "fp8", NEW),
    "fp8 attention of one query": (attention("fp8", queries=1), "fp8", NEW),
    "fp8 attention of 17 tokens": (attention("fp8", tokens=17), "fp8", ADA),
    "fp8 attention, float shares": (attention("fp8", shares=False), "fp8-activations", ADA),
    "fp8 attention node": (attention_node("fp8"), "fp8", ADA),
    "fp8 weights": (alone(F8), "fp8-weights", NEW),
    "fp8 weights for sm86": (alone(F8), "fp8-weights", AMPERE),
    "fp8 weights, one row, large": (alone(w("fp8", WIDE, (1024,)), 1, 1024), "fp8-weights", ADA),
    "fp8 weights, one row, per tensor": (alone(w("fp8", WIDE), 1, 1024), "fp8-weights", ADA),
    "fp8 weights, odd columns": (alone(w("fp8", (256, 255), (255,))), "fp8-weights", ADA),
    "fp8 weights in blocks": (alone(w("fp8", SQUARE, (2, 256), 0)), "fp8-weights", ADA),
    "fp8 weights for two": (shared(F8), "fp8-weights", ADA),
    "fp8 weights of a conv": (convolution(bare, F8C), "fp8-weights", ADA),
    "fp8 activation alone": (product(q("fp8"), plain(*SQUARE)), "fp8-activations", NEW),
    "fp8 times int8 along K": (product(q("fp8"), w("int8", SQUARE, (256,), 0)), "fp8+int8", ADA),
    "fp8 times int8": (product(q("fp8"), I8), "fp8+int8", ADA),
    "fp8 times int4 per channel": (product(q("fp8"), w("int4", SQUARE, (256,))), "fp8+int4", ADA),
    "fp8 times int4 in blocks": (product(q("fp8"), I4), "fp8+int4", ADA),
    "fp8 times nvfp4": (product(q("fp8"), w4(SQUARE)), "fp8+nvfp4", FP4),
    "int8 then fp8": (chain, "int8", NEW),
}

WEIGHT_CASES: dict[str, Case] = {
    "int4 blocks of 64": (alone(I4), "int4-weights", ALL),
    "int4 for sm75": (alone(I4), "int4-weights", OLD),
    "int4 blocks of 128": (alone(w("int4", SQUARE, (2, 256), 0)), "int4-weights", AMPERE),
    "int4 blocks along the columns": (alone(w("int4", SQUARE, (256, 4), 1)), "int4-weights", AMPERE),
    "int4 gemm": (alone(w("int4", SQUARE, (256, 4), 1), transB=1), "int4-weights", AMPERE),
    "int4 blocks, one row": (alone(I4, 1), "int4-weights", ALL),
    "int4 blocks, one row, large": (alone(w("int4", WIDE, (8, 1024), 0), 1, 1024), "int4-weights", ALL),
    "int4 in one block": (alone(w("int4", SQUARE, (1, 256), 0)), "int4-weights", ALL),
    "int4 per channel": (alone(w("int4", SQUARE, (256,))), "int4-weights", ALL),
    "int4 per row": (alone(w("int4", SQUARE, (256,), 0)), "int4-weights", AMPERE),
    "int4 per tensor": (alone(w("int4", SQUARE)), "int4-weights", AMPERE),
    "int4 per channel, one row": (alone(w("int4", SQUARE, (256,)), 1), "int4-weights", AMPERE),
    "int4 in one block, one row": (alone(w("int4", SQUARE, (1, 256), 0), 1), "int4-weights", AMPERE),
    "int4, odd columns, one row": (alone(w("int4", (256, 255), (4, 255), 0), 1), "int4-weights", AMPERE),
    "int4, one weight for two, one row": (shared(I4, rows=1), "int4-weights", AMPERE),
    "int8 weights in blocks, one row": (alone(w("int8", SQUARE, (4, 256), 0), 1), "int8-weights", AMPERE),
    "int8 weights for two, one row": (shared(I8, rows=1), "int8-weights", AMPERE),
    "int4, odd columns": (alone(w("int4", (256, 255), (4, 255), 0)), "int4-weights", ALL),
    "int4, one weight for two": (shared(I4), "int4-weights", ALL),
    "int4, a copy for each of two": (shared(I4, copied=True), "int4-weights", AMPERE),
    "int4, equal scales of 504 bytes": (in_a_row((64, 126), 32), "int4-weights", ALL),
    "int4, equal scales of 512 bytes": (in_a_row((64, 128), 32), "int4-weights", ALL),
    "int4, equal scales of 256 bytes": (in_a_row((256, 64), 128), "int4-weights", AMPERE),
    "int4, equal short scales but for a step": (in_a_row((64, 64), 32, steps=1), "int4-weights", ALL),
    "int4 conv": (convolution(bare, w("int4", KERNEL, C, 0)), "int4-weights", ALL),
    "int4 conv in blocks": (convolution(bare, w("int4", KERNEL, (64, 2, 3, 3), 1)), "int4-weights", AMPERE),
    "int4, float32 scales": (
        alone(w("int4", SQUARE, (4, 256), 0, float_type=np.float32)),
        "int4-weights",
        AMPERE,
    ),
    "int4, zero point": (alone(w("int4", SQUARE, (4, 256), 0, shift=2)), "int4-weights", AMPERE),
    "int4, zero point of zero": (alone(w("int4", SQUARE, (4, 256), 0, shift=0)), "int4-weights", AMPERE),
    "int4, wrong block_size": (alone(w("int4", SQUARE, (4, 256), 0, block=100)), "int4-weights", AMPERE),
    "int4, blocks that do not divide": (alone(w("int4", SQUARE, (3, 256), 0)), "int4-weights", AMPERE),
    "int4 activation": (product(q("int4"), I8), "int4+int8", AMPERE),
    "uint4 weights": (alone(w("uint4", SQUARE, (4, 256), 0)), "uint4-weights", AMPERE),
    "int8 weights": (alone(I8), "int8-weights", ALL),
    "int8 weights for sm75": (alone(I8), "int8-weights", OLD),
    "int8 weights along K": (alone(w("int8", SQUARE, (256,), 0)), "int8-weights", AMPERE),
    "int8 weights behind Q and DQ": (alone(rounded("int8", SQUARE, (256,), 1)), "int8-weights", AMPERE),
    "int8 weights for two": (shared(I8), "int8-weights", AMPERE),
    "int8 weights in blocks": (alone(w("int8", SQUARE, (4, 256), 0)), "int8-weights", ALL),
    "int8 weights, one row": (alone(I8, 1), "int8-weights", AMPERE),
    "int8 weights, one row, large": (alone(w("int8", (512, 512), (512,)), 1, 512), "int8-weights", ALL),
    "int8 weights per tensor, one row": (alone(w("int8", (512, 512)), 1, 512), "int8-weights", ALL),
    "int8 weights, odd columns": (alone(w("int8", (256, 255), (255,))), "int8-weights", ALL),
    "int8 weights of a conv": (convolution(bare, I8C), "int8-weights", ALL),
}

ATTENTION_CASES: dict[str, Case] = {
    f"{format_} {words}": (
        queries(q(format_), weight(format_), form),
        format_,
        AMPERE if format_ == "int8" else ADA,
    )
    for format_ in ("int8", "fp8")
    for words, weight, form in (
        ("queries and keys, stored", lambda name: w(name, (64, 192), (192,)), "transposed"),
        ("queries and keys, one scale", lambda name: w(name, (64, 192)), "transposed"),
        ("queries and keys, behind Q", lambda name: rounded(name, (64, 192), (192,), 1), "transposed"),
        ("queries and keys of columns, stored", lambda name: w(name, (64, 192), (192,)), "columns"),
        ("queries and keys per head, stored", lambda name: w(name, (64, 192), (192,)), "heads"),
        ("gate of three, stored", lambda name: w(name, (64, 192), (192,)), "gate"),
    )
} | {
    "int8 weights of queries and keys": (queries(bare, w("int8", (64, 192), (192,))), "int8-weights", AMPERE),
    "int8 weights of queries and keys, one scale": (
        queries(bare, w("int8", (64, 192))),
        "int8-weights",
        AMPERE,
    ),
    "int4 of queries and keys": (queries(bare, w("int4", (64, 192), (2, 192), 0)), "int4-weights", AMPERE),
    "int8 weights behind an attention": (projection(w("int8", (64, 64), (64,))), "int8-weights", AMPERE),
    "int4 behind an attention": (projection(w("int4", (64, 64), (2, 64), 0)), "int4-weights", ALL),
    "int4 behind an attention, one row": (
        projection(w("int4", (64, 64), (2, 64), 0), rows=1),
        "int4-weights",
        AMPERE,
    ),
    "int4 behind an attention, two dimensions": (
        projection(w("int4", (64, 64), (2, 64), 0), "Reshape"),
        "int4-weights",
        ALL,
    ),
    "int4 behind an attention and a Relu": (
        projection(w("int4", (64, 64), (2, 64), 0), "Relu"),
        "int4-weights",
        AMPERE,
    ),
}
BLOCK_CASES: dict[str, Case] = {
    "nvfp4, computed scales": (product(computed4(), w4(SQUARE)), "nvfp4", FP4),
    "nvfp4 for sm89": (product(computed4(), w4(SQUARE)), "nvfp4", ADA),
    "nvfp4, constant scales": (product(constant4(64, 256), w4(SQUARE)), "nvfp4", FP4),
    "nvfp4, constant scales behind LayerNormalization": (behind("LayerNormalization"), "nvfp4", FP4),
    "nvfp4, constant scales behind Softmax": (behind("Softmax"), "nvfp4", FP4),
    "nvfp4, constant scales behind a mean": (behind("ReduceMean"), "nvfp4", FP4),
    "nvfp4, constant scales behind a mean of columns": (behind("ReduceMean", 0), "nvfp4", FP4),
    "nvfp4, constant scales behind a Softmax of columns": (behind("Softmax", 0), "nvfp4", FP4),
    "nvfp4, constant scales behind LayerNormalization, turned": (
        behind("LayerNormalization", turned=True),
        "nvfp4",
        FP4,
    ),
    "nvfp4 gemm": (product(constant4(64, 256), w4(SQUARE, 1), transB=1), "nvfp4", FP4),
    "nvfp4, fewer weights than scales": (product(computed4(), w4((48, 10)), 1, 48), "nvfp4", FP4),
    "nvfp4, weights behind Q and DQ": (product(computed4(), w4(SQUARE, rounds=True)), "nvfp4", FP4),
    "nvfp4, weight blocks along the columns": (product(computed4(), w4(SQUARE, 1)), "nvfp4", FP4),
    "nvfp4, weight blocks along 16 columns": (product(computed4(), w4((64, 16), 1), 1, 64), "nvfp4", FP4),
    "nvfp4, a single block": (product(computed4(), w4((16, 64)), 64, 16), "nvfp4", FP4),
    "nvfp4, a single block of one row": (product(computed4(), w4((16, 64)), 1, 16), "nvfp4", FP4),
    "nvfp4, two blocks": (product(computed4(), w4((32, 64)), 1, 32), "nvfp4", FP4),
    "nvfp4, weight blocks of 32": (product(computed4(), w4(SQUARE, block=32)), "nvfp4", FP4),
    "nvfp4, blocks of 32": (product(computed4(block=32), w4(SQUARE, block=32)), "nvfp4", FP4),
    "nvfp4, activation along the rows": (product(computed4(axis=0), w4(SQUARE)), "nvfp4", FP4),
    "nvfp4 activation alone": (product(computed4(), plain(*SQUARE)), "nvfp4-activations", FP4),
    "nvfp4 activation times fp8": (product(computed4(), F8), "fp8+nvfp4", FP4),
    "nvfp4 activation times fp8 in blocks": (
        product(computed4(), w("fp8", SQUARE, (2, 256), 0)),
        "fp8+nvfp4",
        FP4,
    ),
    "nvfp4 weights": (alone(w4(SQUARE)), "nvfp4-weights", FP4),
    "nvfp4 weights, one row": (alone(w4(SQUARE), 1), "nvfp4-weights", FP4),
    "nvfp4 weights, one row, large": (alone(w4(WIDE), 1, 1024), "nvfp4-weights", FP4),
    "nvfp4 weights of a conv": (convolution(bare, w4(KERNEL, 1)), "nvfp4-weights", FP4),
    "nvfp4 conv": (convolution(computed4(), w4(KERNEL, 1)), "nvfp4", FP4),
    "fp4 with scales of one level": (product(computed4(), w("nvfp4", SQUARE, (16, 256), 0)), "nvfp4", FP4),
    "fp4 with one scale": (product(flat4, w4(SQUARE)), "nvfp4", FP4),
    "mxfp8": (microscaled(), "mxfp8", NEW),
    "mxfp8 for sm86": (microscaled(), "mxfp8", AMPERE),
    "mxfp8 weights": (microscaled(weights_alone=True), "mxfp8-weights", ADA),
    "mxfp8, scales of the type E8M0": (microscaled(exponents=ml_dtypes.float8_e8m0fnu), "mxfp8", ADA),
}
CASES: dict[str, Case] = {**INT8_CASES, **FP8_CASES, **WEIGHT_CASES, **ATTENTION_CASES, **BLOCK_CASES}
OTHER_NUMBERS = frozenset(
    {
        "int8 matmul, weights in blocks",
        "int8 times int4 in blocks",
        "fp8 matmul, weights in blocks",
        "fp8 matmul, zero point",
        "fp8 matmul, no saturation",
        "fp8 matmul, weights not numbers",
        "nvfp4, weight blocks along 16 columns",
        "nvfp4, weight blocks of 32",
        "int4, wrong block_size",
    }
)
"""Cases that build and compute something else than the model says, or than other runtimes do."""

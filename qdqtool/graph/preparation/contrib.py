"""Writes operators of onnxruntime's domain com.microsoft as ONNX operators that every TensorRT builds.

Norms become Add, LayerNormalization, or the mean square written out. Activations become Erf, Tanh or Sigmoid and what
surrounds them. MultiHeadAttention and GroupQueryAttention become MatMul, Softmax and MatMul, as `attention` writes Attention.

onnxruntime's optimizer and its exporters for generative models write these. TensorRT for RTX 1.7.1 imports the
Simplified forms, Gelu and MultiHeadAttention directly. It imports GroupQueryAttention only with a plug-in library.
According to its documents, classic TensorRT imports none of these operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import onnx

from qdqtool.core.wording import REPAIR, Command, count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import at
from qdqtool.graph.preparation.attention import FLOATS, AttentionWriter, Heads
from qdqtool.graph.view import GraphView, Node, dtype_of

DOMAIN = "com.microsoft"
_LAYER_NORM = 17
"""First opset with LayerNormalization."""
_GELU = {"cubic": 0.035677408136300125, "linear": 0.7978845608028654}
"""Factors of the Tanh approximation, as in onnxruntime."""
WITHOUT_A_BUILDER = {
    "QMoE": "export the experts as MatMul (float) and quantize that model; or build with `--plugins` and a library with this operator",
    "MoE": "export the experts as MatMul; or build with `--plugins` and a library with this operator",
    "MatMulNBits": f"{REPAIR} writes it as DequantizeLinear and MatMul",
    "GatherBlockQuantized": f"{REPAIR} writes it as DequantizeLinear and Gather",
    "GroupQueryAttention": "export with a batch of 1 (or set it with `python -m onnxruntime.tools.make_dynamic_shape_fixed`), and with keys and values that grow with each step (no shared buffer); or build with `--plugins`",
    "MultiHeadAttention": "export without a padding mask of keys, or without onnxruntime's optimizer",
    "EmbedLayerNormalization": "export without onnxruntime's transformer optimizer",
    "Attention": "export without onnxruntime's transformer optimizer",
    "DecoderMaskedMultiHeadAttention": "export without onnxruntime's transformer optimizer",
    "PackedAttention": "export without onnxruntime's transformer optimizer",
    "SparseAttention": "export without onnxruntime's transformer optimizer",
    "SkipLayerNormalization": f"export with opset 17 or newer: {Command('run')} then writes LayerNormalization",
    "FusedConv": "save the model before onnxruntime optimizes it",
    "FusedGemm": "save the model before onnxruntime optimizes it",
    "FusedMatMul": "save the model before onnxruntime optimizes it",
    "NhwcConv": "save the model before onnxruntime optimizes it",
}
"""Operators of com.microsoft that no TensorRT imports without a plug-in, and what to do instead."""


def write_contrib(edit: Edit, view: GraphView) -> dict[str, int]:
    """Replace every com.microsoft node that has an ONNX form; return the number of replaced nodes by operator."""
    counts: dict[str, int] = {}
    masks: dict[tuple[Any, ...], str] = {}
    ends = {info.dtype for info in (*view.inputs, *view.outputs)} & FLOATS.keys()
    stored = {dtype_of(tensor.data_type) for tensor in edit.constants.values()} & FLOATS.keys()
    for proto in tuple(edit.nodes):
        node = view.by_name[proto.name]
        if node.domain != DOMAIN and node.op != "SimplifiedLayerNormalization":
            continue
        # onnx infers no types of such results: a model with weights of one float type has no other
        types = {view.info(name).dtype for name in (*node.inputs, *node.outputs) if name} & FLOATS.keys()
        types = types or stored or ends
        if len(types) != 1:
            continue
        (dtype,) = types
        writer = _Writer(edit, view, node, proto, FLOATS[dtype])
        if _ATTENTIONS.get(node.op, _refuse)(writer, masks) or _PLAIN.get(node.op, _leave)(writer):
            counts[node.op] = counts.get(node.op, 0) + 1
    return counts


def without_builder(view: GraphView) -> Iterator[str]:
    """Yield a sentence for each operator that no builder accepts: the number of its nodes, and the fix."""
    counts: dict[str, list[str]] = {}
    for node in view.nodes:
        if node.domain == DOMAIN and node.op in WITHOUT_A_BUILDER:
            counts.setdefault(node.op, []).append(node.name)
    for op, names in counts.items():
        yield f"TensorRT builds no such {op} ({count_noun(len(names), 'node')}, first {names[0]!r}) without a plug-in: {WITHOUT_A_BUILDER[op]}"


class _Writer:
    """Writes the ONNX operators that replace one com.microsoft node."""

    def __init__(
        self, edit: Edit, view: GraphView, node: Node, proto: onnx.NodeProto, dtype: np.dtype[Any]
    ) -> None:
        self.edit, self.view, self.node, self.proto, self.dtype = edit, view, node, proto, dtype

    def op(self, op: str, inputs: list[str], word: str, *, result: str = "", **attributes: Any) -> str:
        name = f"{self.node.name}_{word}"
        output = result or self.edit.fresh(name)
        self.edit.node(op, inputs, [output], name=name, **attributes)
        return output

    def number(self, word: str, value: float) -> str:
        return self.edit.constant(f"{self.node.name}_{word}", np.asarray(value, self.dtype))

    def whole(self, word: str, values: list[int] | int) -> str:
        return self.edit.constant(f"{self.node.name}_{word}", np.asarray(values, np.int64))

    def input(self, index: int) -> str:
        return at(self.node.inputs, index)

    def output(self, index: int) -> str:
        return at(self.node.outputs, index)

    def begin(self) -> None:
        self.edit.remove([self.proto])

    def read(self, tensor: str) -> bool:
        """Return True if another node or a model output reads a tensor of the replaced node."""
        return bool(tensor) and (bool(self.view.uses(tensor)) or self.view.is_output(tensor))


def _skip_norm(writer: _Writer, *, simple: bool) -> bool:
    """Write the Add and the normalization of a SkipLayerNormalization; the sum may be a model output too."""
    if writer.edit.opset < _LAYER_NORM and not simple:
        return False
    if any(writer.read(writer.output(index)) for index in (1, 2)):
        return False
    bias = writer.input(3 if simple else 4)
    writer.begin()
    total = writer.output(3)
    first = writer.op("Add", [writer.input(0), writer.input(1)], "skip", result="" if bias else total)
    added = writer.op("Add", [first, bias], "bias", result=total) if bias else first
    epsilon = float(writer.node.attribute("epsilon", 1e-12))
    if simple:
        _mean_square(writer, added, writer.input(2), -1, epsilon)
    else:
        operands = [added, writer.input(2), *([writer.input(3)] if writer.input(3) else [])]
        writer.op("LayerNormalization", operands, "norm", result=writer.output(0), axis=-1, epsilon=epsilon)
    return True


def _simple_norm(writer: _Writer) -> bool:
    if writer.read(writer.output(1)):
        return False
    axis, rank = writer.node.integer("axis", -1), len(writer.view.info(writer.input(0)).shape or ())
    if axis not in {-1, rank - 1}:
        return False
    writer.begin()
    _mean_square(writer, writer.input(0), writer.input(1), -1, float(writer.node.attribute("epsilon", 1e-5)))
    return True


def _mean_square(writer: _Writer, tensor: str, gamma: str, axis: int, epsilon: float) -> None:
    """Write an RMS normalization: divide by the root of the mean square in FP32, multiply by `gamma`."""
    narrow = writer.dtype != np.float32
    kind = int(onnx.helper.np_dtype_to_tensor_dtype(writer.dtype))
    wide = writer.op("Cast", [tensor], "wide", to=onnx.TensorProto.FLOAT) if narrow else tensor
    edit, name = writer.edit, writer.node.name
    square = writer.op("Mul", [wide, wide], "square")
    if edit.opset < 18:
        mean = writer.op("ReduceMean", [square], "mean", axes=[axis], keepdims=1)
    else:
        mean = writer.op("ReduceMean", [square, writer.whole("axis", [axis])], "mean", keepdims=1)
    least = edit.constant(f"{name}_epsilon", np.asarray(epsilon, np.float32))
    root = writer.op("Sqrt", [writer.op("Add", [mean, least], "least")], "root")
    unit = writer.op("Div", [wide, root], "unit")
    unit = writer.op("Cast", [unit], "narrow", to=kind) if narrow else unit
    writer.op("Mul", [unit, gamma], "norm", result=writer.output(0))


def _gelu(writer: _Writer) -> bool:
    """Write a Gelu as x / 2 * (1 + Erf(x / sqrt 2)), after the bias if there is one."""
    writer.begin()
    x, bias = writer.input(0), writer.input(1)
    x = writer.op("Add", [x, bias], "biased") if bias else x
    ratio = writer.op("Div", [x, writer.number("sqrt2", sqrt(2))], "ratio")
    return _bent(writer, x, writer.op("Erf", [ratio], "erf"))


def _fast_gelu(writer: _Writer) -> bool:
    writer.begin()
    x, bias = writer.input(0), writer.input(1)
    x = writer.op("Add", [x, bias], "biased") if bias else x
    square = writer.op("Mul", [x, x], "square")
    cubic = writer.op("Mul", [square, writer.number("cubic", _GELU["cubic"])], "cubic")
    factor = writer.op("Add", [cubic, writer.number("linear", _GELU["linear"])], "factor")
    return _bent(writer, x, writer.op("Tanh", [writer.op("Mul", [x, factor], "inner")], "tanh"))


def _bent(writer: _Writer, x: str, curve: str) -> bool:
    plus = writer.op("Add", [curve, writer.number("one", 1.0)], "plus")
    half = writer.op("Mul", [x, writer.number("half", 0.5)], "half_x")
    writer.op("Mul", [half, plus], "gelu", result=writer.output(0))
    return True


def _quick_gelu(writer: _Writer) -> bool:
    writer.begin()
    x, alpha = writer.input(0), float(writer.node.attribute("alpha", 1.702))
    inner = writer.op("Mul", [x, writer.number("alpha", alpha)], "inner")
    gate = writer.op("Sigmoid", [inner], "gate")
    writer.op("Mul", [x, gate], "gelu", result=writer.output(0))
    return True


def _fused_product(writer: _Writer) -> bool:
    """Write com.microsoft.FusedMatMul as Transposes, a MatMul, and a Mul by its constant."""
    node = writer.node
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        return False
    factors = []
    for index, word in ((0, "transA"), (1, "transB")):
        rank = len(writer.view.info(writer.input(index)).shape or ())
        if node.integer(word, 0) and rank < 2:
            return False
        factors.append((writer.input(index), rank if node.integer(word, 0) else 0))
    writer.begin()
    turned = [
        writer.op("Transpose", [name], f"turned_{index}", perm=[*range(rank - 2), rank - 1, rank - 2])
        if rank
        else name
        for index, (name, rank) in enumerate(factors)
    ]
    alpha = float(node.attribute("alpha", 1.0))
    plain = alpha == 1.0
    product = writer.op("MatMul", turned, "product", result=writer.output(0) if plain else "")
    if not plain:
        writer.op("Mul", [product, writer.number("alpha", alpha)], "factor", result=writer.output(0))
    return True


# --- attention -------------------------------------------------------------------------------------------------------


def _multi_head(writer: _Writer, masks: dict[tuple[Any, ...], str]) -> bool:
    """Write com.microsoft.MultiHeadAttention: three-dimensional queries, keys and values, a bias, a mask and a cache."""
    node, shape = writer.node, writer.view.info(writer.input(0)).shape or ()
    heads = node.integer("num_heads", 0)
    ready = len(shape) == 3 and isinstance(shape[-1], int) and heads > 0
    kinds = [len(writer.view.info(writer.input(index)).shape or ()) for index in (1, 2)]
    unread = any(writer.input(index) for index in (4, *range(8, len(node.inputs))))
    if not ready or kinds != [3, 3] or unread or writer.read(writer.output(3)):
        return False
    width = (writer.view.info(writer.input(2)).shape or (None,))[-1]
    width = width if isinstance(width, int) else int(shape[-1])
    writer.begin()
    operands = {index: writer.input(index) for index in range(3)}
    if writer.input(3):
        sizes, start = [int(shape[-1]), int(shape[-1]), width], 0
        for index, size in enumerate(sizes):
            ends = [
                writer.whole("begin", [start]),
                writer.whole("end", [start + size]),
                writer.whole("axis", [0]),
            ]
            part = writer.op("Slice", [writer.input(3), *ends], f"bias_{index}")
            operands[index] = writer.op("Add", [operands[index], part], f"biased_{index}")
            start += size
    size = int(shape[-1]) // heads
    sides = Heads(queries=heads, keys=heads, size=size, values=width // heads, rows=True, dtype=writer.dtype)
    inputs = (*node.inputs[:3], writer.input(5), writer.input(6), writer.input(7))
    attributes = {"scale": node.attribute("scale", 0.0), "is_causal": node.integer("unidirectional", 0)}
    like = replace(node, inputs=inputs, outputs=node.outputs[:3], attributes=attributes)
    AttentionWriter(
        edit=writer.edit, view=writer.view, node=like, sides=sides, masks=masks, inputs=operands
    ).write()
    return True


def _group_query(writer: _Writer, masks: dict[tuple[Any, ...], str]) -> bool:
    """Write com.microsoft.GroupQueryAttention: shared heads, a rotation, and a cache that grows in each step."""
    node, view = writer.node, writer.view
    heads, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    shape, past = view.info(writer.input(0)).shape or (), view.info(writer.input(3)).shape or ()
    unread = [index for index in range(9, len(node.inputs)) if index != 10 and writer.input(index)]
    if heads < 1 or shared < 1 or len(shape) != 3 or len(past) != 4 or unread:
        return False
    if writer.read(writer.output(3)) or 1 not in {shape[0], past[0]}:
        return False  # each sequence of a larger batch has its own length
    if (
        not isinstance(past[-1], int)
        or node.integer("smooth_softmax", 0)
        or node.integer("sliding_window_cache", 0)
        or node.integer("local_window_size", -1) > 0
    ):
        return False
    present = view.info(writer.output(1)).shape or ()
    if len(present) == len(past) and present[2] == past[2]:
        return False  # a single buffer for all steps: new keys are written in the middle of it
    size = past[-1]
    writer.begin()
    operands = {index: writer.input(index) for index in range(3)}
    if not writer.input(1):
        parts = [writer.edit.fresh(f"{node.name}_{word}") for word in ("query", "key", "value")]
        lengths = writer.whole("parts", [heads * size, shared * size, shared * size])
        writer.edit.node("Split", [writer.input(0), lengths], parts, name=f"{node.name}_Split", axis=-1)
        operands = dict(enumerate(parts))
    sides = Heads(queries=heads, keys=shared, size=size, values=size, rows=True, dtype=writer.dtype)
    inputs = (*node.inputs[:3], writer.input(10), writer.input(3), writer.input(4))
    attributes = {
        "scale": node.attribute("scale", 0.0),
        "softcap": node.attribute("softcap", 0.0),
        "is_causal": node.integer("causal", 1),
    }
    like = replace(node, inputs=inputs, outputs=node.outputs[:3], attributes=attributes)
    attention = AttentionWriter(
        edit=writer.edit, view=view, node=like, sides=sides, masks=masks, inputs=operands
    )
    if node.integer("do_rotary", 0):
        attention.turn = lambda tensor, index: _rotate_heads(writer, attention, tensor, index, size)
    attention.write()
    return True


def _rotate_heads(writer: _Writer, attention: AttentionWriter, tensor: str, index: int, size: int) -> str:
    """Return queries or keys, (batch, heads, tokens, size), rotated by the angles of their positions."""
    half = (writer.view.info(writer.input(7)).shape or (size // 2,))[-1]
    half = half if isinstance(half, int) else size // 2
    angles = []
    for place, word in ((7, "cos"), (8, "sin")):
        first = attention.size_of(writer.input(3), 2)
        last = writer.op("Add", [first, attention.size_of(tensor, 2)], f"last_{index}")
        places = writer.op("Range", [first, last, writer.whole("step", 1)], f"positions_{index}")
        angles.append(writer.op("Gather", [writer.input(place), places], f"{word}_{index}", axis=0))
    straight, turning = "", tensor
    if 2 * half < size:
        turning, straight = (
            writer.edit.fresh(f"{writer.node.name}_{word}_{index}") for word in ("turning", "rest")
        )
        lengths = writer.whole("turned_sizes", [2 * half, size - 2 * half])
        writer.edit.node(
            "Split",
            [tensor, lengths],
            [turning, straight],
            name=f"{writer.node.name}_turning_{index}",
            axis=-1,
        )
    if writer.node.integer("rotary_interleaved", 0):
        heads = attention.sides.queries if index == 0 else attention.sides.keys
        shape = writer.whole("couples", [0, heads, -1, half, 2])
        apart = writer.op("Reshape", [turning, shape], f"couples_{index}")
        left, right = (
            writer.op("Gather", [apart, writer.whole("which", place)], f"of_couple_{index}", axis=-1)
            for place in (0, 1)
        )
    else:
        left, right = (writer.edit.fresh(f"{writer.node.name}_{word}_{index}") for word in ("left", "right"))
        lengths = writer.whole("halves", [half, half])
        writer.edit.node(
            "Split", [turning, lengths], [left, right], name=f"{writer.node.name}_halves_{index}", axis=-1
        )
    cos, sin = angles
    real = writer.op(
        "Sub",
        [
            writer.op("Mul", [left, cos], f"one_cos_{index}"),
            writer.op("Mul", [right, sin], f"two_sin_{index}"),
        ],
        f"real_{index}",
    )
    imaginary = writer.op(
        "Add",
        [
            writer.op("Mul", [left, sin], f"one_sin_{index}"),
            writer.op("Mul", [right, cos], f"two_cos_{index}"),
        ],
        f"imaginary_{index}",
    )
    if writer.node.integer("rotary_interleaved", 0):
        last = writer.whole("couple_axis", [-1])
        couple = [writer.op("Unsqueeze", [name, last], f"wide_{index}") for name in (real, imaginary)]
        joined = writer.op("Concat", couple, f"joined_{index}", axis=-1)
        heads = attention.sides.queries if index == 0 else attention.sides.keys
        flat = writer.whole("flat", [0, heads, -1, 2 * half])
        joined = writer.op("Reshape", [joined, flat], f"rotated_{index}")
    else:
        joined = writer.op("Concat", [real, imaginary], f"rotated_{index}", axis=-1)
    return writer.op("Concat", [joined, straight], f"whole_{index}", axis=-1) if straight else joined


def _leave(_writer: _Writer) -> bool:
    return False


def _refuse(_writer: _Writer, _masks: dict[tuple[Any, ...], str]) -> bool:
    return False


_PLAIN: dict[str, Callable[[_Writer], bool]] = {
    "SkipLayerNormalization": lambda writer: _skip_norm(writer, simple=False),
    "SkipSimplifiedLayerNormalization": lambda writer: _skip_norm(writer, simple=True),
    "SimplifiedLayerNormalization": _simple_norm,
    "BiasGelu": _gelu,
    "Gelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_product,
}
_ATTENTIONS: dict[str, Callable[[_Writer, dict[tuple[Any, ...], str]], bool]] = {
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query,
}
WRITTEN = _PLAIN.keys() | _ATTENTIONS.keys()
"""Operators of com.microsoft that are written as ONNX operators, most of them with all attributes."""

"""Rewrites a Q/DQ model so that every INT8 compute node uses integers, as TensorRT's INT8 kernels do.

    x -> Q -> DQ --.                             x -> Q -> Cast --.
                    Conv(bias) -> y    becomes                     Conv -> INT32 -> * scale -> + bias -> y
    w -> Q -> DQ --'                             round(w / scale) -'

Activations and weights are integers in [-128, 127], and their products are summed exactly in INT32. One FP32
multiplication per output channel by (activation scale * weight scale) converts the sum to a real value. A float
convolution over such integers is exact if no sum can reach 2^24. If a sum could, it is cut along its channels, and
the parts are added in INT32. In FP16 and BF16 models the kernel's epilogue stays FP32 up to the next QuantizeLinear or the end
of the fused region, and is rounded to 16 bits once. The graph itself would round after every node.

Facts: INT8 kernels accumulate in INT32 and scale in FP32 (TensorRT developer guide, "Quantized types"; ONNX operator
QLinearConv); QuantizeLinear rounds half to even and saturates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import INT8, DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.emulation.wide_regions import Regions, Wide, widen
from qdqtool.graph.qdq.encode import encode
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import Model, node_of
from qdqtool.trt.ops import CONVOLUTIONS, PRODUCTS, weight_axis

# --- integer operands ------------------------------------------------------------------------------------------------
# Inputs of a compute node that represent INT8 integers times a scale.


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """An INT8 operand: the integers and the scale of a DequantizeLinear.

    Attributes:
        source: tensor of the integers.
        scale: float32 scalar, or a vector along `axis`.
        axis: channel axis of a vector of scales; None for a scalar.
        value: the integers if they are constant.
    """

    source: str
    scale: NDArray[np.float32]
    axis: int | None
    value: NDArray[np.int8] | None


class Operands:
    """Finds the INT8 operands in a model under edit; caches each answer."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self._makers = edit.producers()
        self._known: dict[str, Operand | None] = {}

    def of(self, tensor: str) -> Operand | None:
        """Return the operand that makes `tensor`; None if it is not symmetric INT8 with constant scales."""
        if tensor not in self._known:
            self._known[tensor] = self._read(tensor)
        return self._known[tensor]

    def _read(self, tensor: str) -> Operand | None:
        node = self._makers.get(tensor)
        if node is None or node.op_type != DEQUANTIZE:
            return None
        scale = self._edit.value(node.input[1])
        if scale is None or scale.ndim > 1 or not self._is_symmetric(node):
            return None
        axis = None if scale.size == 1 else attribute(node, "axis", 1)
        flat = scale.astype(np.float32).reshape(() if axis is None else -1)
        floats, integers = self._constant(node.input[0])
        values = floats if integers is None else integers
        if axis is not None:
            if values is None:
                return None
            axis %= values.ndim
        if integers is None and floats is not None:
            integers = encode(floats, flat, INT8, axis)
        if integers is not None and integers.dtype != np.int8:
            return None
        return Operand(source=node.input[0], scale=flat, axis=axis, value=integers)

    def _is_symmetric(self, node: onnx.NodeProto) -> bool:
        """Return True if the integers are INT8 with zero point 0; the QuantizeLinear or a stored constant may state the type."""
        if len(node.input) > 2 and node.input[2]:
            zero = self._edit.value(node.input[2])
            return zero is not None and zero.dtype == np.int8 and not zero.any()
        stored, maker = self._edit.constants.get(node.input[0]), self._makers.get(node.input[0])
        if stored is not None:
            return bool(stored.data_type == _INT8)
        return (
            maker is not None and maker.op_type == QUANTIZE and attribute(maker, "output_dtype", 0) == _INT8
        )

    def _constant(self, tensor: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Return the floats before the Q of `tensor`, and its integers; None for each non-constant one."""
        node = self._makers.get(tensor)
        floats = self._edit.value(node.input[0]) if node is not None and node.op_type == QUANTIZE else None
        return floats, self._edit.value(tensor)


def attribute(node: onnx.NodeProto, name: str, default: T) -> T:
    """Return the value of an attribute, or `default` if the node does not have it."""
    entries = (entry for entry in node.attribute if entry.name == name)
    value: T = next((onnx.helper.get_attribute_value(entry) for entry in entries), default)
    return value


# --- integer sums ----------------------------------------------------------------------------------------------------
# Cuts a product of integers into parts whose sums FP32 holds exactly.


_EXACT = 1 << 24
"""Integers below this are exact in FP32, whatever the order of the sum."""
_LARGEST = 128
"""Largest magnitude of an INT8 value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Axes of a compute node: output channels, and the axes over which products are summed.

    Attributes:
        output: weight axis of the output channels; -1 for a vector, which has none.
        summed: weight axis along which a sum can be cut.
        source: activation axis that goes with `summed`.
        cuttable: whether the sum can be cut at all; channels of a grouped convolution cannot.
    """

    output: int
    summed: int
    source: int
    cuttable: bool = True


def axes(node: onnx.NodeProto, rank: int) -> Axes:
    """Return the axes of a Conv, ConvTranspose, Gemm or MatMul whose weights have `rank` dimensions."""
    view_of_node = node_of(node)
    output = weight_axis(view_of_node, 1, rank)
    if node.op_type in CONVOLUTIONS:
        first = int(node.op_type == "ConvTranspose")
        return Axes(output=first, summed=1 - first, source=1, cuttable=attribute(node, "group", 1) == 1)
    if node.op_type == "Gemm" and output is not None:
        return Axes(output=output, summed=1 - output, source=0 if attribute(node, "transA", 0) else 1)
    return Axes(output=rank - 1 if rank > 1 else -1, summed=max(0, rank - 2), source=-1)


def cut(weights: NDArray[np.int8], place: Axes) -> list[NDArray[np.int8]]:
    """Cut the weights along the summed axis into few pieces whose sums stay below 2^24 for every activation."""
    channels = weights.shape[place.summed] if place.cuttable else 1
    pieces = 1
    while True:
        parts = np.array_split(weights, pieces, axis=place.summed)
        if pieces >= channels or all(_bound_sum(part, place) < _EXACT for part in parts):
            return parts
        pieces = min(channels, 2 * pieces)


def windows(length: int) -> list[tuple[int, int]]:
    """Return windows of a sum over two run-time operands; the sum inside each stays below 2^24."""
    step = (_EXACT - 1) // (_LARGEST * _LARGEST)
    return [(start, min(length, start + step)) for start in range(0, length, step)]


def is_exact(weights: NDArray[np.int8], place: Axes) -> bool:
    """Return True if no sum over these weights can reach 2^24."""
    return _bound_sum(weights, place) < _EXACT


def _bound_sum(weights: NDArray[np.int8], place: Axes) -> int:
    """Return the largest magnitude that a sum over `weights` can have."""
    magnitude = np.abs(weights.astype(np.int64))
    batched = weights.ndim - 2 if place.source == -1 else 0
    over = tuple(axis for axis in range(batched, weights.ndim) if axis != place.output)
    sums: NDArray[Any] = magnitude.sum(axis=over)
    return int(sums.max(initial=0)) * _LARGEST


# --- integer form ----------------------------------------------------------------------------------------------------


_FLOAT, _INT32, _INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT8
_NARROW = {DType.FLOAT16: onnx.TensorProto.FLOAT16, DType.BFLOAT16: onnx.TensorProto.BFLOAT16}


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerForm:
    """A Q/DQ model that was rewritten to compute with integers.

    Attributes:
        model: same inputs and outputs.
        exact: compute nodes that are now exact, in graph order.
        rounded: compute nodes with integer operands whose sum may exceed what FP32 holds exactly.
        left: compute nodes without two INT8 operands, computed as the model says.
    """

    model: Model
    exact: tuple[str, ...]
    rounded: tuple[str, ...]
    left: tuple[str, ...]


def integer_form(model: Model, regions: Regions | None = None, *, reciprocal: bool = False) -> IntegerForm:
    """Return the integer-exact form of a Q/DQ model.

    Args:
        model: a model with Q/DQ nodes; a model without Q/DQ is returned unchanged.
        regions: names of the ONNX nodes that one kernel computes, as an engine's layers list them. None: use the
            usual epilogues (activations, Add and Mul after the compute node). (): treat every node as a separate
            kernel.
        reciprocal: quantize by a multiplication with 1 / scale instead of a division, as some kernels do. The results
            differ only in rare ties.
    """
    writer = _IntegerWriter(model)
    nodes: dict[str, list[str]] = {"exact": [], "rounded": [], "left": []}
    for node in [node for node in writer.edit.nodes if node.op_type in PRODUCTS]:
        nodes[writer.rewrite(node)].append(node.name)
    widen(writer.edit, writer.wide, regions, model.path)
    if reciprocal:
        _by_reciprocal(writer.edit)
    writer.edit.prune()
    return IntegerForm(
        model=writer.edit.finish(retyped=True),
        exact=tuple(nodes["exact"]),
        rounded=tuple(nodes["rounded"]),
        left=tuple(nodes["left"]),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Product:
    """A compute node with integer operands, and the scale of its sums, shaped for its output."""

    node: onnx.NodeProto
    left: Operand
    right: Operand
    scale: NDArray[np.float32]


class _IntegerWriter:
    """Rewrites the compute nodes of a Q/DQ model to integer arithmetic, one by one.

    Attributes:
        edit: the model under change.
        wide: FP32 tensors before results of 16 bits, by the result's name.
    """

    def __init__(self, model: Model) -> None:
        self.edit = Edit(model)
        self.wide: dict[str, Wide] = {}
        self._view = model.view
        self._operands = Operands(self.edit)
        self._casts: dict[str, str] = {}

    def rewrite(self, node: onnx.NodeProto) -> str:
        """Replace `node` if both operands are INT8; return the outcome "exact", "rounded" or "left"."""
        product = self._product(node)
        if product is None:
            return "left"
        pairs, exact = self._pairs(product)
        total = self._sum(node, pairs)
        self.edit.remove([node])
        self._epilogue(product, total)
        return "exact" if exact else "rounded"

    def _product(self, node: onnx.NodeProto) -> _Product | None:
        left, right = self._operands.of(node.input[0]), self._operands.of(node.input[1])
        if left is None or right is None or left.axis is not None:
            return None
        scale = _output_scale(node, right, self._rank(node.output[0]))
        if scale is None:
            return None
        whole = scale * np.float64(left.scale) * attribute(node, "alpha", 1.0)
        return _Product(node=node, left=left, right=right, scale=whole.astype(np.float32))

    def _pairs(self, product: _Product) -> tuple[list[tuple[str, str]], bool]:
        """Return the pairs of integer-valued float tensors to multiply, and whether each sum is exact."""
        left, right = self._floats(product.left), product.right.value
        if right is None:
            return self._stretches(product.node, left, self._floats(product.right))
        place = axes(product.node, right.ndim)
        parts = cut(right, place)
        pairs, start = [], 0
        for part in parts:
            stop = start + part.shape[place.summed]
            source = left if len(parts) == 1 else self._slice(left, (start, stop), place.source)
            pairs.append(
                (source, self.edit.constant(f"{product.node.name}_integers", part.astype(np.float32)))
            )
            start = stop
        return pairs, all(is_exact(part, place) for part in parts)

    def _stretches(self, node: onnx.NodeProto, left: str, right: str) -> tuple[list[tuple[str, str]], bool]:
        """Cut a product of two run-time operands along its summed axis; also return True if all parts are exact."""
        shape, rank = self._view.info(node.input[0]).shape, self._rank(node.input[1])
        length = shape[-1] if shape else None
        if not isinstance(length, int) or node.op_type != "MatMul" or not rank:
            return [(left, right)], False
        stretches = windows(length)
        if len(stretches) == 1:
            return [(left, right)], True
        return [
            (self._slice(left, window, -1), self._slice(right, window, -min(rank, 2))) for window in stretches
        ], True

    def _sum(self, node: onnx.NodeProto, pairs: list[tuple[str, str]]) -> str:
        """Write nodes that add the products of all pairs in INT32; return the name of the sum as a float tensor."""
        edit, sums = self.edit, []
        for left, right in pairs:
            out, whole = edit.fresh(f"{node.name}_product"), edit.fresh(f"{node.name}_int32")
            kept = [entry for entry in node.attribute if entry.name not in {"alpha", "beta"}]
            edit.node(node.op_type, [left, right], [out], name=f"{node.name}_product").attribute.extend(kept)
            edit.node("Cast", [out], [whole], name=f"{node.name}_int32", to=_INT32)
            sums.append(whole)
        while len(sums) > 1:
            out = edit.fresh(f"{node.name}_sum")
            edit.node("Add", [sums.pop(), sums.pop()], [out], name=f"{node.name}_sum")
            sums.append(out)
        total = edit.fresh(f"{node.name}_total")
        edit.node("Cast", sums, [total], name=f"{node.name}_total", to=_FLOAT)
        return total

    def _epilogue(self, product: _Product, total: str) -> None:
        """Apply scale and bias of a compute node in FP32, then convert to the type of its result."""
        edit, node = self.edit, product.node
        output, bias = node.output[0], self._bias(node)
        narrow = _NARROW.get(self._view.info(output).dtype)
        result = edit.fresh(f"{output}_wide") if narrow else output
        scaled = edit.fresh(f"{output}_scaled") if bias else result
        factor = edit.constant(f"{node.name}_scale", product.scale)
        edit.node("Mul", [total, factor], [scaled], name=f"{node.name}_scale")
        if bias:
            edit.node("Add", [scaled, bias], [result], name=f"{node.name}_bias")
        if narrow:
            self.wide[output] = Wide(tensor=result, kernel=node.name, element=narrow)
            edit.node("Cast", [result], [output], name=f"{node.name}_half", to=narrow)

    def _bias(self, node: onnx.NodeProto) -> str:
        """Return the bias of a compute node as FP32, shaped for the output; "" if there is none."""
        if len(node.input) < 3 or not node.input[2]:
            return ""
        edit, tensor, name = self.edit, str(node.input[2]), f"{node.name}_bias"
        if self._view.info(tensor).dtype is not DType.FLOAT32:
            wide = edit.fresh(f"{name}_wide")
            edit.node("Cast", [tensor], [wide], name=f"{name}_wide", to=_FLOAT)
            tensor = wide
        beta = attribute(node, "beta", 1.0)
        if beta != 1.0:
            scaled, factor = (
                edit.fresh(f"{name}_beta"),
                edit.constant(f"{name}_beta", np.array(beta, np.float32)),
            )
            edit.node("Mul", [tensor, factor], [scaled], name=f"{name}_beta")
            tensor = scaled
        if node.op_type not in CONVOLUTIONS:
            return tensor
        shape = np.array([1, -1, *[1] * (self._rank(node.output[0]) - 2)], np.int64)
        shaped = edit.fresh(f"{name}_shaped")
        edit.node("Reshape", [tensor, edit.constant(f"{name}_shape", shape)], [shaped], name=f"{name}_shaped")
        return shaped

    def _floats(self, operand: Operand) -> str:
        """Return an operand's integers as a float tensor, which is created once."""
        if operand.source not in self._casts:
            name = f"{operand.source}_float"
            if operand.value is not None:
                self._casts[operand.source] = self.edit.constant(name, operand.value.astype(np.float32))
            else:
                out = self._casts[operand.source] = self.edit.fresh(name)
                self.edit.node("Cast", [operand.source], [out], name=name, to=_FLOAT)
        return self._casts[operand.source]

    def _slice(self, tensor: str, window: tuple[int, int], axis: int) -> str:
        """Return the slice `window` of a tensor along `axis`."""
        numbers = [
            self.edit.constant(f"{tensor}_{word}", np.array([value], np.int64))
            for word, value in (("from", window[0]), ("to", window[1]), ("axis", axis))
        ]
        out = self.edit.fresh(f"{tensor}_part")
        self.edit.node("Slice", [tensor, *numbers], [out], name=out)
        return out

    def _rank(self, tensor: str) -> int:
        return len(self._view.info(tensor).shape or ())


def _output_scale(node: onnx.NodeProto, weights: Operand, rank: int) -> NDArray[np.float64] | None:
    """Return the weight scales shaped for the output; None if they do not belong to its channels."""
    scale = weights.scale.astype(np.float64)
    if weights.axis is None:
        return scale
    if weights.value is None or weights.axis != axes(node, weights.value.ndim).output:
        return None
    if node.op_type not in CONVOLUTIONS:
        return scale
    if rank < 3:
        return None
    channels = np.tile(scale, attribute(node, "group", 1)) if node.op_type == "ConvTranspose" else scale
    return channels.reshape([1, -1, *[1] * (rank - 2)])


def _by_reciprocal(edit: Edit) -> None:
    """Replace every symmetric QuantizeLinear to INT8 by Mul, Round, Clip and Cast."""
    limits = [
        edit.constant(f"int8_{side}", np.array(value, np.float32))
        for side, value in (("low", INT8.qmin), ("high", INT8.qmax))
    ]
    for node in [node for node in edit.nodes if node.op_type == QUANTIZE and len(node.input) > 2]:
        scale, zero = edit.value(node.input[1]), edit.value(node.input[2])
        if (
            scale is None
            or scale.size != 1
            or scale.dtype != np.float32
            or zero is None
            or zero.dtype != np.int8
            or zero.any()  # no kernel has zero points
        ):
            continue
        factor = edit.constant(f"{node.name}_factor", np.reciprocal(scale.reshape(())))
        steps, rounded, clipped = (
            edit.fresh(f"{node.name}_{step}") for step in ("steps", "rounded", "clipped")
        )
        edit.remove([node])
        edit.node("Mul", [node.input[0], factor], [steps], name=f"{node.name}_steps")
        edit.node("Round", [steps], [rounded], name=f"{node.name}_round")
        edit.node("Clip", [rounded, *limits], [clipped], name=f"{node.name}_clip")
        edit.node("Cast", [clipped], [node.output[0]], name=f"{node.name}_cast", to=_INT8)

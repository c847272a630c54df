"""Converts quantized constants to INT8 with zero point 0, directly before the node that reads the constant.

TensorRT refuses zero points other than 0 and uint8 weights. It runs the node in float if a Transpose or Reshape is
between the DequantizeLinear and the weight input, or if the scales are along the wrong axis (for MatMul, any axis but
the output axis). If integers minus zero point fit INT8, the result is exact; otherwise the weight is quantized again
from its float values, and the largest error is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.tensors import INT8
from qdqtool.graph.canonical.constants import compute_confirmed
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.encode import encode, storable
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.qdq.flow import STORED_INTEGERS, Flow, RepairContext
from qdqtool.graph.qdq.slots import float_value, requantize
from qdqtool.graph.qdq.stored import steps_and_scale
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.matching.products import NodeOperand, Product, State, products
from qdqtool.trt.ops import (
    MATRIX_PRODUCTS,
    PRODUCTS,
    holds_dequantize_back,
    quantization_commutes,
    weight_axis,
)

Requantized = tuple["NDArray[np.int8]", "NDArray[np.float32]", float]
"""INT8 values, their scales, and the largest error as a share of the largest magnitude."""
# Weights that are all zero have no largest value to compare an error with.
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeight:
    """A constant that a DequantizeLinear reads.

    Attributes:
        pair: how it is quantized.
        moves: operators on the way to its reader that only move values.
        reader: the compute node that multiplies by the weight; None if another node reads it, if several nodes do, or
            if it is a model output.
        axis: the axis of its reader's output channels; None if there is none.
    """

    pair: QdqPair
    moves: tuple[Node, ...] = ()
    reader: Node | None = None
    axis: int | None = None


def store_again(
    context: RepairContext, pairs: Iterable[QdqPair], trouble: Callable[[StoredWeight], str]
) -> Iterator[Change]:
    """Store weights as INT8 with zero point 0 directly before their reader.

    `trouble` returns the reason, or "" to skip a weight.

    Skip entries of `pairs` that are not constants of 8, 16 or 32 bit integers.
    """
    for pair in {pair.dequantize: pair for pair in pairs}.values():
        if pair.kind is not SlotKind.WEIGHT or pair.dequantize is None or not context.is_plain(pair):
            continue
        if all(context.view.is_inside(slot.node, slot.index) for slot in pair.slots):
            continue  # only outputs or bodies of control flow read it, and their tensors keep their names
        route = _route(context, pair)
        weight = _weight(context, pair, route)
        why = trouble(weight)
        parts = steps_and_scale(context, pair) if why else None
        if parts is None or not parts[0].size:
            continue
        moved = [_move_value(context, route.moves, part) if route else part for part in parts]
        steps, scale = moved
        if steps is None or scale is None:
            continue
        error = _replace(context, pair, route, steps, scale)
        yield Change(
            subject=pair.tensor,
            what="stored as INT8 with zero point 0" if steps.ndim else "stored as a float number",
            reason=why,
            error=error,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Route:
    """The path from a constant to the node that reads it.

    Attributes:
        moves: operators on the way that only move values.
        reader: the node at the end.
        index: number of the reader's input.
    """

    moves: tuple[Node, ...]
    reader: Node
    index: int


def _weight(context: RepairContext, pair: QdqPair, route: _Route | None) -> StoredWeight:
    if route is None or route.reader.op not in PRODUCTS:
        return StoredWeight(pair=pair)
    shape = context.view.constant_shape(pair.tensor) or ()
    axis = weight_axis(route.reader, route.index, len(shape), context.target)
    return StoredWeight(pair=pair, moves=route.moves, reader=route.reader, axis=axis)


def _route(context: RepairContext, pair: QdqPair) -> _Route | None:
    """Return the path from a constant to its reader; None if the path forks, is a model output, or has no reader."""
    moves: list[Node] = []
    tensor = context.result(pair)
    while tensor not in context.pinned:
        uses = context.view.uses(tensor)
        if len(uses) != 1:
            return None
        node, index = uses[0].node, uses[0].index
        if (
            not quantization_commutes(context.view, node)
            or index != 0
            or not all(context.view.is_constant(name) for name in node.inputs[1:] if name)
        ):
            return _Route(moves=tuple(moves), reader=node, index=index)
        moves.append(node)
        tensor = node.outputs[0]
    return None


def _move_value(context: RepairContext, moves: tuple[Node, ...], value: NDArray[Any]) -> NDArray[Any] | None:
    """Apply the operators on the path to `value`; None if one cannot be computed."""
    for move in moves:
        names = [name for name in move.inputs[1:] if name]
        constants = {name: constant for name in names if (constant := context.edit.value(name)) is not None}
        outputs = compute_confirmed(
            context.nodes[move.name], {**constants, move.inputs[0]: value}, context.edit.opset
        )
        if outputs is None:
            return None
        value = outputs[move.outputs[0]]
    return value


def _replace(
    context: RepairContext, pair: QdqPair, route: _Route | None, steps: NDArray[Any], scale: NDArray[Any]
) -> float:
    """Store the new constant and connect its reader to it; return the error of the new values."""
    edit = context.edit
    end = route.moves[-1].outputs[0] if route and route.moves else context.result(pair)
    kind = context.scale_type(context.nodes[pair.dequantize or ""])
    if not steps.ndim:
        context.redirect(end, edit.constant(f"{pair.tensor}_float", (steps * scale).astype(kind)))
        return 0.0
    axis = weight_axis(route.reader, route.index, steps.ndim, context.target) if route else None
    values, new_scale, error = _exact(steps, scale, axis, pair) or requantize_weight(
        steps * scale, axis, kind
    )
    inputs = [
        edit.constant(f"{pair.tensor}_int8", values),
        edit.constant(f"{pair.tensor}_scale", new_scale.astype(kind)),
        edit.constant(f"{pair.tensor}_zero_point", np.zeros(new_scale.shape, np.int8)),
    ]
    result = edit.fresh(f"{end}_int8")
    along = {"axis": axis} if new_scale.ndim else {}
    edit.node("DequantizeLinear", inputs, [result], name=f"{pair.dequantize}_int8", **along)
    context.redirect(end, result)
    return error


def _exact(steps: NDArray[Any], scale: NDArray[Any], axis: int | None, pair: QdqPair) -> Requantized | None:
    """Return stored weights unchanged as INT8 with zero point 0; None if they do not fit, or if scales vary along another axis."""
    axes = None if axis is None else tuple(place for place in range(steps.ndim) if place != axis)
    low, high = scale.min(axis=axes), scale.max(axis=axes)
    if (low != high).any() or (low <= 0).any() or steps.min() < INT8.qmin or steps.max() > INT8.qmax:
        return None
    per_channel = axis is not None and len(pair.scale) > 1
    return steps.astype(np.int8), (low if per_channel else np.asarray(scale.flat[0])).astype(np.float32), 0.0


def per_channel(edit: Edit, model: Model, node: Node, target: Target | None = None) -> Iterator[SlotEdit]:
    """Yield edits that quantize the constant operands of a compute node to INT8; the scales come from the values.

    Scales go along the axis that the target reads.
    """
    for index in (0, 1):
        value = float_value(edit, model, node.inputs[index])
        if value is None or value.ndim < 2 or not value.size:
            continue
        axis = weight_axis(node, index, value.ndim, target)
        scale = requantize_weight(value.astype(np.float64), axis, value.dtype)[1]
        yield SlotEdit(
            slot=Slot(node=node.name, index=index), scales=tuple(map(float, np.atleast_1d(scale))), axis=axis
        )


def requantize_weight(value: NDArray[Any], axis: int | None, kind: Any) -> Requantized:
    """Quantize `value` to INT8 with scale amax / 127, for the whole tensor or per channel; the NumPy type `kind` stores the scales."""
    axes = None if axis is None else tuple(place for place in range(value.ndim) if place != axis)
    largest = np.abs(value).max(axis=axes)
    scale = storable(np.where(largest > 0, largest / INT8.qmax, 1.0), kind)
    integers = encode(value, scale, INT8, axis)
    grid = (
        scale if axis is None else scale.reshape([-1 if place == axis else 1 for place in range(value.ndim)])
    )
    error = np.abs(integers * grid.astype(np.float64) - value).max() / max(float(largest.max()), _TINY)
    return integers, scale, float(error)


# --- half quantized --------------------------------------------------------------------------------------------------
# Compute nodes that have Q/DQ on one input only, and Q/DQ pairs for the other input if its range was measured.


def half_quantized(
    flow: Flow, target: Target, *, alone: bool = False
) -> Iterator[tuple[Product, NodeOperand]]:
    """Yield compute nodes with exactly one quantized operand, each with its float operand, in graph order.

    A matrix product dequantizes stored weights in its kernel, as weight-only recipes request. Beside INT8 compute
    nodes, its activation may have been forgotten. A convolution with INT8 weights is meant to be INT8. With `alone`,
    every matrix product with INT8 weights counts, as after a removal of dynamic quantization.
    """
    layers = tuple(products(flow, target))
    has_int8 = any(product.arithmetic == INT8.name for product in layers)
    for product in layers:
        bare = [operand for operand in product.operands if not operand.quantized]
        stored = product.weights_alone
        if len(bare) != 1 or _reads_unequal_branches(flow, product.node, bare[0].index):
            continue  # the rule concat reports it
        if stored is None or _is_half(product, stored, target, has_int8=has_int8 or alone):
            yield product, bare[0]


def scales_of_branches(flow: Flow, concat: Node) -> int:
    """Count the different scales among the branches of a Concat; 0 if a branch is float."""
    pairs = [flow.origins.get(tensor) for tensor in concat.inputs]
    return 0 if None in pairs else len({pair.scale for pair in pairs if pair is not None})


def _reads_unequal_branches(flow: Flow, node: Node, index: int) -> bool:
    maker = flow.view.producer(node.inputs[index])
    return maker is not None and maker.op == "Concat" and scales_of_branches(flow, maker) > 1


def _is_half(product: Product, stored: NodeOperand, target: Target, *, has_int8: bool) -> bool:
    convolves = product.node.op not in MATRIX_PRODUCTS
    if stored.format != INT8.name or stored.state is State.BLOCKS:
        return (
            convolves and not target.is_rtx
        )  # for TensorRT for RTX, the rules weights_apart and blocks report it
    return has_int8 or convolves


def asks_int8(product: Product) -> bool:
    """Return True if the quantized operand of a half-quantized node is INT8."""
    return product.request.startswith(INT8.name)


def _half_int8(model: Model) -> Iterator[tuple[Node, int]]:
    """Yield the node and input number of each float operand of a compute node whose other operand is INT8."""
    for product, bare in half_quantized(Flow(model), Target(), alone=True):
        if asks_int8(product):
            yield product.node, bare.index


def is_quantized(view: GraphView, tensor: str) -> bool:
    """Return True if a Q/DQ pair makes the tensor: directly, or before operators that can pass integers on."""
    maker = view.producer(tensor)
    while maker is not None and quantization_commutes(view, maker) and not holds_dequantize_back(view, maker):
        maker = view.producer(maker.inputs[0])
    if maker is not None and maker.op == "Concat":
        return all(is_quantized(view, name) for name in maker.inputs)
    if maker is None or maker.op != DEQUANTIZE:
        return False
    return not view.is_constant(maker.inputs[0]) or view.info(maker.inputs[0]).dtype in STORED_INTEGERS


def tensors_without_range(model: Model) -> tuple[str, ...]:
    """Return the run-time tensors that need a range: float inputs of compute nodes whose other input is quantized."""
    names = {node.inputs[index] for node, index in _half_int8(model)}
    return tuple(sorted(name for name in names if not model.view.is_constant(name)))


def quantize_activations(model: Model, amax: Mapping[str, float]) -> tuple[Model, tuple[Change, ...]]:
    """Insert a Q/DQ pair with scale amax / 127 before each float operand whose other operand is INT8, if its range is given.

    Ranges that are not positive numbers are passed over.
    """
    edits, changes = [], []
    for node, index in _half_int8(model):
        tensor = node.inputs[index]
        range_ = amax.get(tensor, 0.0)
        if not isfinite(range_) or range_ <= 0:
            continue
        edit = SlotEdit(slot=Slot(node=node.name, index=index), scales=(range_ / INT8.qmax,))
        edits.append(edit)
        changes.append(
            Change(
                rule="half_quantized",
                subject=tensor,
                what=f"quantized for {node.op} {node.name!r} with the measured range {range_:.4g}",
                reason="a quantized weight with a float activation runs in float",
                edits=(edit,),
            )
        )
    return (requantize(model, edits) if edits else model), tuple(changes)

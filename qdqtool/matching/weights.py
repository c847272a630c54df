"""Quantized constants become INT8 with zero point 0, directly before the node that reads them.

TensorRT refuses zero points other than 0 and uint8 weights, and runs the node in float when a Transpose or Reshape is
between the DequantizeLinear and the weight input, or when the scales lie along the wrong axis (for MatMul any but the
output axis). If integers minus zero point fit INT8, nothing is lost; otherwise the weight is quantized again from its
float values, and the largest error is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.canonical.confirm import compute_confirmed
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.encode import encode
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.scales import storable
from qdqtool.graph.qdq.slots import float_value
from qdqtool.graph.qdq.stored import steps_and_scale
from qdqtool.graph.view import Node
from qdqtool.trt.ops import PRODUCTS, quantization_commutes, weight_axis

if TYPE_CHECKING:
    from numpy.typing import NDArray


Requantized = tuple["NDArray[np.int8]", "NDArray[np.float32]", float]
"""INT8 values, their scales, and the largest error as a share of the largest magnitude."""
# Weights that are all zero have no largest value to compare an error with.
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredWeight:
    """A constant with a DequantizeLinear after it.

    Attributes:
        pair: how it is quantized.
        moves: operators on the way to its reader that only move values.
        reader: the product that multiplies by it; None if something else reads it, several nodes do, or it is returned.
        axis: the axis of its reader's output channels; None if there is none.
    """

    pair: QdqPair
    moves: tuple[Node, ...] = ()
    reader: Node | None = None
    axis: int | None = None


def stored_again(
    context: RepairContext, pairs: Iterable[QdqPair], trouble: Callable[[StoredWeight], str]
) -> Iterator[Change]:
    """Store weights as INT8 with zero point 0 directly before their reader.

    `trouble` returns the reason, or "" to skip a weight.

    Of `pairs` those that are no constants of 8, 16 or 32 bit integers are passed over.
    """
    for pair in {pair.dequantize: pair for pair in pairs}.values():
        if pair.kind is not SlotKind.WEIGHT or pair.dequantize is None or not context.is_plain(pair):
            continue
        route = _route(context, pair)
        weight = _weight(context, pair, route)
        why = trouble(weight)
        found = steps_and_scale(context, pair) if why else None
        if found is None or not found[0].size:
            continue
        moved = [_moved(context, route.moves, part) if route else part for part in found]
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
        index: which of its inputs.
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
    """Return the path of the constant; None if the path forks, is a model output, or ends without a reader."""
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


def _moved(context: RepairContext, moves: tuple[Node, ...], value: NDArray[Any]) -> NDArray[Any] | None:
    """Apply the operators on the path to `value`; None if one cannot be computed."""
    for move in moves:
        names = [name for name in move.inputs[1:] if name]
        constants = {name: found for name in names if (found := context.edit.value(name)) is not None}
        made = compute_confirmed(
            context.nodes[move.name], {**constants, move.inputs[0]: value}, context.edit.opset
        )
        if made is None:
            return None
        value = made[move.outputs[0]]
    return value


def _replace(
    context: RepairContext, pair: QdqPair, route: _Route | None, steps: NDArray[Any], scale: NDArray[Any]
) -> float:
    """Store the new constant and connect the reader to it; return the error."""
    edit = context.edit
    end = route.moves[-1].outputs[0] if route and route.moves else context.result(pair)
    kind = context.scale_type(context.nodes[pair.dequantize or ""])
    if not steps.ndim:
        context.redirect(end, edit.constant(f"{pair.tensor}_float", (steps * scale).astype(kind)))
        return 0.0
    axis = weight_axis(route.reader, route.index, steps.ndim, context.target) if route else None
    values, new_scale, error = _exact(steps, scale, axis, pair) or requantized(
        steps * scale, axis, half=kind is np.float16
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
    """Return the values unchanged as INT8 with zero point 0; None if they do not fit, or scales vary along another axis."""
    others = None if axis is None else tuple(place for place in range(steps.ndim) if place != axis)
    low, high = scale.min(axis=others), scale.max(axis=others)
    if (low != high).any() or (low <= 0).any() or steps.min() < INT8.qmin or steps.max() > INT8.qmax:
        return None
    per_channel = axis is not None and len(pair.scale) > 1
    return steps.astype(np.int8), (low if per_channel else np.asarray(scale.flat[0])).astype(np.float32), 0.0


def per_channel(edit: Edit, model: Model, node: Node, target: Target | None = None) -> Iterator[SlotEdit]:
    """Yield edits that quantize the constant factors of a compute node to INT8, from their values.

    Scales go along the axis that the target reads.
    """
    for index in (0, 1):
        value = float_value(edit, model, node.inputs[index])
        if value is None or value.ndim < 2 or not value.size:
            continue
        axis = weight_axis(node, index, value.ndim, target)
        scale = requantized(value.astype(np.float64), axis, half=value.dtype == np.float16)[1]
        yield SlotEdit(
            slot=Slot(node=node.name, index=index), scales=tuple(map(float, np.atleast_1d(scale))), axis=axis
        )


def requantized(value: NDArray[Any], axis: int | None, *, half: bool) -> Requantized:
    """Quantize `value` to INT8 with scale amax / 127, for the whole tensor or per channel; `half`: scales are stored in FP16."""
    others = None if axis is None else tuple(place for place in range(value.ndim) if place != axis)
    largest = np.abs(value).max(axis=others)
    scale = storable(np.where(largest > 0, largest / INT8.qmax, 1.0), half=half)
    integers = encode(value, scale, INT8, axis)
    grid = (
        scale if axis is None else scale.reshape([-1 if place == axis else 1 for place in range(value.ndim)])
    )
    error = np.abs(integers * grid.astype(np.float64) - value).max() / max(float(largest.max()), _TINY)
    return integers, scale, float(error)

"""Values of a Q/DQ pair on a constant: integers minus zero point, scales, and the floats that they represent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.fixes import Change
from qdqtool.core.placement import QdqPair
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.flow import RepairContext, set_axis
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import CASTS, RESHAPING

_AGAIN = "export the model again"
_NARROW = frozenset({DType.INT8, DType.INT4, DType.FLOAT8})


def stored_casts(view: GraphView) -> tuple[Node, ...]:
    """Return Casts that turn INT8, INT4 or FP8 constants into floats without a DequantizeLinear, reshaped or not."""
    return tuple(
        node
        for node in view.nodes
        if node.op in CASTS
        and view.info(node.inputs[0]).dtype in _NARROW
        and view.info(node.outputs[0]).dtype.is_float
        and view.is_constant(find_holder(view, node.inputs[0]))
    )


def find_holder(view: GraphView, tensor: str) -> str:
    """Return the tensor whose values reach `tensor` through reshaping nodes and Transposes only."""
    while (maker := view.producer(tensor)) is not None and maker.op in RESHAPING | {"Transpose"}:
        tensor = maker.inputs[0]
    return tensor


def steps_and_scale(context: RepairContext, pair: QdqPair) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the integers minus zero point, and the scale of each integer; both have the shape of the constant.

    None if tensor, scale or zero point are not constant.

    Raises:
        InputFileError: a scale is not a number.
    """
    value = context.edit.value(pair.tensor)
    if value is None or pair.scale_shape is None or not pair.zero_point:
        return None
    scale = spread(np.asarray(pair.scale, np.float64), pair, value.shape)
    zero = spread(np.asarray(pair.zero_point, np.int64), pair, value.shape)
    if not np.isfinite(scale).all():
        raise InputFileError(
            f"a scale of constant {pair.tensor!r} is not a number", fix=_AGAIN, where=str(context.path)
        )
    if pair.quantize is None:
        return value.astype(np.int64) - zero, scale
    limits = np.iinfo(context.integers(pair))
    steps = np.divide(value.astype(np.float64), scale, out=np.zeros(value.shape), where=scale != 0)
    return np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(np.int64) - zero, scale


def dequantize_pair(context: RepairContext, pair: QdqPair) -> NDArray[Any] | None:
    """Return the output of the Q/DQ pair of a constant, in float64; None if it is not constant."""
    parts = steps_and_scale(context, pair)
    return None if parts is None else parts[0] * parts[1]


def spread(values: NDArray[Any], pair: QdqPair, shape: tuple[int, ...]) -> NDArray[Any]:
    """Broadcast values per channel, or a single value, to the shape of a constant with Q/DQ."""
    if values.size == 1:
        return np.broadcast_to(values.reshape(()), shape)
    return np.broadcast_to(
        values.reshape([-1 if place == pair.axis else 1 for place in range(len(shape))]), shape
    )


def fitting_axis(view: GraphView, pair: QdqPair) -> int | None:
    """Return the only axis that fits the scales of a Q/DQ pair, if the stated axis does not fit; otherwise None."""
    shape = view.info(pair.tensor).shape
    count = len(pair.scale)
    if (
        count < 2
        or len(pair.scale_shape or ()) != 1
        or shape is None
        or len(pair.zero_point) not in {0, count}
    ):
        return None
    if pair.axis is not None and -len(shape) <= pair.axis < len(shape) and shape[pair.axis] in {count, "?"}:
        return None
    fits = [axis for axis, size in enumerate(shape) if size == count]
    is_fixed = all(isinstance(size, int) for size in shape)
    return fits[0] if is_fixed and len(fits) == 1 else None


def with_fitting_axes(model: Model) -> tuple[Model, tuple[Change, ...]]:
    """Correct the axis of each Q/DQ pair whose scales fit one axis only, but not the stated one; return the model and the changes."""
    corrections = [
        (pair, axis) for pair in find(model) if (axis := fitting_axis(model.view, pair)) is not None
    ]
    if not corrections:
        return model, ()
    context = RepairContext(model)
    changes = []
    for pair, axis in corrections:
        for name in filter(None, (pair.quantize, pair.dequantize)):
            set_axis(context.nodes[name], axis)
        changes.append(
            Change(
                rule="scale_length",
                subject=pair.quantize or pair.dequantize or "",
                what=f"axis {pair.axis} became {axis}",
                reason=f"its {count_noun(len(pair.scale), 'scale')} match only this axis, and the parser refuses the old one",
                error=0.0,
            )
        )
    return context.finish(), tuple(changes)


def check_counts(model: Model, pair: QdqPair) -> None:
    """Check that a Q/DQ pair has one scale and zero point for each channel, or one for all.

    Raises:
        InputFileError: the numbers contradict each other or the tensor's shape.
    """
    count = len(pair.scale)
    if pair.scale_shape is None:
        return
    counts = None
    if pair.zero_point and len(pair.zero_point) != count:
        counts = f"{count_noun(count, 'scale')} and {count_noun(len(pair.zero_point), 'zero point')}"
    shape = model.view.info(pair.tensor).shape
    if count > 1 and shape is not None:
        axis = pair.axis
        dim = shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else None
        if dim is None or (isinstance(dim, int) and dim != count):
            counts = (
                f"{count_noun(count, 'scale')}, which do not match axis {pair.axis} of shape {list(shape)}"
            )
    if counts is not None:
        node = pair.dequantize or pair.quantize
        raise InputFileError(
            f"node {node!r} quantizes {pair.tensor!r} with {counts}", fix=_AGAIN, where=str(model.path)
        )

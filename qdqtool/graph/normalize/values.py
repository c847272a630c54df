"""The numbers behind a pair of constants: integers minus zero point, scales, and the floats they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.qdq import QdqPair
from qdqtool.errors import InputFileError
from qdqtool.graph.normalize.bench import Bench

if TYPE_CHECKING:
    from numpy.typing import NDArray


def steps_and_scale(bench: Bench, pair: QdqPair) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Integers minus zero point, and the scale of each of them, both shaped like the constant.

    None where tensor, scale or zero point are not constant.

    Raises:
        InputFileError: the scale does not fit the tensor, or is not a number.
    """
    value = bench.edit.value(pair.tensor)
    if value is None or pair.scale_shape is None or not pair.zero_point:
        return None
    scale = spread(np.asarray(pair.scale, np.float64), pair, value.shape)
    zero = spread(np.asarray(pair.zero_point, np.int64), pair, value.shape)
    if not np.isfinite(scale).all():
        raise InputFileError(
            f"the scale of constant {pair.tensor!r} is not a number", fix="export the model again"
        )
    if pair.quantize is None:
        return value.astype(np.int64) - zero, scale
    limits = np.iinfo(bench.integers(pair))
    steps = np.divide(value.astype(np.float64), scale, out=np.zeros(value.shape), where=scale != 0)
    return np.clip(np.rint(steps) + zero, limits.min, limits.max).astype(np.int64) - zero, scale


def dequantized(bench: Bench, pair: QdqPair) -> NDArray[Any] | None:
    """What comes out of the pair of a constant, in float64; None where it is not constant."""
    found = steps_and_scale(bench, pair)
    return None if found is None else found[0] * found[1]


def spread(values: NDArray[Any], pair: QdqPair, shape: tuple[int, ...]) -> NDArray[Any]:
    """One value per scale, repeated over the tensor.

    Raises:
        InputFileError: the number of values does not fit the axis.
    """
    if values.size == 1:
        return np.broadcast_to(values.reshape(()), shape)
    axis = pair.axis
    if axis is None or len(pair.scale_shape or ()) != 1 or axis >= len(shape) or shape[axis] != values.size:
        raise InputFileError(
            f"{values.size} scales do not fit axis {axis} of {pair.tensor!r} with shape {list(shape)}",
            fix="export the model again",
            where=pair.dequantize or pair.quantize,
        )
    return np.broadcast_to(values.reshape([-1 if place == axis else 1 for place in range(len(shape))]), shape)

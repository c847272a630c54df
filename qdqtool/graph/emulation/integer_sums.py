"""Cuts a product of integers into parts whose sums FP32 holds exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from qdqtool.graph.emulation.integer_operands import attribute
from qdqtool.graph.view import node_of
from qdqtool.trt.ops import CONVOLUTIONS, weight_axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXACT = 1 << 24
"""Integers below this are exact in FP32, whatever the order of the sum."""
_LARGEST = 128
"""Largest magnitude of an INT8 value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Axes of the weights and of the activation of a compute node.

    Attributes:
        output: weight axis of the output channels.
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
    known = node_of(node)
    output = weight_axis(known, 1, rank)
    if node.op_type in CONVOLUTIONS:
        first = int(node.op_type == "ConvTranspose")
        return Axes(output=first, summed=1 - first, source=1, cuttable=attribute(node, "group", 1) == 1)
    if node.op_type == "Gemm" and output is not None:
        return Axes(output=output, summed=1 - output, source=0 if attribute(node, "transA", 0) else 1)
    return Axes(output=max(0, rank - 1), summed=max(0, rank - 2), source=-1)


def cut(weights: NDArray[np.int8], place: Axes) -> list[NDArray[np.int8]]:
    """Cut the weights along the summed axis into few pieces whose sums stay below 2^24, whatever the activation."""
    channels = weights.shape[place.summed] if place.cuttable else 1
    pieces = 1
    while True:
        parts = np.array_split(weights, pieces, axis=place.summed)
        if pieces >= channels or all(_bound(part, place) < _EXACT for part in parts):
            return parts
        pieces = min(channels, 2 * pieces)


def windows(length: int) -> list[tuple[int, int]]:
    """Return parts of a sum over two run-time operands that stay below 2^24."""
    step = (_EXACT - 1) // (_LARGEST * _LARGEST)
    return [(start, min(length, start + step)) for start in range(0, length, step)]


def is_exact(weights: NDArray[np.int8], place: Axes) -> bool:
    """Return True if no sum over these weights can reach 2^24."""
    return _bound(weights, place) < _EXACT


def _bound(weights: NDArray[np.int8], place: Axes) -> int:
    """Return the largest magnitude that a sum over `weights` can have."""
    magnitude = np.abs(weights.astype(np.int64))
    batched = weights.ndim - 2 if place.source == -1 else 0
    over = tuple(axis for axis in range(batched, weights.ndim) if axis != place.output)
    sums: NDArray[Any] = magnitude.sum(axis=over)
    return int(sums.max(initial=0)) * _LARGEST

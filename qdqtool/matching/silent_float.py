"""Nodes in FP8, FP4 or with small weights that TensorRT for RTX accepts and silently computes in float.

Placement, prediction and audit ask here.
Evidence: about 790 builds with release 1.7.1 for SM75 to SM121, read from their layer dumps; its log has no line on
any of it. Each entry was seen beside one like it that was realised.
"""

from __future__ import annotations

from math import prod
from typing import Final

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import MATRIX_PRODUCTS

BEFORE: Final = " dequantized before the kernel"
"""End of the phrase for a weight that a separate kernel dequantizes in every inference."""
FEWEST_BLOCKS: Final = 2
"""Fewest blocks of INT4 weights; weights in a single block are dequantized in a separate kernel."""
_MOST_TAPS: Final = 32
"""Most kernel taps of an FP8 convolution. Above, it runs in float: 1x32, 4x8 and 3x3x3 are FP8; 1x33, 6x6 and 7x7 are not."""


def too_many_taps(shape: tuple[int | str, ...]) -> tuple[str, str] | None:
    """Return why an FP8 convolution with weights of this shape runs in float, and the fix; None if it does not."""
    taps = prod(size for size in shape[2:] if isinstance(size, int))
    if taps <= _MOST_TAPS:
        return None
    return (
        f"FP8 convolutions of more than {_MOST_TAPS} taps run in float, this one has {taps}",
        "quantize it to int8, or keep it float",
    )


def rows_of(view: GraphView, node: Node) -> int | None:
    """Return the number of rows of a MatMul's or Gemm's activation: the product of all leading dimensions. None if unknown."""
    shape = view.info(node.inputs[0]).shape
    if node.op not in MATRIX_PRODUCTS or shape is None:
        return None
    if node.op == "Gemm" and node.attribute("transA", 0):
        shape = shape[::-1]
    sizes = [size for size in shape[:-1] if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) - 1 else None

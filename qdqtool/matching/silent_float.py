"""What TensorRT for RTX takes in FP8, FP4 or with small weights and silently computes in float.

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
"""Ends the words for a weight that another kernel turns into floats in every inference."""
FEWEST_BLOCKS: Final = 2
"""With a single block INT4 weights are dequantized in a kernel of their own."""
_MOST_TAPS: Final = 32
"""FP8 convolutions with more kernel taps run in float: 1x32, 4x8 and 3x3x3 are FP8; 1x33, 6x6 and 7x7 are not."""


def too_many_taps(shape: tuple[int | str, ...]) -> tuple[str, str] | None:
    """Why a convolution with weights of this shape is float in FP8, and what to do; None if it is not."""
    taps = prod(size for size in shape[2:] if isinstance(size, int))
    if taps <= _MOST_TAPS:
        return None
    return (
        f"FP8 convolutions of more than {_MOST_TAPS} taps run in float, this one has {taps}",
        "quantize it to int8, or leave it float",
    )


def rows_of(view: GraphView, node: Node) -> int | None:
    """How many rows the activation of a product has, all leading dimensions together; None if that is open."""
    shape = view.info(node.inputs[0]).shape
    if node.op not in MATRIX_PRODUCTS or shape is None:
        return None
    if node.op == "Gemm" and node.attribute("transA", 0):
        shape = shape[::-1]
    sizes = [size for size in shape[:-1] if isinstance(size, int)]
    return prod(sizes) if len(sizes) == len(shape) - 1 else None

"""Finds compute nodes that have Q/DQ on one input only."""

from __future__ import annotations

from qdqtool.core.dtypes import DType
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import PRODUCTS, holds_dequantize_back, quantization_commutes

_WIDE = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of constants that INT8 may come of: INT4 stands beside floats of its own right, FP8 beside its like."""


def half_quantized(view: GraphView, node: Node) -> tuple[int, ...]:
    """The float inputs of a compute node whose other input is quantized."""
    if node.op not in PRODUCTS:
        return ()
    quantized = [is_quantized(view, name) for name in node.inputs[:2]]
    return tuple(index for index, known in enumerate(quantized) if not known) if any(quantized) else ()


def is_quantized(view: GraphView, tensor: str) -> bool:
    """Whether the tensor comes out of a pair, directly or through operators that carry integers on."""
    maker = view.producer(tensor)
    while maker is not None and quantization_commutes(view, maker) and not holds_dequantize_back(view, maker):
        maker = view.producer(maker.inputs[0])
    if maker is not None and maker.op == "Concat":
        return all(is_quantized(view, name) for name in maker.inputs)
    if maker is None or maker.op != DEQUANTIZE:
        return False
    return not view.is_constant(maker.inputs[0]) or view.info(maker.inputs[0]).dtype in _WIDE

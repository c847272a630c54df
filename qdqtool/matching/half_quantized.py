"""Compute nodes that have Q/DQ on one input only: which they are, and pairs for those whose range was measured."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from qdqtool.core.dtypes import DType
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import INT8
from qdqtool.core.repair import Change
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE
from qdqtool.graph.qdq.slots import requantize
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


def wanted(model: Model) -> tuple[str, ...]:
    """Run-time tensors that need a range: float inputs of compute nodes whose other input is quantized."""
    view = model.view
    names = {node.inputs[index] for node in view.nodes for index in half_quantized(view, node)}
    return tuple(sorted(name for name in names if not view.is_constant(name)))


def quantize_activations(model: Model, amax: Mapping[str, float]) -> tuple[Model, tuple[Change, ...]]:
    """Put a pair with scale amax / 127 before each wanting input whose tensor has a range.

    Ranges that are not positive numbers are passed over.
    """
    edits, told = [], []
    for node in model.view.nodes:
        for index in half_quantized(model.view, node):
            tensor = node.inputs[index]
            range_ = amax.get(tensor, 0.0)
            if not isfinite(range_) or range_ <= 0:
                continue
            edit = SlotEdit(slot=Slot(node=node.name, index=index), scales=(range_ / INT8.qmax,))
            edits.append(edit)
            told.append(
                Change(
                    rule="half_quantized",
                    subject=tensor,
                    what=f"quantized for {node.op} {node.name!r} with the measured range {range_:.4g}",
                    reason="a quantized weight beside a float activation runs in float",
                    edits=(edit,),
                )
            )
    return (requantize(model, edits) if edits else model), tuple(told)

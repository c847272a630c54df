"""Finds compute nodes that have Q/DQ on one input only."""

from __future__ import annotations

from qdqtool.core.dtypes import DType
from qdqtool.graph.find import DEQUANTIZE
from qdqtool.graph.normalize.context import MOVES, WEIGHTED
from qdqtool.graph.view import GraphView, Node

PASSED = MOVES | {"MaxPool"}
"""Operators that integers pass."""
_WIDE = frozenset({DType.INT8, DType.UINT8, DType.INT16, DType.INT32})
"""Types of constants that INT8 may come of: INT4 stands beside floats of its own right, FP8 beside its like."""
_OUTSIDE = 2
"""Axes of a Conv's input in front of height and width: batch and channels."""


def half_quantized(view: GraphView, node: Node) -> tuple[int, ...]:
    """The float inputs of a compute node whose other input is quantized."""
    if node.op not in WEIGHTED:
        return ()
    quantized = [is_quantized(view, name, node) for name in node.inputs[:2]]
    return tuple(index for index, known in enumerate(quantized) if not known) if any(quantized) else ()


def is_quantized(view: GraphView, tensor: str, reader: Node | None = None) -> bool:
    """Whether the tensor comes out of a pair, directly or through operators that integers pass on to `reader`."""
    maker = view.producer(tensor)
    while maker is not None and (maker.op in PASSED or (reader and is_own_pad(view, maker, reader))):
        reader = maker if maker.op != "Pad" else reader
        maker = view.producer(maker.inputs[0])
    if maker is not None and maker.op == "Concat":
        return all(is_quantized(view, name) for name in maker.inputs)
    if maker is None or maker.op != DEQUANTIZE:
        return False
    return not view.is_constant(maker.inputs[0]) or view.info(maker.inputs[0]).dtype in _WIDE


def is_own_pad(view: GraphView, pad: Node, reader: Node) -> bool:
    """Whether a Pad belongs to one Conv, which takes it along: behind it only that Conv, and no padded channels."""
    uses = view.uses(pad.outputs[0]) if pad.op == "Pad" else ()
    if len(uses) != 1 or view.is_output(pad.outputs[0]):
        return False
    if uses[0].node.op == "Pad":
        return _is_around(view, pad) and is_own_pad(view, uses[0].node, reader)
    return uses[0].node.name == reader.name and reader.op == "Conv" and _is_around(view, pad)


def _is_around(view: GraphView, pad: Node) -> bool:
    """Whether a Pad leaves batch and channels as they are."""
    given = pad.attribute("pads", ())
    if len(pad.inputs) > 1:
        constant = view.constant(pad.inputs[1])
        given = () if constant is None or len(pad.inputs) > 3 else constant.ravel().tolist()
    rank = len(given) // 2
    return rank > _OUTSIDE and not any(given[:_OUTSIDE]) and not any(given[rank : rank + _OUTSIDE])

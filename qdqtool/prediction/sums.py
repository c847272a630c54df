"""Along which axes a node sums: one kernel sums along one set of axes only.

Along one short axis nothing is summed: the compiler writes slices and adds them, in whatever kernel that is.

Evidence: RTX 1.7.1, Relu ─ reduction along one axis ─ ReduceMean along two others: one kernel for 2 to 6 values of
ReduceSum and ReduceL2 and for 2 to 4 of ReduceMean, ReduceMax, ReduceMin and Softmax, the first or the last axis; two
kernels for more, and along two axes of 1 and 2 values.
"""

from __future__ import annotations

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import ADDING, REDUCTIONS, SPATIAL_SUMS

Axes = tuple[int, ...]
_WRITTEN_OUT, _ADDED_OUT = 4, 6
"""Most values along one axis for which slices are written; of operators that only add."""


def shrinks(view: GraphView, node: Node) -> bool:
    """Whether a node sums, and makes fewer values than it reads."""
    return (node.op in REDUCTIONS or node.op == "GlobalAveragePool") and not _is_written_out(view, node)


def axes(view: GraphView, node: Node) -> Axes:
    """The axes that `node` sums along, from the front; () for nodes that sum nothing or of unknown rank."""
    return () if _is_written_out(view, node) else _named(view, node)


def _is_written_out(view: GraphView, node: Node) -> bool:
    if node.op != "Softmax" and node.op not in REDUCTIONS:
        return False
    named = _named(view, node)
    shape = view.info(node.inputs[0]).shape or ()
    size = shape[named[0]] if len(named) == 1 else None
    return isinstance(size, int) and 1 < size <= (_ADDED_OUT if node.op in ADDING else _WRITTEN_OUT)


def _named(view: GraphView, node: Node) -> Axes:
    shape = view.info(node.inputs[0]).shape if node.inputs else None
    if not shape:
        return ()
    rank = len(shape)
    if node.op in SPATIAL_SUMS:
        return tuple(range(2, rank))
    if node.op == "Softmax":
        return (int(node.attribute("axis", -1)) % rank,)
    if node.op == "LayerNormalization":
        return tuple(range(int(node.attribute("axis", -1)) % rank, rank))
    if node.op not in REDUCTIONS:
        return ()
    given = node.attribute("axes", ())
    if not given and len(node.inputs) > 1:
        constant = view.constant(node.inputs[1])
        given = () if constant is None else constant.ravel().tolist()
    return tuple(sorted(int(axis) % rank for axis in given)) or tuple(range(rank))

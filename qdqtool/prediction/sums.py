"""Along which axes a node sums: one kernel sums along one set of axes only."""

from __future__ import annotations

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import REDUCTIONS, SPATIAL_SUMS

Axes = tuple[int, ...]


def shrinks(node: Node) -> bool:
    """Whether a node makes fewer values than it reads."""
    return node.op in REDUCTIONS or node.op == "GlobalAveragePool"


def axes(view: GraphView, node: Node) -> Axes:
    """The axes that `node` sums along, from the front; () for nodes that sum nothing or of unknown rank."""
    shape = view.info(node.inputs[0]).shape if node.inputs else None
    if shape is None:
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

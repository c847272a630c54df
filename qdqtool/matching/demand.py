"""Slots that lead to a layer that wants INT8, by the graph alone."""

from __future__ import annotations

from qdqtool.core.placement import Slot
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import PRODUCTS, carried_outputs, quantization_commutes


def wanted_slots(view: GraphView) -> frozenset[Slot]:
    """Return the slots of compute nodes, and of the commuting nodes and Concats before them."""
    wanted: set[Slot] = set()
    for node in reversed(view.nodes):
        if node.op in PRODUCTS:
            wanted.update(Slot(node=node.name, index=index) for index in (0, 1))
        elif any(_leads_on(view, output, wanted) for output in _carried(view, node)):
            count = len(node.inputs) if node.op == "Concat" else 1
            wanted.update(Slot(node=node.name, index=index) for index in range(count))
    return frozenset(wanted)


def _carried(view: GraphView, node: Node) -> tuple[str, ...]:
    if node.op == "Concat":
        return node.outputs
    return carried_outputs(node) if quantization_commutes(view, node) else ()


def _leads_on(view: GraphView, tensor: str, wanted: set[Slot]) -> bool:
    return any(Slot(node=use.node.name, index=use.index) in wanted for use in view.uses(tensor))

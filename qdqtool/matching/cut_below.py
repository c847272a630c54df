"""Restores a Relu that a quantization range starting at zero had replaced."""

from __future__ import annotations

from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.trt.ops import AVERAGE_POOLS, GATES, QDQ, carried_inputs

NEVER_NEGATIVE = GATES | {"Abs", "Exp", "ReduceL2", "Relu", "Softmax", "Sqrt"}


def cut_below(context: RepairContext, tensor: str, cut: dict[str, str]) -> str:
    """Return the result of a Relu on `tensor`, stored in `cut` for all its pairs.

    If `tensor` is never negative, return it unchanged.
    """
    if _never_negative(context, tensor):
        return tensor
    if tensor not in cut:
        cut[tensor] = context.edit.fresh(f"{tensor}_relu")
        context.edit.node("Relu", [tensor], [cut[tensor]], name=f"{tensor}_Relu")
    return cut[tensor]


def _never_negative(context: RepairContext, tensor: str) -> bool:
    """Return whether all sources of the values of `tensor` are never negative."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        node = context.view.producer(waiting.pop())
        if node is None:
            return False
        carried = (0,) if node.op in QDQ | AVERAGE_POOLS else carried_inputs(context.view, node)
        if not carried and not _is_positive(context, node):
            return False
        fresh = {node.inputs[index] for index in carried} - seen
        seen |= fresh
        waiting += fresh
    return True


def _is_positive(context: RepairContext, node: Node) -> bool:
    if node.op != "Clip":
        return node.op in NEVER_NEGATIVE
    bound = context.edit.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return bound is not None and float(bound) >= 0

"""Tensors whose values cannot leave a known interval, whatever the sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The largest magnitude a tensor can have.

    Attributes:
        amax: that magnitude.
        op: the operator that sees to it.
        saturates: whether values near the bound carry the meaning (a probability of 1), so that none may be clipped.
    """

    amax: float
    op: str
    saturates: bool


_SATURATING = {"Sigmoid": 1.0, "HardSigmoid": 1.0, "Softmax": 1.0, "Tanh": 1.0}
_CARRIERS = frozenset(
    {"Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "MaxPool", "Identity"}
)


def bounds(view: GraphView) -> dict[str, Bound]:
    """The bounded tensors of a graph; layout operators and MaxPool pass a bound on."""
    found: dict[str, Bound] = {}
    for node in view.nodes:
        bound = found.get(node.inputs[0]) if node.op in _CARRIERS and node.inputs else _own(node, view)
        if bound is not None:
            found[node.outputs[0]] = bound
    return found


def _own(node: Node, view: GraphView) -> Bound | None:
    if node.op in _SATURATING:
        return Bound(amax=_SATURATING[node.op], op=node.op, saturates=True)
    if node.op == "Clip":
        limits = [_limit(node, view, index, name) for index, name in ((1, "min"), (2, "max"))]
        if limits[0] is not None and limits[1] is not None:
            largest = max(abs(limits[0]), abs(limits[1]))
            return Bound(amax=largest, op="Clip", saturates=False) if largest > 0 else None
    return None


def _limit(node: Node, view: GraphView, index: int, name: str) -> float | None:
    """A limit of Clip: an input from opset 11 on, an attribute before."""
    if name in node.attributes:
        return float(node.attributes[name])
    value = view.constant(node.inputs[index]) if len(node.inputs) > index and node.inputs[index] else None
    return None if value is None or value.size != 1 else float(value.reshape(-1)[0])

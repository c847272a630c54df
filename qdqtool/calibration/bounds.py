"""Finds tensors whose values stay within a known interval for every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdqtool.trt.ops import carried_inputs, carried_outputs, hard_bound

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Largest magnitude that a tensor can have.

    Attributes:
        amax: that magnitude.
        op: the operator that sees to it.
        saturates: whether values near the bound carry the meaning (a probability of 1), so that none may be clipped.
    """

    amax: float
    op: str
    saturates: bool


def bounds(view: GraphView) -> dict[str, Bound]:
    """Return the bounded tensors of a graph. Operators that only move values pass a bound on; a Concat passes on the largest."""
    bounded: dict[str, Bound] = {}
    for node in view.nodes:
        bound = _passed_on(view, node, bounded) or _own(view, node)
        if bound is not None:
            bounded |= dict.fromkeys(carried_outputs(node), bound)
    return bounded


def _passed_on(view: GraphView, node: Node, bounded: dict[str, Bound]) -> Bound | None:
    """Return the largest bound of all inputs whose values `node` passes on; None if one of these inputs has no bound."""
    given = [bounded.get(node.inputs[index]) for index in carried_inputs(view, node)]
    known = [bound for bound in given if bound is not None]
    if not known or len(known) < len(given):
        return None
    largest = max(known, key=lambda bound: bound.amax)
    return Bound(amax=largest.amax, op=largest.op, saturates=any(bound.saturates for bound in known))


def _own(view: GraphView, node: Node) -> Bound | None:
    limit = hard_bound(view, node)
    return None if limit is None else Bound(amax=limit[0], op=node.op, saturates=limit[1])
